"""`tf.bitwise`: the bits of integers."""

from dlbridge.graph.functions.math_unary import bitwise_and
from dlbridge.graph.functions.math_unary import bitwise_or
from dlbridge.graph.functions.math_unary import bitwise_xor
from dlbridge.graph.functions.math_unary import invert
from dlbridge.graph.functions.math_unary import left_shift
from dlbridge.graph.functions.math_unary import population_count
from dlbridge.graph.functions.math_unary import right_shift

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "invert",
    "left_shift",
    "population_count",
    "right_shift",
]
