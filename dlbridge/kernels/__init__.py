"""Kernels: wrapped once, called with the tensors of every framework."""
