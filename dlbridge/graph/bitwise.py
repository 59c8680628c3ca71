"""`tf.bitwise`: the bits of integers."""

from dlbridge.graph.functions.math_unary import bitwise_and as bitwise_and
from dlbridge.graph.functions.math_unary import bitwise_or as bitwise_or
from dlbridge.graph.functions.math_unary import bitwise_xor as bitwise_xor
from dlbridge.graph.functions.math_unary import invert as invert
from dlbridge.graph.functions.math_unary import left_shift as left_shift
from dlbridge.graph.functions.math_unary import population_count as population_count
from dlbridge.graph.functions.math_unary import right_shift as right_shift
