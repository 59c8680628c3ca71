"""Values of attributes: tensors, and names of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Self, final

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.proto.datatypes import DataType, as_dtype

Array = np.ndarray[Any, Any]


class FunctionName(NamedTuple):
    """The value of an attribute of kind `func`: a function's name and attributes."""

    name: str
    attrs: Mapping[str, Any] = {}


@final
class TensorValue:
    """The value of a tensor: a DataType and a read-only array in host memory.

    Args:
        dtype: a DataType, or anything `as_dtype` takes.
        array: of the type `dtype.numpy`, any shape and strides; strings are bytes in an object
            array. It is shared as a read-only view: do not write to its memory afterwards. An array
            in the other byte order is copied.

    Attributes:
        dtype: the DataType.
        shape: tuple of ints.
        array: read-only ndarray. For a value from the wire it is decoded on first access, which
            raises WireError if the contents are invalid; large contents are views of the buffer.
            Repeated elements may be views with strides of 0.

    Two values are equal when dtype, shape and all bits are: NaN equals NaN, and 0.0 is not -0.0.

    Example:
        >>> value = TensorValue("float32", np.ones((2, 3), np.float32))
        >>> value, value.nbytes
        (TensorValue(tf.float32, shape=(2, 3)), 24)
    """

    __slots__ = ("_decode", "array", "dtype", "shape")

    array: Array
    dtype: DataType
    shape: tuple[int, ...]

    def __init__(self, dtype: object, array: Array) -> None:
        kind = dtype if type(dtype) is DataType else as_dtype(dtype)
        _set_decode(self, None)
        _set_dtype(self, kind)
        _set_array(self, _fit(kind, array))
        _set_shape(self, array.shape)

    @classmethod
    def adopt(cls, dtype: DataType, array: Array) -> Self:
        """Return a value that takes over a new array of type `dtype.numpy`."""
        array.setflags(write=False)
        value = object.__new__(cls)
        _set_decode(value, None)
        _set_dtype(value, dtype)
        _set_array(value, array)
        _set_shape(value, array.shape)
        return value

    @classmethod
    def lazy(cls, dtype: DataType, shape: tuple[int, ...], decode: Callable[[], Array]) -> Self:
        """Return a value whose array `decode()` makes on first access."""
        value = object.__new__(cls)
        _set_decode(value, decode)
        _set_dtype(value, dtype)
        _set_shape(value, shape)
        return value

    @classmethod
    def of(cls, array: Array) -> Self:
        """Return an array as a value; its dtype says which DataType."""
        kind = as_dtype(array.dtype)
        if kind.kind == "s" and array.dtype.kind != "O":
            raise ArgumentError(f"TensorValue: text is bytes in an object array, got {array.dtype}")
        return cls(kind, array)

    @property
    def decode(self) -> Callable[[], Array] | None:
        """The function that makes the array, if the value came from the wire."""
        found: Callable[[], Array] | None = self._decode
        return found

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, repeated ones included; of strings, the bytes of each."""
        if self.dtype.kind == "s":
            return sum(map(len, self.array.flat))
        return self.size * self.dtype.size

    def __getattr__(self, name: str) -> Any:
        """Decode the array of a value from the wire."""
        if name != "array":
            raise AttributeError(f"TensorValue has no attribute {name!r}")
        decode = self.decode
        assert decode is not None
        array = _fit(self.dtype, decode())
        _set_array(self, array)
        return array

    def __eq__(self, other: object) -> bool:
        if type(other) is not TensorValue:
            return NotImplemented
        if self.dtype is not other.dtype or self.shape != other.shape:
            return False
        return _same_bits(self.array, other.array, self.dtype)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __repr__(self) -> str:
        return f"TensorValue({self.dtype!r}, shape={self.shape})"

    def __reduce__(self) -> tuple[type[Self], tuple[DataType, Array]]:
        return type(self), (self.dtype, self.array)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"TensorValue is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"TensorValue is immutable: cannot delete {name}")


# The slots themselves, which __setattr__ does not reach.
_set_decode, _set_array, _set_dtype, _set_shape = (
    vars(TensorValue)[name].__set__ for name in ("_decode", "array", "dtype", "shape")
)


def _fit(dtype: DataType, array: Array) -> Array:
    """Return a read-only array of the dtype, shared unless the byte order is the other one."""
    if dtype.numpy is None or array.dtype is not dtype.numpy:
        array = _convert(dtype, array)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _convert(dtype: DataType, array: Array) -> Array:
    wanted = dtype.numpy
    if wanted is None or array.dtype.newbyteorder("=") != wanted:
        raise ArgumentError(
            f"TensorValue: {dtype.name} needs an array of {wanted}, got one of {array.dtype}"
        )
    return array if array.dtype == wanted else array.astype(wanted)


def _same_bits(a: Array, b: Array, dtype: DataType) -> bool:
    """Compare arrays of one dtype and shape bit by bit; repeated elements are compared once."""
    if a.ndim:
        strides = zip(a.strides, b.strides, strict=True)
        once = tuple([slice(0, 1) if pair == (0, 0) else slice(None) for pair in strides])
        a, b = a[once], b[once]
    if dtype.kind == "s":
        return bool(a.tolist() == b.tolist())
    if dtype.is_complex:
        part = dtype.real_dtype
        return _same_bits(a.real, b.real, part) and _same_bits(a.imag, b.imag, part)
    bits = np.dtype(f"u{dtype.size}")
    a, b = a.view(bits), b.view(bits)
    if dtype.dlpack is not None and dtype.dlpack.bits < 8:  # the other bits of the byte are padding
        mask = np.uint8((1 << dtype.dlpack.bits) - 1)
        a, b = a & mask, b & mask
    return bool(np.array_equal(a, b))
