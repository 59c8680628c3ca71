"""TensorFlow 1.x dataflow graphs whose nodes run in NumPy, PyTorch, JAX or CuPy.

`import dlbridge.graph as tf` serves code for TensorFlow 1.x. Each family of functions exports the
names in its `__all__`.
"""

import builtins as _builtins
from types import ModuleType as _ModuleType
from typing import Any

from dlbridge.execution.trace import Trace as Trace
from dlbridge.graph import bitwise as bitwise
from dlbridge.graph import debugging as debugging
from dlbridge.graph import errors as errors
from dlbridge.graph import graph_util as graph_util
from dlbridge.graph import image as image
from dlbridge.graph import initializers as initializers
from dlbridge.graph import io as io
from dlbridge.graph import linalg as linalg
from dlbridge.graph import math as math
from dlbridge.graph import nn as nn
from dlbridge.graph import random as random
from dlbridge.graph import sparse as sparse
from dlbridge.graph import strings as strings
from dlbridge.graph import summary as summary
from dlbridge.graph.collecting import GraphKeys as GraphKeys
from dlbridge.graph.constants import *
from dlbridge.graph.device_spec import DeviceSpec as DeviceSpec
from dlbridge.graph.dtypes import *
from dlbridge.graph.errors import OpError as OpError
from dlbridge.graph.exporter import *
from dlbridge.graph.functions import operators as operators
from dlbridge.graph.functions.array import *
from dlbridge.graph.functions.array_assertions import *
from dlbridge.graph.functions.array_checks import *
from dlbridge.graph.functions.array_extending import *
from dlbridge.graph.functions.array_indexing import *
from dlbridge.graph.functions.array_joining import *
from dlbridge.graph.functions.array_masks import *
from dlbridge.graph.functions.array_partition import *
from dlbridge.graph.functions.array_slicing import *
from dlbridge.graph.functions.basic import *
from dlbridge.graph.functions.call import *
from dlbridge.graph.functions.compatibility import *
from dlbridge.graph.functions.math import *
from dlbridge.graph.functions.math_clipping import *
from dlbridge.graph.functions.math_complex import *
from dlbridge.graph.functions.math_conversions import *
from dlbridge.graph.functions.math_division import *
from dlbridge.graph.functions.math_generate import *
from dlbridge.graph.functions.math_linear import *
from dlbridge.graph.functions.math_logic import *
from dlbridge.graph.functions.math_matrices import *
from dlbridge.graph.functions.math_random import *
from dlbridge.graph.functions.math_reduce import *
from dlbridge.graph.functions.math_running import *
from dlbridge.graph.functions.math_segments import *
from dlbridge.graph.functions.math_unary import *
from dlbridge.graph.functions.nn_composites import log_sigmoid as log_sigmoid
from dlbridge.graph.functions.sparse import *
from dlbridge.graph.graph import Graph as Graph
from dlbridge.graph.graph import get_default_graph as get_default_graph
from dlbridge.graph.graph import reset_default_graph as reset_default_graph
from dlbridge.graph.importer import *
from dlbridge.graph.initializing import *
from dlbridge.graph.opdef import register_op as register_op
from dlbridge.graph.operation import Operation as Operation
from dlbridge.graph.scoping import *
from dlbridge.graph.session import InteractiveSession as InteractiveSession
from dlbridge.graph.session import Session as Session
from dlbridge.graph.session import get_default_session as get_default_session
from dlbridge.graph.sparse_tensors import *
from dlbridge.graph.tensor import Tensor as Tensor
from dlbridge.graph.variable_functions import *
from dlbridge.graph.variable_getting import *
from dlbridge.graph.variable_scopes import *
from dlbridge.graph.variables import *
from dlbridge.shape import TensorShape as TensorShape

# What `from dlbridge.graph import *` gives: nothing that hides a builtin such as `range`,
# and no modules, since `math` and `random` have those of Python's library for namesakes.
__all__ = [
    _name
    for _name, _value in list(globals().items())
    if not _name.startswith("_")
    and not isinstance(_value, _ModuleType)
    and not hasattr(_builtins, _name)
    and _name != "Any"
]

_MESSAGES = ("AttrValue", "GraphDef", "NodeDef", "OpDef", "OpList", "VersionDef")


def __getattr__(name: str) -> Any:
    """Return the class of a message; `protobuf` is imported when the first is asked for."""
    if name in _MESSAGES:
        from dlbridge.proto import messages

        return getattr(messages, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
