"""unary."""
