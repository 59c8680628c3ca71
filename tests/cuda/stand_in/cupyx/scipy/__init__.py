"""The part of `cupyx.scipy` that dlbridge uses."""
