"""TensorFlow 1.x dataflow graphs whose nodes run in NumPy, PyTorch, JAX or CuPy.

`import dlbridge.graph as tf` serves code for TensorFlow 1.x. Each family of functions exports the
names in its `__all__`.
"""

from dlbridge.graph import nn as nn
from dlbridge.graph.constants import constant
from dlbridge.graph.functions import operators as operators
from dlbridge.graph.functions.basic import *
from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.operation import Operation
from dlbridge.graph.session import Session
from dlbridge.graph.tensor import Tensor
