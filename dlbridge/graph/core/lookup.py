"""Lookup of operations and tensors of a graph, by name or by object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.graph.core import names
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph

_FORM = 'Tensor names must be of the form "<op_name>:<output_index>", such as "Const:0".'


def element(
    graph: Graph, item: Any, allow_tensor: bool = True, allow_operation: bool = True
) -> Tensor | Operation:
    """Return the Tensor or Operation of an object or a name; see `Graph.as_graph_element`."""
    if not (allow_tensor or allow_operation):
        raise ValueError("allow_tensor and allow_operation can't both be False.")
    kinds = " or ".join(["Tensor"] * allow_tensor + ["Operation"] * allow_operation)
    if isinstance(item, str | bytes):
        name = item.decode() if isinstance(item, bytes) else item
        if ":" in name:
            return _tensor(graph, name, allow_tensor)
        return _operation(graph, name, allow_operation)
    convert = getattr(item, "_as_graph_element", None)
    if convert is not None:
        item = convert()
    if (isinstance(item, Tensor) and allow_tensor) or (
        isinstance(item, Operation) and allow_operation
    ):
        if item.graph is not graph:
            raise ValueError(f"{item!r} is not an element of this graph.")
        return item
    raise TypeError(
        f"Can not convert a {type(item).__name__} into a {kinds}. Pass one of this graph, or a name"
    )


def operation_of(graph: Graph, item: Any) -> Operation:
    """Return the operation that a control dependency on `item` waits for.

    Raises:
        TypeError, ValueError, KeyError: see `element`.
    """
    own = getattr(item, "_as_graph_operation", None)
    found: Any = element(graph, item if own is None else own())
    op: Operation = getattr(found, "op", found)
    return op


def _tensor(graph: Graph, name: str, allow_tensor: bool) -> Tensor:
    if not allow_tensor:
        raise ValueError(f"Name {name!r} appears to refer to a Tensor, not an Operation.")
    parts = names.split_tensor_name(name)
    if parts is None:
        raise ValueError(f"The name {name!r} looks like that of a Tensor, but is not one. {_FORM}")
    op = graph._by_name.get(parts[0])
    if op is None:
        raise KeyError(
            f"The name {name!r} refers to a Tensor which does not exist. The operation, "
            f"{parts[0]!r}, does not exist in the graph."
        )
    if parts[1] >= len(op.outputs):
        raise KeyError(
            f"The name {name!r} refers to a Tensor which does not exist. The operation, "
            f"{parts[0]!r}, exists but only has {len(op.outputs)} outputs."
        )
    return op.outputs[parts[1]]


def _operation(graph: Graph, name: str, allow_operation: bool) -> Operation:
    op = graph._by_name.get(name)
    if not allow_operation:
        what = "refers to an Operation" if op else "looks like an (invalid) Operation name"
        raise ValueError(f"The name {name!r} {what}, not a Tensor. {_FORM}")
    if op is None:
        raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
    return op
