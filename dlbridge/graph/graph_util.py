"""`tf.graph_util`: parts of GraphDefs, and graphs whose variables have become constants."""

from __future__ import annotations

from dlbridge.graph.core.graph import Graph
from dlbridge.graph.graphdef.rewriting import (
    convert_variables_to_constants,
    extract_sub_graph,
    remove_training_nodes,
)
from dlbridge.shape import TensorShape

__all__ = [
    "convert_variables_to_constants",
    "extract_sub_graph",
    "remove_training_nodes",
    "tensor_shape_from_node_def_name",
]


def tensor_shape_from_node_def_name(graph: Graph, input_name: str) -> TensorShape:
    """Return the static shape of the Tensor that an input of a NodeDef names: "a" or "a:1"."""
    name = input_name if ":" in input_name else f"{input_name}:0"
    return graph.get_tensor_by_name(name).shape
