"""Tensors of any framework as a schema sees them, traced and symbolic ones, too."""

from __future__ import annotations

from typing import Any

from dlbridge.dtype import as_dtype
from dlbridge.errors import UnsupportedTypeError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.schema.parts import Described


def described(value: Any) -> Described:
    """Return shape, dtype, kind and device of an array, a tensor or a tracer; no data is read.

    Extents are the framework's own, symbolic ones included; None where TensorFlow knows none.

    Raises:
        UnsupportedTypeError: it has no shape and dtype.

    Example:
        >>> import numpy
        >>> print(described(numpy.zeros((2, 3), "float32")).text())
        f32[2, 3] (numpy.ndarray, cpu)
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is None or not hasattr(type(value), "shape"):
        raise UnsupportedTypeError(f"{describe(value)} is no tensor")
    return Described(_extents(shape), as_dtype(dtype), describe(value), _place(value))


def _extents(shape: Any) -> tuple[Any, ...] | None:
    rank = getattr(shape, "rank", len(shape) if isinstance(shape, tuple) else 0)
    if rank is None:  # a tensorflow.TensorShape that knows nothing
        return None
    return tuple(shape.as_list() if hasattr(shape, "as_list") else shape)


def _place(value: Any) -> str:
    try:
        device = getattr(value, "device", None)  # NumPy 1 has none
    except Exception:  # noqa: BLE001  (a tracer may refuse the question, in any way)
        return ""
    return str(getattr(device, "platform", device)) if device is not None else "cpu"
