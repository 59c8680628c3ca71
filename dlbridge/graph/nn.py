"""`tf.nn`: functions for neural networks."""

from dlbridge.graph.functions.nn import *
from dlbridge.graph.functions.nn_windows import *
