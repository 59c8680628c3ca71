"""MLX: all that is special about it."""
