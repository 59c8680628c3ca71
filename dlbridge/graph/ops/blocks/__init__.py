"""Blocks of space as depth or batch, and back."""
