"""`tf.graph_util`: parts of GraphDefs, and graphs whose variables have become constants.

The functions take GraphDef messages, ours or TensorFlow's, do not change them, and return messages
of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dlbridge.graph.graphdef.freezing import convert_variables_to_constants
from dlbridge.graph.graphdef.sub_graph import check, extract_sub_graph, with_nodes

PASSING = ("Identity", "StopGradient", "CheckNumerics")

__all__ = [
    "convert_variables_to_constants",
    "extract_sub_graph",
    "remove_training_nodes",
    "tensor_shape_from_node_def_name",
]


def tensor_shape_from_node_def_name(graph: Any, input_name: str) -> Any:
    """Return the static shape of the Tensor that an input of a NodeDef means: "a" or "a:1"."""
    name = input_name if ":" in input_name else f"{input_name}:0"
    return graph.get_tensor_by_name(name).shape


# ---- training ----------------------------------------------------------------------------------


def remove_training_nodes(input_graph: Any, protected_nodes: Iterable[str] = ()) -> Any:
    """Return a graph without the Identity, StopGradient and CheckNumerics nodes that do nothing.

    Those stay that are protected, that have control inputs or are control inputs, and with which
    others are colocated.

    Args:
        input_graph: a GraphDef message.
        protected_nodes: names of nodes to keep: inputs and outputs of the graph.
    """
    check(input_graph, "remove_training_nodes")
    kept = {*(protected_nodes or ()), *_held(input_graph.node)}
    instead = {
        node.name: node.input[0]
        for node in input_graph.node
        if node.op in PASSING and node.name not in kept
    }
    nodes = (node for node in input_graph.node if node.name not in instead)
    made = with_nodes(input_graph, nodes)
    for node in made.node:
        node.input[:] = [_follow(each, instead) for each in node.input]
    return made


def _held(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the names of nodes that matter for the order or the place of others."""
    for node in nodes:
        controls = [each[1:] for each in node.input if each.startswith("^")]
        if controls:
            yield node.name
            yield from controls
        if "_class" in node.attr:
            groups = node.attr["_class"].list.s
            yield from (each.decode().removeprefix("loc:@") for each in groups)


def _follow(reference: str, instead: Mapping[str, str]) -> str:
    while (name := reference.removesuffix(":0")) in instead:
        reference = instead[name]
    return reference
