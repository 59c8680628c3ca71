"""PyArrow: all that is special about it."""
