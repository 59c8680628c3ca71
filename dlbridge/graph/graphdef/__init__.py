"""graphdef."""
