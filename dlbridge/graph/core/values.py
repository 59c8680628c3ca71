"""Values of constants: Python numbers, text, nested lists and tensors as a TensorValue.

    Python           default dtype
    bool             bool
    int              int32, int64 where one does not fit, then uint64
    float            float32
    complex          complex128
    str, bytes       string
    [] and [[], []]  float32
    lists            that of the elements, by the rules above
    arrays, tensors  their own

Conversions in which TensorFlow silently changes numbers are refused: integers that do not fit,
finite numbers that become infinite, fractions to integers.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError, name_call
from dlbridge.graph.core.operation import Tensor
from dlbridge.proto import datatypes
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import TensorValue
from dlbridge.shape import TensorShape
from dlbridge.signals import not_from_handler

Array = np.ndarray[Any, Any]

ALIGNMENT = 64  # bytes: JAX and TensorFlow share only memory with this alignment
_PAGE = 4096
_LARGE = 4096  # bytes; smaller copies are not worth aligning

_PYTHON = (bool, int, float, complex, list, tuple, range)
_INT32 = range(-(2**31), 2**31)
_FLOAT_MAX = float(np.finfo(np.float32).max)


def make_value(value: Any, dtype: DataType | None, where: str) -> TensorValue:
    """Return a copy of `value` as a TensorValue.

    Args:
        value: a number, text, nested lists of these, an array, or a tensor of any framework.
        dtype: the DataType wanted, or None for that of `value`.
        where: the call or argument that errors begin with.

    Raises:
        ValueError: None, ragged lists, numbers that do not fit.
        TypeError: something else; a dtype that `value` cannot have.
    """
    kind = type(value)
    if kind is float and (dtype is None or dtype is datatypes.float32):
        if -_FLOAT_MAX <= value <= _FLOAT_MAX or value != value:
            return TensorValue.adopt(datatypes.float32, np.array(value, np.float32))
    elif kind is int and dtype is None and value in _INT32:
        return TensorValue.adopt(datatypes.int32, np.array(value, np.int32))
    if dtype is not None and isinstance(value, str | bytes) and dtype.base_dtype.kind != "s":
        raise _unexpected(where, dtype.name, value)
    array = read(value, where)
    if dtype is None:
        dtype = _default_dtype(value, array, where)
    return TensorValue.adopt(dtype.base_dtype, cast(array, dtype, where))


def read(value: Any, where: str) -> Array:
    """Return a value as an array of its own dtype, which may share memory with it."""
    if value is None:
        raise ValueError(f"{where}: None values not supported.")
    if isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.ma.MaskedArray):
            raise UnsupportedTypeError(
                f"{where}: the mask of a masked array would be lost; pass x.filled(value)"
            )
        return np.asarray(value)
    if isinstance(value, str | bytes):
        return _read_text(np.array(value, np.object_), where)
    if isinstance(value, TensorShape):
        return _read_shape(value, where)
    if isinstance(value, _PYTHON):
        return _read_lists(value, where)
    return _read_tensor(value, where)


def _read_lists(value: Any, where: str) -> Array:
    try:
        array = np.array(value)
    except not_from_handler(UnicodeDecodeError):
        # bytes next to a str: NumPy would make text of them
        array = np.array(value, np.object_)
    except not_from_handler(NotImplementedError) as error:
        raise UnsupportedTypeError(f"{where}: lists hold a symbolic tensor: {error}") from error
    except not_from_handler(ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"{where}: nested lists must make a rectangle: {error}") from error
    if array.dtype.kind in "OSU":
        array = np.array(value, np.object_)
    elif array.dtype.kind == "f" and array.size and np.abs(array).max() >= 2.0**63:
        _refuse_lost_integers(value, where)
    return array


def _refuse_lost_integers(value: Any, where: str) -> None:
    """Refuse integers that NumPy made floating because no integer dtype holds them all."""
    leaves = [value]
    while leaves:
        each = leaves.pop()
        if isinstance(each, list | tuple | range):
            leaves += each
        elif not isinstance(each, int) or isinstance(each, bool):
            return
    raise ArgumentError(f"{where}: no integer dtype holds all of {value!r}")


def _read_text(array: Array, where: str) -> Array:
    """Return an array of objects as one of bytes."""
    out = np.empty(array.shape, np.object_)
    flat = out.reshape(-1)
    for i, each in enumerate(array.reshape(-1)):
        if isinstance(each, str):
            flat[i] = each.encode()
        elif isinstance(each, bytes):
            flat[i] = bytes(each)
        else:
            found = next((each for each in array.reshape(-1) if each is None), each)
            raise _unexpected(where, "string", found)
    return out


def _read_shape(shape: TensorShape, where: str) -> Array:
    dims = shape.dims
    if dims is None or None in dims:
        raise ArgumentError(f"{where}: a shape that is not fully known has no value, got {shape}")
    fits = all(dim in _INT32 for dim in dims if dim is not None)
    return np.array(dims, np.int32 if fits else np.int64)


def _read_tensor(value: Any, where: str) -> Array:
    """Return a tensor of any framework as an array, without a copy where that is possible."""
    if isinstance(value, bytearray | memoryview):
        return np.asarray(value)
    from dlbridge.frameworks.conversions import to_numpy

    if isinstance(value, Tensor):
        raise UnsupportedTypeError(f"{where}: {value!r} is symbolic and has no value yet")
    try:
        array: Array = to_numpy(value, readonly="share", device="cpu")
    except UnsupportedTypeError as error:
        is_symbolic = hasattr(value, "_as_graph_element")
        if error.reason == "type" and hasattr(type(value), "__array__") and not is_symbolic:
            return read(np.asarray(value), where)  # of pandas, polars, xarray, h5py, zarr, …
        raise UnsupportedTypeError(
            f"{where}: expected a number, text, an array, a tensor or lists of numbers, got "
            f"{value!r} of type {type(value).__name__}"
        ) from error
    except ExchangeError as error:
        name_call(error, where)
        raise
    return array


# ---- dtypes ------------------------------------------------------------------------------------


def _default_dtype(value: Any, array: Array, where: str) -> DataType:
    """Return the DataType of an array that was read from `value`, by the table of this module."""
    numpy = array.dtype
    if numpy.kind in "OSU":
        if isinstance(value, int) and not isinstance(value, np.generic):
            text = f"{where}: an integer of {value.bit_length()} bits does not fit any integer"
            raise UnsupportedTypeError(f"{text} dtype; give a dtype of floating point")
        return datatypes.string
    if isinstance(value, _PYTHON) and not (isinstance(value, np.generic) or _holds_arrays(value)):
        if numpy == np.float64:
            return datatypes.float32
        if numpy == np.int64 and _range_fits(array, datatypes.int32):
            return datatypes.int32
    try:
        return as_dtype(numpy)
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}") from error


def _holds_arrays(value: Any) -> bool:
    """Return whether nested lists hold arrays, whose dtype is kept."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.ndarray)


# Kinds of NumPy dtypes that may become a kind of DataType.
_SOURCES = {
    "f": "biuf",
    "i": "biu",
    "u": "biu",
    "q": "iu",
    "c": "biufc",
    "b": "b",
    "s": "OSU",
}


def cast(array: Array, dtype: DataType, where: str) -> Array:
    """Return a copy of the array with elements of another dtype, if it can hold them all."""
    dtype = dtype.base_dtype
    numpy = dtype.numpy
    if numpy is None:
        raise UnsupportedTypeError(f"{where}: there are no constants of dtype {dtype.name}")
    if dtype.kind == "s" and array.dtype.kind in "OSU":
        return _read_text(array, where)
    if array.dtype.newbyteorder("=") == numpy:
        return _copy(array, numpy)
    if array.dtype.kind == "O":
        array = _read_objects(array, dtype, where)
    try:
        kind = _kind(array.dtype)
    except UnsupportedTypeError as error:
        name_call(error, where)
        raise
    if array.size and kind not in _SOURCES[dtype.kind]:
        raise _unexpected(where, dtype.name, array.reshape(-1)[0].item())
    if dtype.kind in "iuq" and kind != "b" and not _range_fits(array, dtype):
        raise ArgumentError(
            f"{where}: numbers from {array.min()} to {array.max()} do not fit {dtype.name}; "
            "convert them beforehand if they are to wrap around"
        )
    if dtype.kind == "q":
        return array.astype(numpy[0]).view(numpy)
    if dtype.kind in "fc" and kind in "fc" and array.dtype.itemsize > numpy.itemsize:
        return _narrow(array, numpy, dtype, where)
    return _copy(array, numpy)


def _kind(numpy: np.dtype[Any]) -> str:
    """Return the kind of a NumPy dtype, also of those of ml_dtypes, which NumPy does not know."""
    return as_dtype(numpy).kind if numpy.kind == "V" else numpy.kind


def _read_objects(array: Array, dtype: DataType, where: str) -> Array:
    """Return numbers that came as objects as an array of numbers."""
    for each in array.reshape(-1):
        if not isinstance(each, bool | int | float | complex | np.generic):
            raise _unexpected(where, dtype.name, each)
    found = _read_lists(array.tolist(), where)
    if found.dtype.kind != "O":
        return found
    if dtype.kind not in "fc":
        raise _too_large(where, dtype.name, array)
    try:
        return found.astype(np.float64)
    except not_from_handler(OverflowError):
        raise _too_large(where, dtype.name, array) from None


def _range_fits(array: Array, dtype: DataType) -> bool:
    """Return whether all integers of an array are numbers of a DataType."""
    if not array.size:
        return True
    if dtype.kind == "q":
        assert dtype.numpy is not None
        limits = np.iinfo(dtype.numpy[0])
        least, most = int(limits.min), int(limits.max)
    else:
        least, most = dtype.min, dtype.max
    source = np.iinfo(array.dtype) if array.dtype.isbuiltin == 1 else None
    if source is not None and least <= source.min and source.max <= most:
        return True
    return bool(least <= int(array.min()) and int(array.max()) <= most)


def _narrow(array: Array, numpy: np.dtype[Any], dtype: DataType, where: str) -> Array:
    """Return numbers in a dtype of less range; refuse those that would become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        out = _copy(array, numpy)
        if numpy.isbuiltin == 1:
            lost = np.isinf(out)
        else:  # ml_dtypes has types without infinity, where NaN takes its place
            lost = ~np.isfinite(out.astype(np.float64))
    if lost.any() and np.isfinite(array[lost]).any():
        worst = array[lost][np.isfinite(array[lost])].reshape(-1)[0]
        raise ArgumentError(f"{where}: {worst} is finite, but not as {dtype.name}")
    return out


def _copy(array: Array, numpy: np.dtype[Any]) -> Array:
    """Return a compact row-major copy; a large one begins at a multiple of `ALIGNMENT`."""
    count = array.size * numpy.itemsize
    if count < _LARGE or numpy.hasobject:
        return np.array(array, numpy, order="C")
    room = np.empty(count + _PAGE, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    # Half a page from where the source is in its page: copying to just after that is several times
    # slower on many processors, which take the stores for writes to what they load next.
    distance = (array.ctypes.data + _PAGE // 2 - room.ctypes.data - start) % _PAGE
    start += distance // ALIGNMENT * ALIGNMENT
    out = room[start : start + count].view(numpy).reshape(array.shape)
    np.copyto(out, array, casting="unsafe")
    return out


def _too_large(where: str, name: str, array: Array) -> ArgumentError:
    """Return the error for integers that NumPy keeps as objects."""
    worst = max(array.reshape(-1), key=abs)
    return ArgumentError(f"{where}: an integer of {worst.bit_length()} bits does not fit {name}")


def _unexpected(where: str, expected: str, value: Any) -> UnsupportedTypeError:
    if value is None:
        return UnsupportedTypeError(f"{where}: None values not supported, expected {expected}")
    text = repr(value) if sys.getsizeof(value) < 1000 else "one"
    return UnsupportedTypeError(
        f"{where}: Expected {expected}, but got {text} of type {type(value).__name__!r}."
    )
