"""Tensors of dlbridge itself: all that is special about them."""
