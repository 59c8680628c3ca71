"""Shapes, and elements in another order."""
