"""`tf.initializers`: initial values of variables, under the names without the suffix."""

from dlbridge.graph.variables.initializers import constant_initializer as constant
from dlbridge.graph.variables.initializers import glorot_normal_initializer as glorot_normal
from dlbridge.graph.variables.initializers import glorot_uniform_initializer as glorot_uniform
from dlbridge.graph.variables.initializers import he_normal as he_normal
from dlbridge.graph.variables.initializers import he_uniform as he_uniform
from dlbridge.graph.variables.initializers import identity_initializer as identity
from dlbridge.graph.variables.initializers import lecun_normal as lecun_normal
from dlbridge.graph.variables.initializers import lecun_uniform as lecun_uniform
from dlbridge.graph.variables.initializers import ones_initializer as ones
from dlbridge.graph.variables.initializers import random_normal_initializer as random_normal
from dlbridge.graph.variables.initializers import random_uniform_initializer as random_uniform
from dlbridge.graph.variables.initializers import truncated_normal_initializer as truncated_normal
from dlbridge.graph.variables.initializers import variance_scaling_initializer as variance_scaling
from dlbridge.graph.variables.initializers import zeros_initializer as zeros
from dlbridge.graph.variables.variable import global_variables_initializer as global_variables
from dlbridge.graph.variables.variable import local_variables_initializer as local_variables
from dlbridge.graph.variables.variable import variables_initializer as variables

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
