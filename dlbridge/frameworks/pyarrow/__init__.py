"""pyarrow."""
