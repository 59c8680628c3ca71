"""The default graph of a thread, and the functions that act on it: operations, scopes, seeds."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from dlbridge.graph.core.construction import prepare
from dlbridge.graph.core.defaults import GRAPHS, DefaultBlock
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.opdef import OpDef, op_def
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.scopes import Block, DeviceFunction
from dlbridge.graph.core.tensor import Tensor

__all__ = [
    "colocate_with",
    "control_dependencies",
    "device",
    "framework",
    "get_default_graph",
    "get_seed",
    "name_scope",
    "reset_default_graph",
    "set_random_seed",
]

_LARGEST_SEED = 2**31 - 1
DEFAULT_GRAPH_SEED = 87654321
"""The graph's seed where only the operation has one, as in TensorFlow."""

_MOST_SETTLED = 256  # combinations of dtypes and attributes that an OpDef remembers
_GLOBAL = threading.local()


def get_default_graph() -> Graph:
    """Return the innermost graph of `as_default()`, or this thread's own global one."""
    items = GRAPHS.items
    if items:
        graph: Graph = items[-1]
        return graph
    found = getattr(_GLOBAL, "graph", None)
    if found is None:
        found = _GLOBAL.graph = Graph()
    return found


def reset_default_graph() -> None:
    """Replace the global default graph of this thread by an empty one.

    Raises:
        AssertionError: within `Graph.as_default()`.
    """
    if GRAPHS.items:
        raise AssertionError(
            "Do not use reset_default_graph() to clear nested graphs: leave the `with` block first"
        )
    _GLOBAL.graph = Graph()


def graph_of(inputs: Iterable[Any]) -> Graph:
    """Return the graph of the Tensors and Variables among `inputs`, or the default graph.

    Raises:
        ValueError: they are from several graphs.
    """
    found = _first_of(inputs, None)
    return get_default_graph() if found is None else found.graph


def _first_of(inputs: Iterable[Any], first: Any) -> Any:
    """Return the first element of a graph; raise if a later one is of another graph."""
    for each in inputs:
        if isinstance(each, list | tuple):
            first = _first_of(each, first)
        elif isinstance(each, Tensor | Operation) or hasattr(each, "_as_graph_tensor"):
            if first is None:
                first = each
            elif first.graph is not each.graph:
                raise ValueError(
                    f"{each!r} must be from the same graph as {first!r} "
                    f"(graphs are {each.graph} and {first.graph})."
                )
    return first


# ---- operations -----


def apply(
    op_type: str,
    inputs: Sequence[Any] = (),
    attrs: dict[str, Any] | None = None,
    name: str | None = None,
) -> Operation:
    """Create an operation.

    Args:
        op_type: a name in the registry.
        inputs: one entry for each input of the OpDef, a sequence for a list: Tensors, or what
            `constant` takes.
        attrs: attributes, decoded; those that follow from the inputs may be left out.
        name: of the operation, in the current scope; None is the op type.

    Raises:
        TypeError: dtypes that do not agree; an input that cannot become a Tensor.
        ValueError: an invalid attribute or shape; tensors of several graphs.
    """
    definition = op_def(op_type)
    graph, key = _recognise(definition, inputs, attrs)
    if graph is None:
        graph = graph_of(inputs if key is None else ())
    full = graph.operation_name(name or op_type)
    found = definition.settled.get(key)
    if found is not None:
        return graph.add(definition, tuple(inputs), found[0], full, found[1])
    made = prepare(graph, definition, full, inputs, attrs or {})
    if key is not None and len(definition.settled) < _MOST_SETTLED:
        definition.settled[key] = made.attrs, made.output_types
    return graph.add(definition, made.inputs, made.attrs, full, made.output_types)


def _recognise(
    definition: OpDef, inputs: Sequence[Any], attrs: dict[str, Any] | None
) -> tuple[Graph | None, Hashable | None]:
    """Return the graph, and a key that determines all attributes: dtypes of inputs, given values.

    The key is None where they do not suffice: for lists, and inputs that must be converted.
    """
    if not definition.is_plain:
        return None, None
    graph: Graph | None = None
    types = []
    for each in inputs:
        if type(each) is not Tensor:
            return None, None
        types.append(each.dtype)
        if graph is None:
            graph = each.op.graph
        elif each.op.graph is not graph:
            return None, None
    key = tuple(types)
    if not attrs:
        return graph, key
    if not definition.is_keyed:
        return None, None
    full = (key, *attrs.items())
    try:
        hash(full)
    except TypeError:  # a list
        return None, None
    return graph, full


# ---- scopes ----


class name_scope:  # noqa: N801
    """A `with` block in which new operations are named under a scope.

    Args:
        name: of the scope, made unique; with a slash at the end it is entered again as it is. None
            is `default_name`, or without one the root; so is "".
        default_name: the name where `name` is None.
        values: the Tensors that a function was passed: their graph becomes the default one.

    The block returns the full name, with a slash at the end.

    Raises:
        TypeError: `default_name` is not a string.
        ValueError: `values` without a name; Tensors of several graphs; invalid characters.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.name_scope("layer") as scope:
        ...     print(scope, tf.no_op().name)
        layer/ layer/NoOp
    """

    def __init__(
        self, name: str | None, default_name: str | None = None, values: Any = None
    ) -> None:
        if not (default_name is None or isinstance(default_name, str)):
            raise TypeError(
                f"name_scope: default_name must be a string or None, got {default_name!r}; values "
                "is the third argument"
            )
        self._name = default_name if name is None else name
        self._values = values
        self._entered: list[tuple[DefaultBlock, Block]] = []

    @property
    def name(self) -> str | None:
        """The requested name."""
        return self._name

    def __enter__(self) -> str:
        if self._name is None and self._values is not None:
            raise ValueError(
                "At least one of name (None) and default_name (None) must be provided."
            )
        graph = get_default_graph() if self._values is None else graph_of(self._values)
        default, block = graph.as_default(), graph.name_scope(self._name)
        default.__enter__()
        try:
            name: str = block.__enter__()
        except BaseException:
            default.__exit__()
            raise
        self._entered.append((default, block))
        return name

    def __exit__(self, *details: object) -> None:
        default, block = self._entered.pop()
        block.__exit__()
        default.__exit__()


def device(device_name_or_function: str | DeviceFunction | None) -> Block:
    """Return a block of the default graph whose operations are placed on a device.

    See `Graph.device`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.device("/job:w/gpu:1"), tf.device("/cpu:*"):
        ...     print(tf.no_op().device)
        /job:w/device:CPU:1
    """
    return get_default_graph().device(device_name_or_function)


def framework(name: str | None) -> Block:
    """Return a block of the default graph whose operations run in a framework.

    Args:
        name: "numpy", "torch", "jax", "cupy", or None for that of the session.

    Raises:
        ValueError: the framework cannot run operations.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.framework("torch"):
        ...     print(tf.no_op().framework)
        torch
    """
    return get_default_graph().framework(name)


def colocate_with(op: Any, ignore_existing: bool = False) -> Block:
    """Return a block of the default graph whose operations are placed where `op` is."""
    return get_default_graph().colocate_with(op, ignore_existing)


def control_dependencies(control_inputs: Iterable[Any] | None) -> Block:
    """Return a block of the default graph whose operations run after all of `control_inputs`.

    See `Graph.control_dependencies`. An operation that takes one of them as data, or a tensor that
    was created in the block, waits already and gets no other edge.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     first = tf.no_op("first")
        ...     with tf.control_dependencies([first]):
        ...         print(tf.no_op("second").control_inputs)
        (<tf.Operation 'first' type=NoOp>,)
    """
    return get_default_graph().control_dependencies(control_inputs)


# ---- seeds -------------------------------------------------------------------------------------


def set_random_seed(seed: int) -> None:
    """Set the seed of the default graph; random operations created from now on depend on it."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> Sequence[int | None]:
    """Return the two seeds of a random operation.

    Args:
        op_seed: the operation's own, or None.

    Returns:
        (graph seed, operation seed): an operation without a seed uses the number of operations in
        the graph; (None, None) where neither has one.
    """
    graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    seeds = (
        DEFAULT_GRAPH_SEED if graph.seed is None else graph.seed % _LARGEST_SEED,
        (len(graph._operations) if op_seed is None else op_seed) % _LARGEST_SEED,
    )
    return (0, _LARGEST_SEED) if seeds == (0, 0) else seeds
