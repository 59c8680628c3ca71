"""`tf.random`: random numbers, under the names without the prefix `random_`."""

from dlbridge.graph.core.default_graph import get_seed, set_random_seed
from dlbridge.graph.ops.random import multinomial, truncated_normal
from dlbridge.graph.ops.random import multinomial as categorical
from dlbridge.graph.ops.random import random_normal as normal
from dlbridge.graph.ops.random import random_shuffle as shuffle
from dlbridge.graph.ops.random import random_uniform as uniform

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
