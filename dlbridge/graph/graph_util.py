"""`tf.graph_util`: parts of GraphDefs, and graphs whose variables have become constants.

The functions take GraphDef messages, ours or TensorFlow's, do not change them, and return messages
of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.opdef import op_def
from dlbridge.graph.core.scopes import Session
from dlbridge.graph.graphdef.importer import import_graph_def
from dlbridge.graph.graphdef.nodes import producer
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import int32
from dlbridge.proto.values import TensorValue, make_value
from dlbridge.shape import TensorShape

__all__ = [
    "convert_variables_to_constants",
    "extract_sub_graph",
    "import_graph_def",
    "remove_training_nodes",
    "tensor_shape_from_node_def_name",
]


HANDLES = ("VarHandleOp",)
REFERENCES = ("VariableV2", "Variable")
_PASSING = ("Identity", "StopGradient", "CheckNumerics")


def extract_sub_graph(graph_def: Any, dest_nodes: Iterable[str]) -> Any:
    """Return the part of a GraphDef that some nodes need, in the original order.

    Args:
        graph_def: a GraphDef message.
        dest_nodes: names of operations.

    Returns:
        A new GraphDef with the same versions and library.

    Raises:
        TypeError: not such arguments.
        AssertionError: a name is not in the graph, as in TensorFlow.
    """
    _check(graph_def, "extract_sub_graph")
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
    return _with_nodes(graph_def, (node for node in graph_def.node if node.name in found))


def _check(graph_def: Any, call: str) -> None:
    """Raise TypeError unless `graph_def` is a GraphDef message."""
    if not messages.is_message(graph_def, "GraphDef"):
        raise UnsupportedTypeError(
            f"{call}: graph_def must be a GraphDef, got {type(graph_def).__name__}"
        )


def _with_nodes(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """Return a new GraphDef with other nodes, which are copied."""
    made = type(graph_def)()
    made.node.extend(nodes)
    made.library.CopyFrom(graph_def.library)
    made.versions.CopyFrom(graph_def.versions)
    return made


# ---- freezing ----


def convert_variables_to_constants(
    sess: Session,
    input_graph_def: Any,
    output_node_names: Iterable[str],
    variable_names_whitelist: Iterable[str] | None = None,
    variable_names_blacklist: Iterable[str] | None = None,
) -> Any:
    """Return the part of a graph that some nodes need, with variables replaced by their values.

    Such a frozen graph runs without the session, and in TensorFlow.

    Args:
        sess: the Session with the values of the variables.
        input_graph_def: a GraphDef message of the session's graph.
        output_node_names: names of the operations that are needed.
        variable_names_whitelist: names of the only variables to replace.
        variable_names_blacklist: names of variables not to replace.

    Raises:
        AssertionError: a name of an operation is not in the graph.
        ValueError: a variable is used in a way that a constant cannot be: it is assigned to.
        FailedPreconditionError: a variable has no value in the session.
    """
    graph_def = extract_sub_graph(input_graph_def, output_node_names)
    chosen = None if variable_names_whitelist is None else set(variable_names_whitelist)
    kept = set(variable_names_blacklist or ())
    variables = [
        node
        for node in graph_def.node
        if node.op in (*HANDLES, *REFERENCES)
        and (chosen is None or node.name in chosen)
        and node.name not in kept
    ]
    values = dict(zip([node.name for node in variables], _values(sess, variables), strict=True))
    made = _with_nodes(graph_def, ())
    freezing = _Freezing(graph_def.node, values, made)
    for node in graph_def.node:
        freezing.write(node)
    return made


def _values(sess: Session, variables: list[Any]) -> list[Any]:
    """Return the values of variables in a session, all read in one run."""
    fetches = []
    for node in variables:
        handle = sess.graph.get_tensor_by_name(f"{node.name}:0")
        if node.op in HANDLES:
            readers = [op for op in handle.consumers() if op.type == "ReadVariableOp"]
            if not readers:
                raise ArgumentError(
                    f"convert_variables_to_constants: no ReadVariableOp of the session's graph "
                    f"reads the variable {node.name!r}"
                )
            handle = readers[0].outputs[0]
        fetches.append(handle)
    values: list[Any] = sess.run(fetches)
    return values


class _Freezing:
    """Rewrites the nodes of a graph whose variables become constants.

    Args:
        nodes: all nodes of the graph.
        values: of the variables, by their names.
        graph_def: where the nodes go.
    """

    def __init__(self, nodes: Iterable[Any], values: Mapping[str, Any], graph_def: Any) -> None:
        self._values = values
        self._by_name = {node.name: node for node in nodes}
        self._graph_def = graph_def

    def write(self, node: Any) -> None:
        """Add a node, or its replacement."""
        variable = self._variable(node.input[0]) if node.input else None
        if node.name in self._values:
            dtype = node.attr["dtype"]
            self._constant(node, node.name, make_value(self._values[node.name], dtype.type))
        elif variable is None or (variable.op in REFERENCES and not _takes_reference(node.op)):
            self._graph_def.node.add().CopyFrom(node)
        elif variable.op in HANDLES and node.op in _REWRITES:
            _REWRITES[node.op](self, node, variable)
        else:
            raise ArgumentError(
                f"convert_variables_to_constants: node {node.name!r} ({node.op}) cannot use a "
                f"constant in place of the variable {variable.name!r}; leave it out of the outputs"
            )

    def _variable(self, reference: str) -> Any:
        """Return the node of the frozen variable that an input refers to, or None."""
        node = self._by_name[producer(reference)]
        while node.op == "Identity":
            node = self._by_name[producer(node.input[0])]
        return node if node.name in self._values else None

    def _add(self, node: Any, op: str, inputs: Sequence[str]) -> Any:
        """Return a new node in place of another one."""
        made = self._graph_def.node.add()
        made.name, made.op, made.device = node.name, op, node.device
        made.input.extend(inputs)
        return made

    def _constant(self, node: Any, name: str, value: TensorValue) -> None:
        made = self._add(node, "Const", ())
        made.name = name
        made.attr["dtype"].type = value.dtype.number
        own = messages.AttrValue()
        write_attr(value, own)
        made.attr["value"].ParseFromString(own.SerializeToString())

    def _same(self, node: Any, variable: Any) -> None:
        """Write an Identity, of the variable or of its handle."""
        made = self._add(node, "Identity", node.input)
        made.attr["T"].CopyFrom(variable.attr["dtype"])

    def _shape(self, node: Any, variable: Any) -> None:
        made = self._add(node, "Shape", node.input)
        made.attr["T"].CopyFrom(variable.attr["dtype"])
        if "out_type" in node.attr:
            made.attr["out_type"].CopyFrom(node.attr["out_type"])

    def _gather(self, node: Any, variable: Any) -> None:
        axis = f"{node.name}/axis"
        self._constant(node, axis, make_value(0, int32))
        made = self._add(node, "GatherV2", [*node.input[:2], axis, *node.input[2:]])
        made.attr["Tparams"].CopyFrom(variable.attr["dtype"])
        made.attr["Tindices"].CopyFrom(node.attr["Tindices"])
        made.attr["Taxis"].type = int32.number
        if "batch_dims" in node.attr:
            made.attr["batch_dims"].CopyFrom(node.attr["batch_dims"])


_REWRITES: dict[str, Callable[[_Freezing, Any, Any], None]] = {
    "Identity": _Freezing._same,
    "ReadVariableOp": _Freezing._same,
    "VariableShape": _Freezing._shape,
    "ResourceGather": _Freezing._gather,
}


def _takes_reference(op_type: str) -> bool:
    """Return whether an op type changes the variable that is its first input."""
    inputs = op_def(op_type).inputs
    return bool(inputs) and inputs[0].is_ref


# ---- training nodes ----


def remove_training_nodes(input_graph: Any, protected_nodes: Iterable[str] = ()) -> Any:
    """Return a graph without the Identity, StopGradient and CheckNumerics nodes that do nothing.

    Those stay that are protected, that have control inputs or are control inputs, and with which
    others are colocated.

    Args:
        input_graph: a GraphDef message.
        protected_nodes: names of nodes to keep: inputs and outputs of the graph.
    """
    _check(input_graph, "remove_training_nodes")
    kept = {*(protected_nodes or ()), *_held(input_graph.node)}
    instead = {
        node.name: node.input[0]
        for node in input_graph.node
        if node.op in _PASSING and node.name not in kept
    }
    nodes = (node for node in input_graph.node if node.name not in instead)
    made = _with_nodes(input_graph, nodes)
    for node in made.node:
        node.input[:] = [_follow(each, instead) for each in node.input]
    return made


def _held(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the names of nodes on which the order or placement of others depends."""
    for node in nodes:
        controls = [each[1:] for each in node.input if each.startswith("^")]
        if controls:
            yield node.name
            yield from controls
        if "_class" in node.attr:
            groups = node.attr["_class"].list.s
            yield from (each.decode("utf-8", "replace").removeprefix("loc:@") for each in groups)


def _follow(reference: str, instead: Mapping[str, str]) -> str:
    while (name := reference.removesuffix(":0")) in instead:
        reference = instead[name]
    return reference


def tensor_shape_from_node_def_name(graph: Graph, input_name: str) -> TensorShape:
    """Return the static shape of the Tensor that an input of a NodeDef names: "a" or "a:1"."""
    name = input_name if ":" in input_name else f"{input_name}:0"
    return graph.get_tensor_by_name(name).shape
