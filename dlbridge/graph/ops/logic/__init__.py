"""Comparisons, logic, selection."""
