"""The bits of integers."""
