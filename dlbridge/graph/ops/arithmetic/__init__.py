"""Element-wise arithmetic of two or more operands."""
