"""Scopes and collections of the default graph, as functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlbridge.graph.core.defaults import Entering
from dlbridge.graph.core.graph import get_default_graph, graph_of
from dlbridge.graph.core.scopes import Block, DeviceFunction

__all__ = [
    "add_to_collection",
    "add_to_collections",
    "colocate_with",
    "control_dependencies",
    "device",
    "framework",
    "get_collection",
    "get_collection_ref",
    "get_seed",
    "name_scope",
    "set_random_seed",
]

_LARGEST_SEED = 2**31 - 1
DEFAULT_GRAPH_SEED = 87654321
"""What stands for the graph's seed where only the operation has one, as in TensorFlow."""


class name_scope:  # noqa: N801
    """A `with` block in which new operations are named under a scope.

    Args:
        name: of the scope, made unique; with a slash at the end it is entered again as it is. None
            is `default_name`, or without one the root; so is "".
        default_name: the name where `name` is None.
        values: the Tensors that a function was passed: their graph becomes the default one.

    The block returns the full name, with a slash at the end.

    Raises:
        TypeError: `default_name` is no string.
        ValueError: `values` without a name; Tensors of several graphs; characters no name has.

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
        self._entered: list[tuple[Entering, Block]] = []

    @property
    def name(self) -> str | None:
        """The name that was asked for."""
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
        ValueError: no framework that runs nodes.

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

    See `Graph.control_dependencies`. An operation that takes one of them as data, or something
    that was created in the block, waits already and gets no edge more.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     first = tf.no_op("first")
        ...     with tf.control_dependencies([first]):
        ...         print(tf.no_op("second").control_inputs)
        (<tf.Operation 'first' type=NoOp>,)
    """
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: Any, value: Any) -> None:
    """Append a value to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Any, value: Any) -> None:
    """Append a value to one or several collections of the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """Return a copy of a collection of the default graph; see `Graph.get_collection`."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Any) -> list[Any]:
    """Return a collection of the default graph itself, a list that changes with it."""
    return get_default_graph().get_collection_ref(key)


# ---- seeds -------------------------------------------------------------------------------------


def set_random_seed(seed: int) -> None:
    """Set the seed of the default graph; random operations created from now on depend on it."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> Sequence[int | None]:
    """Return the two seeds of a random operation.

    Args:
        op_seed: the operation's own, or None.

    Returns:
        (graph seed, operation seed): without one for the operation the number of operations in
        the graph stands for it; (None, None) where there is no seed at all.
    """
    graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    seeds = (
        DEFAULT_GRAPH_SEED if graph.seed is None else graph.seed % _LARGEST_SEED,
        (len(graph._operations) if op_seed is None else op_seed) % _LARGEST_SEED,
    )
    return (0, _LARGEST_SEED) if seeds == (0, 0) else seeds
