"""NumPy: all that is special about it."""
