"""dpnp: all that is special about it."""
