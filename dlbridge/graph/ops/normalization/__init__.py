"""Batch and local response normalization."""
