"""Constants, placeholders, identity, no-op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlbridge.graph.core.default_graph import (
    apply,
    control_dependencies,
    convert_to_tensor,
    device,
    get_default_graph,
    name_scope,
)
from dlbridge.graph.core.graph import Graph, operation_of
from dlbridge.graph.core.inference import (
    Inference,
    constant_value,
    nothing,
    partial_value,
    unchanged,
)
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.ops.call import py_func
from dlbridge.graph.ops.shared import Shapes, define
from dlbridge.graph.ops.sparse_tensor import IndexedSlices, SparseTensor
from dlbridge.proto.datatypes import as_dtype
from dlbridge.shape import as_shape

__all__ = [
    "disable_eager_execution", "disable_v2_behavior", "executing_eagerly", "get_static_value",
    "group", "guarantee_const", "identity", "is_tensor", "no_op", "numpy_function", "placeholder",
    "placeholder_with_default", "stop_gradient", "tuple",
]  # fmt: skip


# ==== op types ====================================================================================


def _placeholder(c: Inference) -> Shapes:
    return [c.attrs["shape"].dims]


def _placeholder_with_default(c: Inference) -> Shapes:
    shape = c.attrs["shape"]
    if not shape.is_compatible_with(c.dims(0)):
        raise c.error(f"The default does not fit the shape {shape}")
    return [shape.dims]


define(
    "Const(*, value: tensor, dtype: type) -> output: dtype",
    shape=lambda c: [c.attrs["value"].shape],
)
define("Placeholder(*, dtype: type, shape: shape = <unknown>) -> output: dtype", shape=_placeholder)
define(
    "PlaceholderWithDefault(input: dtype, *, dtype: type, shape: shape) -> output: dtype",
    shape=_placeholder_with_default,
)
define("Identity(input: T) -> output: T", shape=unchanged)
define("StopGradient(input: T) -> output: T", shape=unchanged)
define('PreventGradient(input: T, *, T: type, message: string = "") -> output: T', shape=unchanged)
define("Snapshot(input: T) -> output: T", shape=unchanged)
define("NoOp()", shape=nothing)


define("GuaranteeConst(input: T) -> output: T", shape=unchanged, stateful=True)


# ==== functions ===================================================================================


def placeholder(dtype: object, shape: object = None, name: str | None = None) -> Tensor:
    """Create a tensor whose value is fed in each run.

    Args:
        dtype: what `as_dtype` takes.
        shape: the static shape; None is unknown.
        name: of the operation.

    Raises:
        InvalidArgumentError: a run needs it and was not fed a value.
    """
    attrs = {"dtype": as_dtype(dtype), "shape": as_shape(shape)}
    return apply("Placeholder", (), attrs, name).outputs[0]


def placeholder_with_default(input: Any, shape: object, name: str | None = None) -> Tensor:
    """Create a tensor that has the value of `input` in runs that are not fed another.

    Args:
        input: a Tensor, or what `constant` takes.
        shape: the static shape; that of `input` must fit it.
        name: of the operation.

    Raises:
        ValueError: the shape of `input` does not fit.
    """
    attrs = {"shape": as_shape(shape)}
    return apply("PlaceholderWithDefault", (input,), attrs, name).outputs[0]


def identity(input: Any, name: str | None = None) -> Any:
    """Return a new Tensor of the same value; a SparseTensor or IndexedSlices of one of them."""
    return _alike("Identity", input, name)


def stop_gradient(input: Any, name: str | None = None) -> Any:
    """Return the same value, as `identity` does, that counts as a constant in gradients."""
    return _alike("StopGradient", input, name)


def _alike(op_type: str, value: Any, name: str | None) -> Any:
    """Return what an operation of one Tensor makes of a Tensor, or of each part of a sparse one."""
    if not isinstance(value, SparseTensor | IndexedSlices):
        return apply(op_type, (value,), None, name).outputs[0]
    return type(value)(*[apply(op_type, (part,), None, name).outputs[0] for part in value.parts])


def no_op(name: str | None = None) -> Operation:
    """Create an operation that does nothing."""
    return apply("NoOp", (), None, name)


def group(*inputs: Any, name: str | None = None) -> Operation:
    """Create an operation that is done when all of `inputs` are.

    Args:
        *inputs: Operations, Tensors, SparseTensors, IndexedSlices, Variables, None, or lists of
            them.
        name: of the operation, "group_deps" by default.

    Raises:
        TypeError: something else.
        ValueError: of several graphs.
    """
    found = _flatten(inputs)
    graph = _graph_of(found)
    with graph.as_default(), name_scope(name, "group_deps") as scope:
        ops = [_operation(graph, each) for each in found]
        by_device: dict[str, list[Operation]] = {}
        for op in ops:
            by_device.setdefault(op.device, []).append(op)
        if len(by_device) <= 1:
            return _gate(by_device, scope)
        # One for each device, so that few signals cross between devices.
        parts = [_gate({where: by_device[where]}, None) for where in sorted(by_device)]
        with control_dependencies(parts):
            return no_op(scope)


def _gate(by_device: dict[str, list[Operation]], name: str | None) -> Operation:
    """Create what waits for the operations of one device, there."""
    for where, ops in by_device.items():
        with device(where), control_dependencies(ops):
            return no_op(name)
    return no_op(name)


def tuple(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Sequence[Any] | None = None
) -> list[Any]:
    """Return tensors of the same values, none of which is there before all are.

    Args:
        tensors: Tensors, SparseTensors, IndexedSlices, Operations (which are only waited for) and
            None.
        name: prefix of the operations, "tuple" by default.
        control_inputs: what else to wait for.

    Raises:
        ValueError: there is no Tensor or Operation among them.
        TypeError: something else among `control_inputs`.
    """
    found = [each for each in tensors if each is not None]
    if not found:
        raise ValueError(f"Must have at least one Tensor: tuple got {tensors!r}")
    graph = _graph_of(found)
    with graph.as_default(), name_scope(name, "tuple"):
        gates = [_operation(graph, each) for each in _flatten([*found, *(control_inputs or ())])]
        with control_dependencies([group(*gates)]):
            return [_gated(each) for each in tensors]


def _gated(item: Any) -> Any:
    if item is None or isinstance(item, Operation):
        return None
    return identity(item, "control_dependency")


def _flatten(items: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for each in items:
        if isinstance(each, list) or type(each) is _tuple:
            out += _flatten(each)
        elif isinstance(each, dict):
            out += _flatten([each[key] for key in sorted(each)])
        elif isinstance(each, SparseTensor | IndexedSlices):
            out += each.parts
        elif each is not None:
            out.append(each)
    return out


_tuple = ().__class__  # the name `tuple` is taken above


def _graph_of(items: Sequence[Any]) -> Graph:
    graph: Graph | None = next((each.graph for each in items if hasattr(each, "graph")), None)
    return graph or get_default_graph()


def _operation(graph: Graph, item: Any) -> Operation:
    """Return the operation behind an element of a graph."""
    return operation_of(graph, item)


def guarantee_const(input: Any, name: str | None = None) -> Tensor:
    """Return the same tensor, of which the caller promises that it never changes."""
    return apply("GuaranteeConst", (input,), None, name).outputs[0]


# ==== the environment =============================================================================


def executing_eagerly() -> bool:
    """Return False: operations are always added to a graph here."""
    return False


def disable_eager_execution() -> None:
    """Do nothing: operations are always added to a graph here."""


def disable_v2_behavior() -> None:
    """Do nothing: this is always version 1 here."""


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a Tensor, or a Variable or SparseTensor of a graph."""
    return isinstance(x, Tensor) or hasattr(x, "_as_graph_tensor") or hasattr(x, "dense_shape")


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """Return the value that a Tensor has in every run, or None where it is not known.

    Args:
        tensor: a Tensor, or what `constant` takes.
        partial: return vectors of integers of which some elements are known, None for the others.

    Returns:
        A read-only NumPy array; a value fed in its place counts in that run only.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     x = tf.placeholder(tf.float32, [2, 3])
        ...     print(tf.get_static_value(tf.shape(x)[1] * 2), tf.get_static_value(x))
        6 None
    """
    tensor = convert_to_tensor(tensor)
    if partial:
        return partial_value(tensor)
    return constant_value(tensor)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] = (),
    Tout: Any = None,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Create an operation that calls a Python function with NumPy arrays; see `py_func`."""
    if func is None:
        raise TypeError("numpy_function: func is missing, the function to be called")
    return py_func(func, inp, Tout, stateful, name)
