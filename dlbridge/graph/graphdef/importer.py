"""import_graph_def: add the operations of a GraphDef to a graph, all of them or none."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.core import names
from dlbridge.graph.core.default_graph import get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.graphdef.input_map import Inputs, check_found, check_input_map, reference
from dlbridge.graph.graphdef.nodes import Nodes, check_names
from dlbridge.graph.graphdef.placement import place
from dlbridge.graph.graphdef.source import Source, merge_libraries, read, without_defaults
from dlbridge.proto.graph_bytes import load_graph_def

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
            the defaults given there are dropped.

    Returns:
        The list of the `return_elements`, or None.

    Raises:
        TypeError: `graph_def`, `input_map` or `return_elements` has the wrong type.
        ValueError: the GraphDef is wrong; a name of `input_map` or `return_elements` is not in it.
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
    given = check_input_map(input_map)
    wanted = _check_return_elements(return_elements)
    message, contents = load_graph_def(graph_def)
    with _uninterrupted(len(message.node)):
        source = read(message, contents)
        if producer_op_list is not None:
            source = without_defaults(source, producer_op_list)
        return _import(get_default_graph(), source, given, wanted, name)


def load_graph(graph_def: Any) -> Graph:
    """Return a new Graph with the operations of a GraphDef, under their own names.

    Arguments and errors are those of `import_graph_def`.
    """
    graph = Graph()
    message, contents = load_graph_def(graph_def)
    with _uninterrupted(len(message.node)):
        _import(graph, read(message, contents), {}, None, "")
    return graph


def _check_return_elements(return_elements: Sequence[str | bytes] | None) -> list[str] | None:
    if return_elements is None:
        return None
    wanted = list(return_elements)
    if not all(isinstance(each, str | bytes) for each in wanted):
        raise UnsupportedTypeError(
            f"Argument `return_elements` must be a list of strings. Obtained {wanted!r}."
        )
    text = [each.decode() if isinstance(each, bytes) else each for each in wanted]
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
    names.check(wanted, scope, "import_graph_def")
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
    scopes = _scopes(taken, prefix)
    if taken.keys().isdisjoint(full) and scopes.isdisjoint(full):
        return full
    own = {*full, *_scopes(full, "")}
    return [_unique(name, taken, scopes, own) for name in full]


def _unique(name: str, taken: dict[str, Any], scopes: set[str], own: set[str]) -> str:
    found, count = name, 0
    while found in taken or found in scopes or (count and found in own):
        count += 1
        found = f"{name}_{count}"
    own.add(found)
    return found


def _scopes(full: Iterable[str], prefix: str) -> set[str]:
    """Return the scopes in which names stand, of those that begin with a prefix."""
    found: set[str] = set()
    for name in full:
        if not name.startswith(prefix):
            continue
        end = name.rfind("/")
        while end > 0 and name[:end] not in found:
            found.add(name[:end])
            end = name.rfind("/", 0, end)
    return found
