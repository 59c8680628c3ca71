"""Ranges and filled tensors."""
