"""`tf.nn`: functions for neural networks."""

from dlbridge.graph.functions.math_unary import sigmoid as sigmoid
from dlbridge.graph.functions.math_unary import tanh as tanh
from dlbridge.graph.functions.nn import *
from dlbridge.graph.functions.nn_composites import *
from dlbridge.graph.functions.nn_losses import *
from dlbridge.graph.functions.nn_normalization import *
from dlbridge.graph.functions.nn_pools import *
from dlbridge.graph.functions.nn_windows import *
