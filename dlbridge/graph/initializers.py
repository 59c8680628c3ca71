"""`tf.initializers`: what variables start with, under the names without the suffix."""

from dlbridge.graph.initializing import constant_initializer as constant
from dlbridge.graph.initializing import glorot_normal_initializer as glorot_normal
from dlbridge.graph.initializing import glorot_uniform_initializer as glorot_uniform
from dlbridge.graph.initializing import he_normal as he_normal
from dlbridge.graph.initializing import he_uniform as he_uniform
from dlbridge.graph.initializing import identity_initializer as identity
from dlbridge.graph.initializing import lecun_normal as lecun_normal
from dlbridge.graph.initializing import lecun_uniform as lecun_uniform
from dlbridge.graph.initializing import ones_initializer as ones
from dlbridge.graph.initializing import random_normal_initializer as random_normal
from dlbridge.graph.initializing import random_uniform_initializer as random_uniform
from dlbridge.graph.initializing import truncated_normal_initializer as truncated_normal
from dlbridge.graph.initializing import variance_scaling_initializer as variance_scaling
from dlbridge.graph.initializing import zeros_initializer as zeros
from dlbridge.graph.variable_functions import global_variables_initializer as global_variables
from dlbridge.graph.variable_functions import local_variables_initializer as local_variables
from dlbridge.graph.variable_functions import variables_initializer as variables

__all__ = [
    "constant",
    "global_variables",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "local_variables",
    "ones",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "variables",
    "variance_scaling",
    "zeros",
]
