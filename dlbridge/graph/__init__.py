"""TensorFlow 1.x dataflow graphs whose nodes run in NumPy, PyTorch, JAX or CuPy.

`import dlbridge.graph as tf` serves code for TensorFlow 1.x. Each family of functions exports the
names in its `__all__`.
"""

import builtins as _builtins
import typing as _typing
from types import ModuleType as _ModuleType
from typing import Any as _Any

from dlbridge.execution.trace import Trace as Trace
from dlbridge.graph import absent as _absent
from dlbridge.graph import bitwise as bitwise
from dlbridge.graph import collective_ops as collective_ops
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
from dlbridge.graph import train as train
from dlbridge.graph.core.default_graph import *
from dlbridge.graph.core.exporter import *
from dlbridge.graph.core.graph import Graph as Graph
from dlbridge.graph.core.opdef import register_op as register_op
from dlbridge.graph.core.operation import Operation as Operation
from dlbridge.graph.core.operation import Tensor as Tensor
from dlbridge.graph.core.scopes import DeviceSpec as DeviceSpec
from dlbridge.graph.core.scopes import get_default_session as get_default_session
from dlbridge.graph.errors import OpError as OpError
from dlbridge.graph.graphdef.importer import *
from dlbridge.graph.ops import communication as _communication  # noqa: F401  mpi's calls
from dlbridge.graph.ops import operators as _operators  # noqa: F401  the operators of Tensor
from dlbridge.graph.ops.arithmetic import *
from dlbridge.graph.ops.array import *
from dlbridge.graph.ops.assertions import *
from dlbridge.graph.ops.basic import *
from dlbridge.graph.ops.call import *
from dlbridge.graph.ops.checks import *
from dlbridge.graph.ops.generate import *
from dlbridge.graph.ops.indexing import *
from dlbridge.graph.ops.joining import *
from dlbridge.graph.ops.linear import *
from dlbridge.graph.ops.logic import *
from dlbridge.graph.ops.nn import log_sigmoid as log_sigmoid
from dlbridge.graph.ops.padding import *
from dlbridge.graph.ops.queues import *
from dlbridge.graph.ops.random import *
from dlbridge.graph.ops.reduce import *
from dlbridge.graph.ops.slicing import *
from dlbridge.graph.ops.sparse import *
from dlbridge.graph.ops.sparse_tensor import *
from dlbridge.graph.ops.strings import *
from dlbridge.graph.ops.unary import *
from dlbridge.graph.session import InteractiveSession as InteractiveSession
from dlbridge.graph.session import Session as Session
from dlbridge.graph.session.config import *
from dlbridge.graph.variables.initializers import *
from dlbridge.graph.variables.partitioned import *
from dlbridge.graph.variables.variable import *
from dlbridge.graph.variables.variable_scope import *
from dlbridge.proto.datatypes import DataType as DType  # noqa: F401
from dlbridge.proto.datatypes import as_dtype as as_dtype
from dlbridge.proto.datatypes import bfloat16 as bfloat16
from dlbridge.proto.datatypes import bool_ as bool  # noqa: A004, F401
from dlbridge.proto.datatypes import complex64 as complex64
from dlbridge.proto.datatypes import complex128 as complex128
from dlbridge.proto.datatypes import double as double
from dlbridge.proto.datatypes import float4_e2m1fn as float4_e2m1fn
from dlbridge.proto.datatypes import float8_e4m3b11fnuz as float8_e4m3b11fnuz
from dlbridge.proto.datatypes import float8_e4m3fn as float8_e4m3fn
from dlbridge.proto.datatypes import float8_e4m3fnuz as float8_e4m3fnuz
from dlbridge.proto.datatypes import float8_e5m2 as float8_e5m2
from dlbridge.proto.datatypes import float8_e5m2fnuz as float8_e5m2fnuz
from dlbridge.proto.datatypes import float16 as float16
from dlbridge.proto.datatypes import float32 as float32
from dlbridge.proto.datatypes import float64 as float64
from dlbridge.proto.datatypes import half as half
from dlbridge.proto.datatypes import int2 as int2
from dlbridge.proto.datatypes import int4 as int4
from dlbridge.proto.datatypes import int8 as int8
from dlbridge.proto.datatypes import int16 as int16
from dlbridge.proto.datatypes import int32 as int32
from dlbridge.proto.datatypes import int64 as int64
from dlbridge.proto.datatypes import qint8 as qint8
from dlbridge.proto.datatypes import qint16 as qint16
from dlbridge.proto.datatypes import qint32 as qint32
from dlbridge.proto.datatypes import quint8 as quint8
from dlbridge.proto.datatypes import quint16 as quint16
from dlbridge.proto.datatypes import resource as resource
from dlbridge.proto.datatypes import string as string
from dlbridge.proto.datatypes import uint2 as uint2
from dlbridge.proto.datatypes import uint4 as uint4
from dlbridge.proto.datatypes import uint8 as uint8
from dlbridge.proto.datatypes import uint16 as uint16
from dlbridge.proto.datatypes import uint32 as uint32
from dlbridge.proto.datatypes import uint64 as uint64
from dlbridge.proto.datatypes import variant as variant
from dlbridge.shape import TensorShape as TensorShape

# The names of `from dlbridge.graph import *`: none that hides a builtin such as `range`,
# and no modules, since `math` and `random` have those of Python's library for namesakes.
__all__ = [
    _name
    for _name, _value in list(globals().items())
    if not _name.startswith("_")
    and not isinstance(_value, _ModuleType)
    and not hasattr(_builtins, _name)
]

# Modules that are public, as in TensorFlow; the others hold how graphs are made and run.
_MODULES = (
    "bitwise", "collective_ops", "debugging", "errors", "graph_util", "image", "initializers", "io",
    "linalg", "math", "nn", "random", "sparse", "strings", "summary", "train",
)  # fmt: skip


def _publish() -> None:
    """Let refusals of all public functions and classes name them, and advise on keywords."""
    from dlbridge.calls import publish
    from dlbridge.graph.session.session import BaseSession

    for module in (globals(), *(vars(globals()[name]) for name in _MODULES)):
        shown = module.get("__all__") if module is not globals() else None
        names = shown or [name for name in module if not name.startswith("_")]
        public = {name: module[name] for name in names}
        module.update(publish(public, __name__, made_within=("Operation", "Tensor")))
    publish({"Session": BaseSession}, __name__)


_publish()
for _name in _MODULES:
    _absent.watch(globals()[_name], _name)

_MESSAGES = ("AttrValue", "GraphDef", "NodeDef", "OpDef", "OpList", "VersionDef")


if _typing.TYPE_CHECKING:
    AttrValue: _Any
    GraphDef: _Any
    NodeDef: _Any
    OpDef: _Any
    OpList: _Any
    VersionDef: _Any
else:

    def __getattr__(name: str) -> _Any:
        """Return the class of a message; `protobuf` is imported on first use.

        Raises:
            AttributeError: there is no such name; what TensorFlow has it for, and what is nearest.
        """
        if name in _MESSAGES:
            from dlbridge.proto import messages

            return getattr(messages, name)
        raise _absent.missing("", name, __dir__())


def __dir__() -> list[str]:
    """Return the names that users call: functions, classes, dtypes, public modules, messages."""
    public = [
        name
        for name, value in globals().items()
        if not name.startswith("_") and not isinstance(value, _ModuleType)
    ]
    return sorted([*public, *_MODULES, *_MESSAGES])
