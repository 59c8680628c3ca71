"""`tf.bitwise`: the bits of integers."""

from dlbridge.graph.ops.arithmetic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    population_count,
    right_shift,
)

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "invert",
    "left_shift",
    "population_count",
    "right_shift",
]
