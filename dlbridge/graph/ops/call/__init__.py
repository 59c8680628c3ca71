"""Python functions and `dlbridge.wrap` kernels as nodes."""
