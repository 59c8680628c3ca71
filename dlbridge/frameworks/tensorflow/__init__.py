"""tensorflow."""
