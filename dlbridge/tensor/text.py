"""The text of a Tensor: its values as NumPy prints them, its shape, dtype and device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.dtype import as_dtype
from dlbridge.errors import DLBridgeError
from dlbridge.tensor import values

# Above this many elements at the corners, no values are shown.
_MOST_CORNERS = 20_000


def describe(tensor: native.TensorBase) -> str:
    """Return `Tensor([...], shape=(...), dtype=..., device=...)`.

    At most the elements that are shown are read or copied; memory of other devices than the host is
    never touched and shown as `<not read>`.

    Example:
        >>> print(describe(native.allocate((2, 3), (4, 16, 1), 64, True)))
        Tensor([[0., 0., 0.],
                [0., 0., 0.]], shape=(2, 3), dtype=bfloat16, device=cpu)
    """
    name = type(tensor).__name__
    parts = [
        _values(tensor, f"{name}("),
        f"shape={tensor.shape}",
        f"dtype={tensor.dtype}",
        f"device={tensor.device}",
    ]
    if tensor.readonly:
        parts.append("readonly=True")
    return f"{name}({', '.join(parts)})"


def _values(tensor: native.TensorBase, prefix: str) -> str:
    """Return the values as text, or what stands for them when they cannot be read."""
    options = np.get_printoptions()
    edge: int = options["edgeitems"]
    summarise = tensor.size > options["threshold"]
    try:
        if not summarise:
            array = values.as_array(tensor)
        elif _corner_count(tensor, edge) > _MOST_CORNERS:
            return "<too many dimensions to show>"
        else:
            array = values.pick(tensor, [_corners(extent, edge) for extent in tensor.shape])
    except DLBridgeError:
        return "<not read>"
    threshold = 0 if summarise else array.size
    return np.array2string(_printable(array), separator=", ", prefix=prefix, threshold=threshold)


def _corners(extent: int, edge: int) -> list[int]:
    """Return the positions that NumPy shows of a long dimension, and one that it leaves out."""
    if extent <= 2 * edge + 1:
        return list(range(extent))
    return [*range(edge + 1), *range(extent - edge, extent)]


def _corner_count(tensor: native.TensorBase, edge: int) -> int:
    return math.prod(min(extent, 2 * edge + 1) for extent in tensor.shape)


def _printable(array: values.Array) -> np.ndarray[Any, Any]:
    """Return ml_dtypes values as the next wider type of NumPy, which prints evenly."""
    if array.dtype.isbuiltin == 1:
        return array
    dtype = as_dtype(array.dtype)
    wider = "i8" if dtype.is_integer else "c8" if dtype.is_complex else "f4"
    return array.astype(wider)
