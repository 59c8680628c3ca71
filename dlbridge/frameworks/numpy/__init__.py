"""numpy."""
