"""Element-wise functions of one operand, and casts."""
