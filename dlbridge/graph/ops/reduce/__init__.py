"""Reductions, arg-max, top-k."""
