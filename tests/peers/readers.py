"""How to make and to read each library's arrays without dlbridge.

`read` gives an array's values as compact bytes and the address of its first element, through the
library's own means or through ctypes: a test never asks dlbridge what dlbridge did.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from dlpack_peers import Consumer


def has(module: str) -> bool:
    """Return whether a library can be imported here, in this process."""
    if module == "paddle" and "tensorflow" in sys.modules and "paddle" not in sys.modules:
        return False  # importing it now would crash the process
    return importlib.util.find_spec(module.partition(".")[0]) is not None


# ---- memory ------------------------------------------------------------------------------------


def memory(shape: Sequence[int], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return a zeroed array whose first element is `offset` bytes after a 64-byte boundary."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.zeros(count + 128 + offset, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + count].view(dtype).reshape(shape)


def filled(shape: Sequence[int], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return such memory with the values 0, 1, 2, ... (as far as the dtype tells them apart)."""
    array = memory(shape, dtype, offset)
    array[...] = (np.arange(array.size) % 97).astype(array.dtype).reshape(shape)
    return array


def read_memory(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bytes:
    """Return the elements at `address` in row-major order; strides count elements."""
    if not np.prod(shape, dtype=int):
        return b""
    steps = [step * itemsize for step in strides]
    low = sum(min(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True))
    high = sum(max(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True)) + itemsize
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(address + low))
    view = np.ndarray((*shape, itemsize), np.uint8, raw, -low, (*steps, 1))
    return view.tobytes()


# ---- arrays ------------------------------------------------------------------------------------


def _numpy(x: Any) -> tuple[bytes, int]:
    return x.tobytes(), x.ctypes.data


def _strided(x: Any) -> tuple[bytes, int]:
    """torch."""
    x = x.detach()
    data = read_memory(x.data_ptr(), tuple(x.shape), x.stride(), x.element_size())
    return data, x.data_ptr()


def _jax(x: Any) -> tuple[bytes, int]:
    return np.asarray(x).tobytes(), x.unsafe_buffer_pointer()


def _tensorflow(x: Any) -> tuple[bytes, int]:
    import tensorflow as tf

    if x.dtype.name.startswith("float8"):  # which it neither exports nor imports: no address
        return x.numpy().tobytes(), 0
    lent = Consumer(tf.experimental.dlpack.to_dlpack(x))
    address = lent.data + lent.byte_offset
    lent.release()
    return x.numpy().tobytes(), address


def _tvm(x: Any) -> tuple[bytes, int]:
    itemsize = (x.dtype.bits * x.dtype.lanes + 7) // 8
    return read_memory(x.data_ptr(), x.shape, x.strides, itemsize), x.data_ptr()


def _mlx(x: Any) -> tuple[bytes, int]:
    import mlx.core as mx

    plain = x.view(mx.uint16) if x.dtype == mx.bfloat16 else x
    array = np.asarray(memoryview(plain)) if x.size else np.array(plain)
    return array.tobytes(), array.ctypes.data


def _pyarrow(x: Any) -> tuple[bytes, int]:
    array = x.to_numpy() if hasattr(x, "is_mutable") else x.to_numpy(zero_copy_only=True)
    return array.tobytes(), array.ctypes.data


def _strict(x: Any) -> tuple[bytes, int]:
    return _numpy(x._array)


def _own(x: Any) -> tuple[bytes, int]:
    return read_memory(x.data_ptr, x.shape, x.strides, x.itemsize), x.data_ptr


_READERS = {
    "numpy": _numpy,
    "torch": _strided,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "tvm": _tvm,
    "mlx": _mlx,
    "pyarrow": _pyarrow,
    "strict": _strict,
    "dlbridge": _own,
}


def read(library: str, x: Any) -> tuple[bytes, int]:
    """Return (values in row-major order as bytes, address of the first element)."""
    return _READERS[library](x)
