"""Graphs and operations as GraphDef and NodeDef messages and bytes, and the versions of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.graph_bytes import dump_graph_def_buffers
from dlbridge.shape import TensorShape

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation, Tensor

__all__ = ["dump_graph", "dump_graph_buffers"]


GRAPH_DEF_VERSION = 2474
"""The version that we write and read, that of TensorFlow 2.21; older readers take newer graphs."""

FUNCTIONS_SINCE = 12
"""Readers older than this do not know libraries of functions."""


class Versions(NamedTuple):
    """The fields of a VersionDef.

    Attributes:
        producer: the version of the writer.
        min_consumer: the oldest reader that may read it.
        bad_consumers: readers known to go wrong with it.
    """

    producer: int = GRAPH_DEF_VERSION
    min_consumer: int = 0
    bad_consumers: tuple[int, ...] = ()

    def merge(self, other: Versions) -> Versions:
        """Return the versions of a graph made of two: the oldest writer, all demands on readers."""
        return Versions(
            min(self.producer, other.producer),
            max(self.min_consumer, other.min_consumer),
            tuple(sorted({*self.bad_consumers, *other.bad_consumers})),
        )

    def check(self) -> None:
        """Raise ValueError unless we may read a graph of these versions."""
        if self.producer < 0:
            raise _refusal(f"its producer version is {self.producer}; the least is 0")
        if self.min_consumer > GRAPH_DEF_VERSION:
            raise _refusal(
                f"its min_consumer is {self.min_consumer}: it needs a newer reader than this one, "
                f"which reads version {GRAPH_DEF_VERSION}; upgrade dlbridge"
            )
        if GRAPH_DEF_VERSION in self.bad_consumers:
            raise _refusal(
                f"its bad_consumers forbid readers of version {GRAPH_DEF_VERSION}, as this one is"
            )


def _checked(graph: Any) -> Graph:
    if not hasattr(graph, "as_graph_def"):
        raise UnsupportedTypeError(f"graph must be a Graph, got {graph!r}")
    checked: Graph = graph
    return checked


def _refusal(text: str) -> ArgumentError:
    return ArgumentError(f"import_graph_def: the GraphDef cannot be read: {text}")


FRAMEWORK = "_dlbridge_framework"
"""The attribute with the framework that an operation was placed on."""


def dump_graph(graph: Graph) -> bytes:
    """Return a graph as the bytes of a GraphDef, which `load_graph` and TensorFlow read.

    The same graph gives the same bytes. Attributes that have their default are left out, which
    older readers want; the private attribute `_dlbridge_framework` names
    the framework of operations that were placed on one.

    Raises:
        ArgumentError: a constant takes 2 GiB or more.
    """
    return b"".join(dump_graph_buffers(graph))


def dump_graph_buffers(graph: Graph) -> list[Any]:
    """Return what `dump_graph` does as a list of buffers to be written one after the other.

    The contents of large constants are not copied: they are buffers of their own, over the memory
    of the constants.

    Example:
        >>> import numpy as np, dlbridge.graph as tf
        >>> with tf.Graph().as_default() as graph:
        ...     _ = tf.constant(np.zeros(1_000_000), name="zeros")
        >>> [memoryview(each).nbytes for each in tf.dump_graph_buffers(graph)]
        [69, 8000000, 5]
    """
    contents: list[Any] = []
    message = graph_def(_checked(graph), contents=contents)
    return dump_graph_def_buffers(message, contents)


def graph_def(
    graph: Graph,
    from_version: int | None = None,
    add_shapes: bool = False,
    contents: list[Any] | None = None,
) -> Any:
    """Return a graph as a new GraphDef message; see `Graph.as_graph_def`.

    Args:
        graph: the graph.
        from_version: leave out the operations there were when `graph.version` was this.
        add_shapes: write static shapes as the attribute `_output_shapes`.
        contents: where to put large contents instead of into the message.
    """
    message = messages.GraphDef()
    with graph._lock:
        operations = graph._operations[from_version or 0 :]
        versions, library = graph.versions, graph.library
    for op in operations:
        write_node(op, message.node.add(), add_shapes, contents)
    message.versions.CopyFrom(versions_message(versions))
    for data in library.values():
        message.library.function.add().ParseFromString(data)
    if library:
        message.versions.min_consumer = max(versions.min_consumer, FUNCTIONS_SINCE)
    return message


def versions_message(versions: Versions) -> Any:
    """Return versions as a VersionDef message."""
    return messages.VersionDef(**versions._asdict())


def node_def(op: Operation) -> Any:
    """Return an operation as a new NodeDef message."""
    message = messages.NodeDef()
    write_node(op, message)
    return message


def write_node(
    op: Operation, message: Any, add_shapes: bool = False, contents: list[Any] | None = None
) -> None:
    """Write an operation into an empty NodeDef."""
    message.name = op.name
    message.op = op.type
    message.input.extend([_reference(tensor) for tensor in op.inputs])
    message.input.extend([f"^{each.name}" for each in op.control_inputs])
    message.device = op.device
    attr = message.attr
    for name, value in _attributes(op, add_shapes):
        write_attr(value, attr[name], contents)


def _reference(tensor: Tensor) -> str:
    """Return a Tensor's name as inputs of NodeDefs have it."""
    return f"{tensor.op.name}:{tensor.value_index}" if tensor.value_index else tensor.op.name


def _attributes(op: Operation, add_shapes: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attributes to write: those that differ from their default, then our own."""
    defaults = op.definition.defaults
    for name, value in op.attrs.items():
        if name not in defaults or defaults[name] != value:
            yield name, value
    if op.framework is not None:
        yield FRAMEWORK, op.framework.encode()
    if add_shapes and op.outputs:
        yield "_output_shapes", shapes_of(op.outputs)


def shapes_of(tensors: Sequence[Tensor]) -> list[TensorShape]:
    """Return the static shapes of Tensors."""
    return [tensor.shape for tensor in tensors]
