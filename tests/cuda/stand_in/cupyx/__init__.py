"""What dlbridge uses of `cupyx`."""
