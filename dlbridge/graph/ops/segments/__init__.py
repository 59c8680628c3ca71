"""Segment sums and bin counts."""
