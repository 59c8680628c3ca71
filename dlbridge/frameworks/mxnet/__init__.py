"""MXNet: all that is special about it."""
