"""array."""
