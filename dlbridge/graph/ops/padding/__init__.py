"""padding."""
