"""`tf.random`: random numbers, under the names without the prefix `random_`."""

from dlbridge.graph.functions.math_random import multinomial as multinomial
from dlbridge.graph.functions.math_random import truncated_normal as truncated_normal
from dlbridge.graph.scoping import get_seed as get_seed
from dlbridge.graph.scoping import set_random_seed as set_random_seed
