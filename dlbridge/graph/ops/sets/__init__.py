"""Unique values and set differences."""
