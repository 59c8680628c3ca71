"""Paddle: all that is special about it."""
