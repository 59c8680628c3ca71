"""segments."""
