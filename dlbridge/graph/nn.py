"""`tf.nn`: functions for neural networks."""

from dlbridge.graph.ops.convolution import *
from dlbridge.graph.ops.nn import *
from dlbridge.graph.ops.normalization import *
from dlbridge.graph.ops.padding import depth_to_space as depth_to_space
from dlbridge.graph.ops.padding import space_to_batch as space_to_batch
from dlbridge.graph.ops.padding import space_to_depth as space_to_depth
from dlbridge.graph.ops.reduce import top_k as top_k
from dlbridge.graph.ops.unary import sigmoid as sigmoid
from dlbridge.graph.ops.unary import tanh as tanh
