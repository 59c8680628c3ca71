"""PyTorch: all that is special about it."""
