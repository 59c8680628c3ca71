"""The `input_map` of an import: replacements of inputs of the imported graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core.names import split_tensor_name
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.graphdef.source import Node
from dlbridge.proto.tensors import as_value

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph


def check_input_map(input_map: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Return an `input_map` with its keys in one form: "a" for "a:0".

    Raises:
        TypeError: it is not a mapping of names.
        ValueError: a key is not the name of a tensor.
    """
    if input_map is None:
        return {}
    if not isinstance(input_map, Mapping):
        raise UnsupportedTypeError(
            "Argument `input_map` must be a dictionary. Obtained " + type(input_map).__name__
        )
    if not all(isinstance(key, str | bytes) for key in input_map):
        raise UnsupportedTypeError(
            f"All keys for argument `input_map` must be strings. Obtained keys: {list(input_map)}"
        )
    return {reference(_text(key), "input_map"): value for key, value in input_map.items()}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def reference(name: str, argument: str) -> str:
    """Return the name of a tensor as inputs of nodes have it; ValueError if it is none."""
    if name[0:1] == "^" or ":" not in name:
        return name
    parts = split_tensor_name(name)
    if parts is None:
        raise ArgumentError(
            f"import_graph_def: {argument} has {name!r}, not the name of a tensor, such as "
            '"a:0", or of an operation, such as "a"'
        )
    return f"{parts[0]}:{parts[1]}" if parts[1] else parts[0]


class Inputs:
    """Replacements of inputs, checked; constants among them are nodes still to be created.

    Attributes:
        names: the names that are replaced, in all forms: "a" and "a:0".
        tensors: the Tensor for each data input.
        operations: the Operation for each control input, "^a".
        constants: a Node for each value that is not a Tensor, by the name that it replaces.

    Raises:
        ValueError: a Tensor of another graph; a value without a scope for its constant.
    """

    def __init__(self, graph: Graph, given: Mapping[str, Any], has_scope: bool) -> None:
        self.names = {*given, *(f"{name}:0" for name in given if ":" not in name)}
        self.tensors: dict[str, Tensor] = {}
        self.operations: dict[str, Operation] = {}
        self.constants: dict[str, Node] = {}
        for name, value in given.items():
            made = _convert(value)
            if not isinstance(made, Tensor | Operation):
                self._add_constant(name, made, has_scope)
            elif made.graph is not graph:
                raise ArgumentError(
                    f"import_graph_def: input_map has {made!r} for {name!r}, which is not of the "
                    "graph that is imported into"
                )
            else:
                self.map(name, made)

    def map(self, name: str, made: Tensor | Operation) -> None:
        """Map a name to a Tensor, or that of a control input to an Operation."""
        if name[0:1] == "^":
            self.operations[name] = made.op if isinstance(made, Tensor) else made
        elif isinstance(made, Operation):
            raise UnsupportedTypeError(
                f"import_graph_def: input_map has the Operation {made.name!r} for {name!r}; only "
                'a control input, such as "^a", can be replaced by one'
            )
        else:
            self.tensors[name] = made

    def _add_constant(self, name: str, value: Any, has_scope: bool) -> None:
        if not has_scope:
            raise ArgumentError(
                "import_graph_def: a non-empty `name` is required if `input_map` contains values "
                f"that are not Tensors, such as {value!r} for {name!r}; or call tf.constant first"
            )
        made = as_value(value)
        count = len(self.constants)
        node = f"_inputs/Const_{count}" if count else "_inputs/Const"
        self.constants[name] = Node(node, "Const", (), "", {"value": made, "dtype": made.dtype})


def _convert(value: Any) -> Any:
    """Return the Tensor of a Variable; anything else as it is."""
    convert = getattr(value, "_as_graph_tensor", None)
    return value if convert is None else convert()


def check_found(
    given: Mapping[str, Any], nodes: Sequence[Node], made: Mapping[str, Operation]
) -> None:
    """Raise ValueError where a name of `input_map` is neither in the graph nor used.

    Args:
        given: what `check_input_map` returned.
        nodes: of the GraphDef.
        made: the operation of each node, by its name.
    """
    missing = []
    for name in given:
        node, index = split_tensor_name(name) or (name.removeprefix("^"), 0)
        op = made.get(node)
        if op is None or (name[0] != "^" and index >= len(op.outputs)):
            missing.append(name)
    used = {each for node in nodes for each in node.inputs} if missing else set()
    missing = sorted(set(missing) - used)
    if missing:
        raise ArgumentError(
            f"Attempted to map inputs that were not found in graph_def: [{', '.join(missing)}]"
        )
