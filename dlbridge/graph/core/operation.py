"""Operation: a node of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlbridge.graph.core.defaults import Session, evaluate
from dlbridge.graph.core.element import GraphElement
from dlbridge.graph.core.exporter import node_def
from dlbridge.graph.core.opdef import OpDef
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import TensorShape

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph


class Operation(GraphElement):
    """A node of a Graph: an op type, its inputs, its attributes, its results.

    Operations are made by functions such as `add`, or by `Graph.create_op`. They compare and hash
    by identity, and satisfy `dlbridge.execution.registry.Node`.

    Attributes:
        graph: the Graph that it belongs to.
        id: its number in the graph, in order of creation, from 0.
        name: unique in the graph.
        definition: the OpDef of its op type; `op_def` is the same as a message.
        inputs, outputs: tuples of Tensors.
        control_inputs: Operations that run before it.
        attrs: decoded attributes, defaults filled in; see `dlbridge.proto.attributes`. Operations
            may share it: it is not to be written to.
        output_types: the DataType of each result.
        device: a canonical device string, or "".
        framework: the framework that it was placed on with `framework(...)`, or None.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     op = tf.constant([1.0, 2.0], name="c").op
        >>> op, op.type, op.outputs, op.get_attr("dtype")
        (<tf.Operation 'c' type=Const>, 'Const', (<tf.Tensor 'c:0' shape=(2,) dtype=float32>,),
         tf.float32)
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "control_inputs",
        "definition",
        "device",
        "framework",
        "graph",
        "id",
        "inputs",
        "name",
        "output_types",
        "outputs",
    )

    id: int
    name: str
    graph: Graph
    definition: OpDef
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
        return self.definition.name

    @property
    def stateful(self) -> bool:
        """Whether two runs of it may differ."""
        return self.definition.is_stateful

    @property
    def op_def(self) -> Any:
        """The OpDef message of its op type; all operations of a type share it."""
        return self.definition.to_proto()

    @property
    def node_def(self) -> Any:
        """The operation as a new NodeDef message, as in a GraphDef."""
        return node_def(self)

    @property
    def _id(self) -> int:
        return self.id

    def get_attr(self, name: str) -> Any:
        """Return an attribute as TensorFlow does.

        Args:
            name: of the attribute; defaults count.

        Returns:
            A DataType, bytes, int, float or bool; a TensorShapeProto, TensorProto or NameAttrList
            message; or a list of one of these. A message is a copy.

        Raises:
            ValueError: there is no such attribute.
        """
        if name not in self.attrs:
            raise ValueError(f"Operation {self.name!r} has no attr named {name!r}.")
        return _as_messages(self.attrs[name])

    def values(self) -> tuple[Tensor, ...]:
        """Return its results."""
        return self.outputs

    def colocation_groups(self) -> list[bytes]:
        """Return the groups of operations that share a device: only its own by default."""
        groups = [group for group in self.attrs.get("_class", ()) if group.startswith(b"loc:@")]
        return groups or [f"loc:@{self.name}".encode()]

    def run(
        self, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
    ) -> None:
        """Run it in `session`, or in the default session; see `Session.run`.

        Raises:
            ValueError: there is neither.
        """
        evaluate(self, feed_dict, session, "run")

    def __str__(self) -> str:
        return str(self.node_def)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


def _as_messages(value: Any) -> Any:
    """Return shapes, tensors and functions as messages, all else as it is."""
    if isinstance(value, list | tuple) and not isinstance(value, FunctionName):
        return [_as_messages(each) for each in value]
    if not isinstance(value, TensorShape | TensorValue | FunctionName):
        return value
    message = messages.AttrValue()
    write_attr(value, message)
    return getattr(message, message.WhichOneof("value"))
