"""Constants: Python values and tensors of any framework as operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core import values
from dlbridge.graph.core.construction import add_constant, as_graph_tensor, holds_tensors
from dlbridge.graph.core.default_graph import get_default_graph, graph_of
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import TensorValue
from dlbridge.shape import TensorShape, as_shape

__all__ = ["constant", "convert_to_tensor"]


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
        except (TypeError, ValueError):
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
