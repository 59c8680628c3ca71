"""Constants: Python numbers and arrays as operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.opdef import op_def
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import TensorValue


def constant(value: Any, dtype: object = None, shape: object = None, name: str = "Const") -> Tensor:
    """Create a constant."""
    graph = get_default_graph()
    kind = None if dtype is None else as_dtype(dtype)
    return make_constant(value, kind, graph, graph.operation_name(name))


def as_graph_tensor(value: Any, dtype: DataType | None, graph: Graph, name: str) -> Tensor:
    """Return what is no Tensor yet as one, a constant called `name`."""
    return make_constant(value, dtype, graph, graph.operation_name(f"{name}/"))


def make_constant(value: Any, dtype: DataType | None, graph: Graph, name: str) -> Tensor:
    """Create a constant with a full name."""
    if value is None:
        raise ValueError("None values not supported.")
    array = np.array(value, None if dtype is None else dtype.numpy)
    if dtype is None and isinstance(value, float | int | list | tuple) and array.dtype.kind in "fi":
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    array.flags.writeable = False
    kind = as_dtype(array.dtype)
    attrs = {"value": TensorValue(kind, array), "dtype": kind}
    return graph.add(op_def("Const"), (), attrs, name, (kind,)).outputs[0]
