"""Assertions and printing."""
