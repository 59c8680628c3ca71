"""Grids in dlbridge."""
