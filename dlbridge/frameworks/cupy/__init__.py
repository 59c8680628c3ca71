"""cupy."""
