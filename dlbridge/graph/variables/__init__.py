"""Variables, their scopes and initializers."""
