"""Gather, scatter, masks."""
