"""JAX: all that is special about it."""
