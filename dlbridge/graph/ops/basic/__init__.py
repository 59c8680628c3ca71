"""Constants, placeholders, identity, no-op."""
