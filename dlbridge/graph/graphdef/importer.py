"""import_graph_def: add the operations of a GraphDef to a graph, all of them or none."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.execution.backend import FRAMEWORKS
from dlbridge.graph.core import scopes
from dlbridge.graph.core.default_graph import get_default_graph
from dlbridge.graph.core.exporter import FRAMEWORK
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.inference import STEPS_OF_A_NODE
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.core.scopes import check_name, split_tensor_name
from dlbridge.graph.graphdef.nodes import (
    Node,
    Nodes,
    Source,
    check_names,
    merge_libraries,
    read,
    refusal,
    without_defaults,
)
from dlbridge.graph.ops.call import called_name
from dlbridge.proto.graph_bytes import load_graph_def
from dlbridge.proto.tensors import as_value
from dlbridge.signals import not_from_handler

__all__ = ["import_graph_def", "load_graph"]


MANY = 500
"""Nodes from which on a pause of the garbage collector pays."""


def import_graph_def(
    graph_def: Any,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str | bytes] | None = None,
    name: str | None = None,
    op_dict: None = None,  # noqa: ARG001  (TensorFlow ignores it as well)
    producer_op_list: Any = None,
    *,
    allowed_kernels: Collection[str] | None = None,
) -> list[Tensor | Operation] | None:
    """Add the operations of a GraphDef to the default graph.

    Args:
        graph_def: a GraphDef message, ours or TensorFlow's; its bytes (any buffer); its text; or
            the path of a file of either (`.pb`, `.pbtxt`). It is not changed. Large constants stay
            in its memory: do not write to a buffer that was given.
        input_map: what to use instead of inputs of that name: "a" or "a:1" to a Tensor or what
            `constant` takes, "^a" to a Tensor whose operation takes the place of a control input.
        return_elements: names to return: "a:0" is a Tensor, "a" an Operation.
        name: of the scope for all operations, "import" if None, made unique; "" is none; one with a
            trailing slash is used as it is. The current name scope, device, framework and control
            dependencies apply.
        op_dict: ignored, as in TensorFlow.
        producer_op_list: an OpList with the op types that the writer knew: unknown attributes with
            the defaults given there are dropped, those with other values refused. Without it, an
            attribute that the op type does not have is kept without effect, with a warning.
        allowed_kernels: the names of the kernels ("namespace::name") and the tokens of the Python
            functions that nodes may call when the graph runs; None is all that this process knows.
            For a graph from elsewhere, name those that it needs: `()` is none.

    Returns:
        The list of the `return_elements`, or None.

    Raises:
        TypeError: `graph_def`, `input_map` or `return_elements` has the wrong type.
        ValueError: the GraphDef is wrong; a name of `input_map` or `return_elements` is not in it;
            a node calls what is not in `allowed_kernels`.
        NotFoundError: it has an op type that we do not know.
        RuntimeError: the graph is finalized.
        After any of them the graph is as it was.

    Example:
        >>> import dlbridge.graph as tf
        >>> text = "node { name: 'a' op: 'NoOp' } node { name: 'b' op: 'NoOp' input: '^a' }"
        >>> with tf.Graph().as_default():
        ...     tf.import_graph_def(text, return_elements=["b"])[0].control_inputs
        (<tf.Operation 'import/a' type=NoOp>,)
    """
    allowed = _check_allowed(allowed_kernels)
    given = check_input_map(input_map)
    wanted = _check_return_elements(return_elements)
    message, contents = load_graph_def(graph_def)
    with _uninterrupted(len(message.node)):
        source = read(message, contents)
        check_calls(source.nodes, allowed)
        if producer_op_list is not None:
            source = without_defaults(source, producer_op_list)
        return _import(get_default_graph(), source, given, wanted, name)


def load_graph(graph_def: Any, *, allowed_kernels: Collection[str] | None = None) -> Graph:
    """Return a new Graph with the operations of a GraphDef, under their own names.

    Arguments and errors are those of `import_graph_def`.
    """
    graph = Graph()
    allowed = _check_allowed(allowed_kernels)
    message, contents = load_graph_def(graph_def)
    with _uninterrupted(len(message.node)):
        source = read(message, contents)
        check_calls(source.nodes, allowed)
        _import(graph, source, {}, None, "")
    return graph


def _check_allowed(allowed: Collection[str] | None) -> frozenset[str] | None:
    if allowed is None:
        return None
    if isinstance(allowed, str | bytes) or not all(isinstance(each, str) for each in allowed):
        raise UnsupportedTypeError(
            "import_graph_def: allowed_kernels must be a list of names such as "
            f"['my::kernel'], got {allowed!r}"
        )
    return frozenset(allowed)


def check_calls(nodes: Sequence[Node], allowed: frozenset[str] | None) -> None:
    """Raise ValueError where a node calls what it may not; None allows everything."""
    if allowed is None:
        return
    for node in nodes:
        name = called_name(node.type, node.attrs)
        if name is not None and name not in allowed:
            known = ", ".join(map(repr, sorted(allowed))) or "none"
            raise refusal(
                node.name,
                f"calls {name!r}, which allowed_kernels does not have (it has {known}); add the "
                "name if the graph may run this function",
                node.type,
            )


def _check_return_elements(return_elements: Sequence[str | bytes] | None) -> list[str] | None:
    if return_elements is None:
        return None
    wanted = list(return_elements)
    if not all(isinstance(each, str | bytes) for each in wanted):
        raise UnsupportedTypeError(
            f"Argument `return_elements` must be a list of strings. Obtained {wanted!r}."
        )
    text = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in wanted]
    for each in text:
        reference(each, "return_elements")
    return text


@contextmanager
def _uninterrupted(count: int) -> Iterator[None]:
    """Pause the garbage collector: an import makes many objects and no garbage.

    With a large framework loaded, a collection takes longer than an import of thousands of nodes.
    """
    if count < MANY or not gc.isenabled():
        yield
        return
    try:
        try:
            gc.disable()
            yield
        finally:
            gc.enable()
    finally:  # an interrupt may come before the first call
        gc.enable()


def _import(
    graph: Graph, source: Source, given: dict[str, Any], wanted: list[str] | None, name: str | None
) -> list[Tensor | Operation] | None:
    """Make all operations, then add them, with the graph locked."""
    source.versions.check()
    check_names(source.nodes)
    with graph._lock:
        graph._check_not_finalized()
        library = merge_libraries(graph.library, source.library)
        prefix, scope = _scope_name(graph, name)
        inputs = Inputs(graph, given, bool(prefix))
        nodes = [*inputs.constants.values(), *source.nodes]
        full = _full_names(graph, prefix, [node.name for node in nodes])
        graph._folding.steps += STEPS_OF_A_NODE * len(nodes)
        made = Nodes(graph, nodes, full, inputs, library)
        made.create()
        check_found(given, source.nodes, made.operations)
        found = None if wanted is None else [made.element(each) for each in wanted]
        place(graph, nodes, made.operations)
        if scope:
            graph.unique_name(scope)
        graph.insert(made.operations.values(), take_names=True)
        graph.versions = source.versions.merge(graph.versions)
        graph.library = library
    return found


# ---- names -------------------------------------------------------------------------------------


def _scope_name(graph: Graph, name: str | None) -> tuple[str, str]:
    """Return the prefix of an import with its slash, or "", and the name that it reserves.

    The name is to be passed to `Graph.unique_name` once the import has succeeded; "" reserves none.

    Raises:
        TypeError, ValueError: the name is not a string, or not a valid scope.
    """
    wanted = "import" if name is None else name
    if not isinstance(wanted, str):
        raise TypeError(f"import_graph_def: name must be a string or None, got {wanted!r}")
    if not wanted:
        return "", ""
    scope = graph._scopes.state.name
    check_name(wanted, scope, "import_graph_def")
    if wanted[-1] == "/":
        return wanted, ""
    return f"{graph.unique_name(wanted, mark_as_used=False)}/", wanted


def _full_names(graph: Graph, prefix: str, nodes: Sequence[str]) -> list[str]:
    """Return a name for each node that no operation of the graph has, and no scope of one.

    Capital letters count: operations whose names differ only in them may come from a GraphDef.
    """
    full = [prefix + name for name in nodes]
    taken = graph._by_name
    if not taken:
        return full
    scopes = _Scopes(name for name in taken if name.startswith(prefix))
    if taken.keys().isdisjoint(full) and not any(name in scopes for name in full):
        return full
    own, own_scopes = set(full), _Scopes(full)
    found = []
    for name in full:
        unique, count = name, 0
        while (
            unique in taken
            or unique in scopes
            or (count and (unique in own or unique in own_scopes))
        ):
            count += 1
            unique = f"{name}_{count}"
        own.add(unique)
        found.append(unique)
    return found


class _Scopes:
    """The scopes in which names stand, however many there are in one name."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)

    def __contains__(self, name: str) -> bool:
        begin = f"{name}/"
        at = bisect_left(self.names, begin)
        return at < len(self.names) and self.names[at].startswith(begin)


# ---- input_map: replacements of inputs of the imported graph -------------------------------------


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
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


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


# ---- placement: devices, frameworks, colocation, control dependencies ----------------------------

COLOCATION = "_class"
GROUP = b"loc:@"


def place(graph: Graph, nodes: Sequence[Node], operations: Mapping[str, Operation]) -> None:
    """Set devices, frameworks and control inputs from the nodes and the current scope.

    Raises:
        ValueError: an invalid device string; an unknown framework; colocation with a node that is
            not in the GraphDef.
    """
    scope = graph._scopes.state
    controls = [op for each in scope.dependencies for op in each.inputs]
    colocated = []
    for node in nodes:
        op = operations[node.name]
        op.framework = scope.framework
        op.device = "" if scope.is_plain and not node.device else _device(op, node, scope)
        if controls:
            op.control_inputs = tuple(dict.fromkeys([*op.control_inputs, *controls]))
        if FRAMEWORK in op.attrs:
            _read_framework(op, node)
        if COLOCATION in op.attrs:
            colocated.append((op, _colocate(op, node, operations)))
    for op, others in colocated:
        if others:
            op.device = ""
    for op, others in colocated:
        op.device = next((each.device for each in others if each.device), op.device)
    if scope.colocation:
        groups = scopes.colocation_groups(scope)
        for op in operations.values():
            op.attrs = {**op.attrs, COLOCATION: groups}
            op.device = scopes.colocated(scope, op.device)


def _device(op: Operation, node: Node, scope: scopes.Scope) -> str:
    """Return the device of a node within blocks; the node takes precedence."""
    try:
        own = scopes.canonical_device(node.device)
    except not_from_handler(ValueError) as error:
        raise refusal(node.name, str(error), node.type) from error
    if scope.device is not None:
        return scopes.merge_devices(scope.device, own)
    return scopes.place(op, scope._replace(devices=(*scope.devices, own), colocation=()))


def _read_framework(op: Operation, node: Node) -> None:
    """Turn the attribute into the operation's framework."""
    value = op.attrs[FRAMEWORK]
    name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if name not in FRAMEWORKS:
        known = ", ".join(FRAMEWORKS)
        raise refusal(
            node.name, f"attribute {FRAMEWORK!r} is {name!r}; known are {known}", node.type
        )
    op.framework = name
    op.attrs = {key: value for key, value in op.attrs.items() if key != FRAMEWORK}


def _colocate(op: Operation, node: Node, operations: Mapping[str, Operation]) -> list[Operation]:
    """Return the operations to colocate with, after renaming the groups to their new names."""
    groups = op.attrs[COLOCATION]
    if not isinstance(groups, list) or not all(isinstance(each, bytes) for each in groups):
        return []
    members = [each for each in groups if each.startswith(GROUP)]
    others = {each: _colocated(each, node, operations) for each in members}
    renamed = [GROUP + others[each].name.encode() if each in others else each for each in groups]
    op.attrs = {**op.attrs, COLOCATION: renamed}
    return list(others.values())


def _colocated(group: bytes, node: Node, operations: Mapping[str, Operation]) -> Operation:
    name = group.removeprefix(GROUP).decode("utf-8", "replace")
    if name not in operations:
        raise refusal(
            node.name, f"it expects to be colocated with unknown node {name!r}", node.type
        )
    return operations[name]
