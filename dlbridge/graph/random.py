"""`tf.random`: random numbers, under the names without the prefix `random_`."""

from dlbridge.graph.functions.math_random import multinomial, truncated_normal
from dlbridge.graph.functions.math_random import multinomial as categorical
from dlbridge.graph.functions.math_random import random_normal as normal
from dlbridge.graph.functions.math_random import random_shuffle as shuffle
from dlbridge.graph.functions.math_random import random_uniform as uniform
from dlbridge.graph.scoping import get_seed, set_random_seed

__all__ = [
    "categorical",
    "get_seed",
    "multinomial",
    "normal",
    "set_random_seed",
    "shuffle",
    "truncated_normal",
    "uniform",
]
