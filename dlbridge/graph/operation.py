"""Operation: a node of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.graph.opdef import OpDef
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType

if TYPE_CHECKING:
    from dlbridge.graph.graph import Graph


class Operation:
    """A node of a Graph: an op type, its inputs, its attributes, its results.

    Operations are made by functions such as `add`, or by `Graph.create_op`. They compare and hash
    by identity, and satisfy `dlbridge.execution.node.Node`.

    Attributes:
        graph: the Graph that it belongs to.
        id: its number in the graph, in order of creation, from 0.
        name: unique in the graph.
        op_def: its OpDef.
        inputs, outputs: tuples of Tensors.
        control_inputs: Operations that run before it.
        attrs: decoded attributes, defaults filled in; see `dlbridge.proto.attributes`.
        output_types: the DataType of each result.
        device: a canonical device string, or "".
        framework: the framework that it was placed on with `framework(...)`, or None.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "control_inputs",
        "device",
        "framework",
        "graph",
        "id",
        "inputs",
        "name",
        "op_def",
        "output_types",
        "outputs",
    )

    id: int
    name: str
    graph: Graph
    op_def: OpDef
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    control_inputs: tuple[Operation, ...]
    attrs: dict[str, Any]
    output_types: tuple[DataType, ...]
    device: str
    framework: str | None

    @property
    def type(self) -> str:
        """The op type."""
        return self.op_def.name

    @property
    def stateful(self) -> bool:
        """Whether its runs can be told apart."""
        return self.op_def.is_stateful

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"
