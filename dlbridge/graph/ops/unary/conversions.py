"""Conversions of dtypes: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_tensor, result, scope
from dlbridge.proto.datatypes import (
    DataType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
)

__all__ = [
    "bitcast", "cast", "saturate_cast", "to_bfloat16", "to_complex64", "to_complex128",
    "to_double", "to_float", "to_int32", "to_int64",
]  # fmt: skip


def cast(x: Any, dtype: object, name: str | None = None) -> Tensor:
    """Return x as another dtype, in its shape.

    Floating numbers lose what is behind the point, complex ones their imaginary part; what is not 0
    is true. Numbers beyond the range of int32 and int64 become the least integer, as NaN does;
    those beyond other ranges have no defined value, and `saturate_cast` bounds them.

    Args:
        x: a Tensor of numbers or bool, or what becomes one. A tensor that has the dtype already is
            returned as it is.
        dtype: what `as_dtype` takes.
        name: of the operation, "Cast" by default.

    Raises:
        TypeError: no dtype.

    Strings end a run with UnimplementedError; `string_to_number` converts them.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.cast([1.9, -1.9, 1e20], tf.int32))
        array([          1,          -1, -2147483648], dtype=int32)
    """
    kind = as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype is kind:
        return x
    with scope(name, "Cast", (x,)) as full:
        tensor = as_tensor(x, None, "x")
        if tensor.dtype.base_dtype is kind:
            return tensor
        return result("Cast", (tensor,), {"DstT": kind}, full)


def saturate_cast(value: Any, dtype: object, name: str | None = None) -> Tensor:
    """Return a tensor as another dtype; what is beyond its range becomes its nearest bound.

    Args:
        value: a Tensor of floating numbers or integers, or what becomes one. NaN has no defined
            value as an integer.
        dtype: of floating numbers or integers.
        name: of the scope.

    Raises:
        TypeError: complex numbers, bool or strings, which have no bounds.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.saturate_cast([300, -5, 7], tf.uint8))
        array([255,   0,   7], dtype=uint8)
    """
    kind = as_dtype(dtype)
    with scope(name, "saturate_cast", (value,)) as full:
        value = as_tensor(value, None, "value")
        source = value.dtype.base_dtype
        low = max(source.min, _inner(kind, source, "min"))
        high = min(source.max, _inner(kind, source, "max"))
        bounds = (as_tensor(low, source), as_tensor(high, source))
        clamped = result("ClipByValue", (value, *bounds), None, "clamp")
        return result("Cast", (clamped,), {"DstT": kind}, full)


def _inner(kind: DataType, source: DataType, which: str) -> Any:
    """Return a bound of `kind` as a number that `source` has, rounded towards zero."""
    bound = getattr(kind, which)
    if not (source.is_floating and kind.is_integer):
        return bound
    assert source.numpy is not None
    rounded = np.asarray(bound).astype(source.numpy)[()]
    if np.isfinite(rounded) and np.abs(int(rounded)) > np.abs(int(bound)):
        rounded = np.nextafter(rounded, source.numpy.type(0))
    return rounded


def bitcast(input: Any, type: object, name: str | None = None) -> Tensor:
    """Return the same bytes as another dtype.

    Args:
        input: a Tensor of numbers, or what becomes one.
        type: dtype of numbers. A narrower one adds a last dimension; a wider one takes away the
            last dimension, whose extent must be the ratio of their sizes.
        name: of the operation, "Bitcast" by default.

    Raises:
        ValueError: that extent is another.
        TypeError: bool or strings.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.bitcast(tf.constant([1.0, -2.0]), tf.uint16))
        array([[    0, 16256],
               [    0, 49152]], dtype=uint16)
    """
    return result("Bitcast", (input,), {"type": as_dtype(type)}, name)


def _to(kind: DataType, default: str) -> Any:
    def to(x: Any, name: str = default) -> Tensor:
        return cast(x, kind, name)

    to.__doc__ = f"Return x as {kind.name}; see `cast`."
    return to


to_float = _to(float32, "ToFloat")
to_double = _to(float64, "ToDouble")
to_int32 = _to(int32, "ToInt32")
to_int64 = _to(int64, "ToInt64")
to_bfloat16 = _to(bfloat16, "ToBFloat16")
to_complex64 = _to(complex64, "ToComplex64")
to_complex128 = _to(complex128, "ToComplex128")
