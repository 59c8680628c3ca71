"""The part of a GraphDef that some nodes need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.graphdef.import_order import producer
from dlbridge.proto import messages


def extract_sub_graph(graph_def: Any, dest_nodes: Iterable[str]) -> Any:
    """Return the nodes that some nodes need, those included, in the order in which they stood.

    Args:
        graph_def: a GraphDef message.
        dest_nodes: names of operations.

    Returns:
        A new GraphDef with the same versions and library.

    Raises:
        TypeError: not such arguments.
        AssertionError: a name is not in the graph, as in TensorFlow.
    """
    check(graph_def, "extract_sub_graph")
    if isinstance(dest_nodes, str | bytes):
        raise UnsupportedTypeError("dest_nodes must be an iterable of strings, got one string")
    by_name = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    stack = list(dest_nodes)
    for name in stack:
        if name not in by_name:
            raise AssertionError(f"{name} is not in graph")
    while stack:
        name = stack.pop()
        if name not in found and name in by_name:
            found.add(name)
            stack += [producer(each) for each in by_name[name].input]
    return with_nodes(graph_def, (node for node in graph_def.node if node.name in found))


def check(graph_def: Any, call: str) -> None:
    """Raise TypeError unless `graph_def` is a GraphDef message."""
    if not messages.is_message(graph_def, "GraphDef"):
        raise UnsupportedTypeError(
            f"{call}: graph_def must be a GraphDef, got {type(graph_def).__name__}"
        )


def with_nodes(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """Return a new GraphDef with other nodes, which are copied."""
    made = type(graph_def)()
    made.node.extend(nodes)
    made.library.CopyFrom(graph_def.library)
    made.versions.CopyFrom(graph_def.versions)
    return made
