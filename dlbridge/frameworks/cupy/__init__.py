"""CuPy: all that is special about it."""
