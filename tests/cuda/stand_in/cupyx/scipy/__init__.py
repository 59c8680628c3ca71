"""What dlbridge uses of `cupyx.scipy`."""
