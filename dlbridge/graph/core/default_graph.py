"""The default graph of a thread, and the functions that act on it.

They create operations and constants, enter scopes, set seeds, and keep collections.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core import values
from dlbridge.graph.core.construction import add_constant, as_graph_tensor, holds_tensors, prepare
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.opdef import OpDef, op_def
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.core.scopes import GRAPHS, Block, DefaultBlock, DeviceFunction
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import TensorValue
from dlbridge.shape import TensorShape, as_shape
from dlbridge.signals import not_from_handler

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
    "constant",
    "convert_to_tensor",
    "GraphKeys",
    "add_to_collection",
    "add_to_collections",
    "get_collection",
    "get_collection_ref",
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
    except not_from_handler(TypeError):  # a list
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
        self._entered: list[tuple[DefaultBlock[Graph], Block]] = []

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
        try:
            block.__exit__()
        finally:
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


# ---- constants -----------------------------------------------------------------------------------


def constant(
    value: Any,
    dtype: object = None,
    shape: object = None,
    name: str | None = "Const",
    verify_shape: bool = False,
) -> Tensor:
    r"""Create a constant in the default graph.

    Args:
        value: a number, text, nested lists of these, an array, or a tensor of any framework. It is
            copied, once.
        dtype: what `as_dtype` takes. Without it, Python's floats are float32 and its ints int32,
            or int64 where that does not hold them; arrays and tensors keep theirs.
        shape: of the result: as many elements as `value` has, or any number where it has one,
            which is then repeated (and stored once).
        name: of the operation; None is "Const".
        verify_shape: refuse a `shape` that is not that of `value`.

    Raises:
        ValueError: None; numbers that the dtype does not hold; a shape that does not fit; ragged
            lists.
        TypeError: an object without a value, such as a symbolic Tensor; a dtype that the value
            cannot be converted to.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     print(tf.constant([1, 2]), tf.constant(0.5, shape=[2, 3]), sep="\n")
        Tensor("Const:0", shape=(2,), dtype=int32)
        Tensor("Const_1:0", shape=(2, 3), dtype=float32)
    """
    graph = get_default_graph()
    kind = None if dtype is None else as_dtype(dtype).base_dtype
    made = values.make_value(value, kind, "constant")
    if shape is not None:
        made = _reshape(made, as_shape(shape), verify_shape)
    return add_constant(graph, made, graph.operation_name("Const" if name is None else name))


def _reshape(value: TensorValue, shape: TensorShape, verify: bool) -> TensorValue:
    """Return a value with another shape, one element repeated."""
    if not shape.is_fully_defined():
        raise ArgumentError(f"constant: shape must be fully known, got {shape}")
    dims: tuple[int, ...] = shape.dims  # type: ignore[assignment]
    size = shape.num_elements()
    if verify and value.shape != dims:
        raise UnsupportedTypeError(
            f"constant: Expected Tensor's shape: {dims}, got {value.shape}; verify_shape is True"
        )
    if value.size == size:
        return TensorValue(value.dtype, value.array.reshape(dims))
    if value.size != 1:
        raise ArgumentError(
            f"constant: {value.size} elements do not fill shape {shape}, which has {size}; "
            "only a single one is repeated"
        )
    return TensorValue(value.dtype, np.broadcast_to(value.array.reshape(()), dims))


def convert_to_tensor(
    value: Any,
    dtype: object = None,
    name: str | None = None,
    preferred_dtype: object = None,
    dtype_hint: object = None,
) -> Tensor:
    """Return `value` as a Tensor: itself, a Variable's value, or a new constant.

    Args:
        value: what `constant` takes, a Tensor, a Variable, or lists with Tensors in them, which
            are packed.
        dtype: that it must have, or None.
        name: of an operation that is created.
        preferred_dtype: the dtype that it has if it can.
        dtype_hint: the same, under its newer name.

    Raises:
        ValueError: a Tensor of another dtype; see `constant`.
        TypeError: see `constant`.
    """
    kind = None if dtype is None else as_dtype(dtype).base_dtype
    hint = preferred_dtype if dtype_hint is None else dtype_hint
    if isinstance(value, Tensor):
        return _checked(value, kind)
    graph = graph_of((value,))
    if hasattr(value, "_as_graph_tensor"):  # a Variable, which is read in the current scope
        return _checked(value._as_graph_tensor(kind), kind)
    default = "packed" if holds_tensors(value) else "Const"
    where = "convert_to_tensor"
    if kind is None and hint is not None and not holds_tensors(value):
        try:
            made = values.make_value(value, as_dtype(hint), where)
        except not_from_handler(TypeError, ValueError):
            made = values.make_value(value, None, where)
        return add_constant(graph, made, graph.operation_name(name or default))
    full = graph.operation_name(name or default)
    return _checked(as_graph_tensor(value, kind, graph, f"{full}/", where), kind)


def _checked(tensor: Tensor, dtype: DataType | None) -> Tensor:
    if dtype is not None and tensor.dtype.base_dtype is not dtype:
        raise ValueError(
            f"Tensor conversion requested dtype {dtype.name} for Tensor with dtype "
            f"{tensor.dtype.name}: {tensor!r}"
        )
    return tensor


# ---- collections ---------------------------------------------------------------------------------


class GraphKeys:
    """The names of the collections that TensorFlow's own functions use."""

    ACTIVATIONS = "activations"
    ASSET_FILEPATHS = "asset_filepaths"
    BIASES = "biases"
    CONCATENATED_VARIABLES = "concatenated_variables"
    COND_CONTEXT = "cond_context"
    EVAL_STEP = "eval_step"
    GLOBAL_STEP = "global_step"
    GLOBAL_VARIABLES = "variables"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    LOCAL_RESOURCES = "local_resources"
    LOCAL_VARIABLES = "local_variables"
    LOSSES = "losses"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    QUEUE_RUNNERS = "queue_runners"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    READY_OP = "ready_op"
    REGULARIZATION_LOSSES = "regularization_losses"
    RESOURCES = "resources"
    SAVEABLE_OBJECTS = "saveable_objects"
    SAVERS = "savers"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    TABLE_INITIALIZERS = "table_initializer"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    TRAIN_OP = "train_op"
    UPDATE_OPS = "update_ops"
    VARIABLES = "variables"
    WEIGHTS = "weights"
    WHILE_CONTEXT = "while_context"


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
