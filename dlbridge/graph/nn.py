"""`tf.nn`: functions for neural networks."""

from dlbridge.graph.ops.blocks.functions import depth_to_space as depth_to_space
from dlbridge.graph.ops.blocks.functions import space_to_depth as space_to_depth
from dlbridge.graph.ops.convolution.functions import *
from dlbridge.graph.ops.nn.composites import *
from dlbridge.graph.ops.nn.functions import *
from dlbridge.graph.ops.nn.losses import *
from dlbridge.graph.ops.normalization.functions import *
from dlbridge.graph.ops.pooling.functions import *
from dlbridge.graph.ops.reduce.functions import top_k as top_k
from dlbridge.graph.ops.unary.functions import sigmoid as sigmoid
from dlbridge.graph.ops.unary.functions import tanh as tanh
