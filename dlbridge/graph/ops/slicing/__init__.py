"""Slices and strided slices."""
