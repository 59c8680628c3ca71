"""Concat, stack, split."""
