"""The part of `cupyx` that dlbridge uses."""
