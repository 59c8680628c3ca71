"""`tf.nn`: functions for neural networks."""

from dlbridge.graph.ops.nn.composites import *
from dlbridge.graph.ops.nn.functions import *
from dlbridge.graph.ops.nn.losses import *
from dlbridge.graph.ops.nn.normalization import *
from dlbridge.graph.ops.unary.functions import sigmoid as sigmoid
from dlbridge.graph.ops.unary.functions import tanh as tanh
from dlbridge.graph.ops.windows.functions import *
from dlbridge.graph.ops.windows.pools import *
