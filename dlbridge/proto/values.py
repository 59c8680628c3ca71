"""Values of attributes: tensors, and names of functions; `make_value` follows tf.constant.

Without a dtype, int is int32 (int64 where one does not fit), float is float32, and arrays keep
theirs. Silent changes that TensorFlow makes are refused: integers out of the dtype's range, floats
to integers, a list padded to a shape. Arrays in the other byte order are converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Self, final

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.proto import datatypes
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.shape import as_shape
from dlbridge.signals import not_from_handler
from dlbridge.tensor.values import BYTE, allocate, as_array

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
    if dtype.numpy is None or getattr(array, "dtype", None) is not dtype.numpy:
        array = _to_dtype(dtype, array)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _to_dtype(dtype: DataType, array: Array) -> Array:
    if not isinstance(array, np.ndarray | np.generic):
        raise UnsupportedTypeError(f"TensorValue: array must be a NumPy array, got {array!r}")
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


# ---- Python's numbers, text and lists of them as values: the rules of `tf.constant` -------------

_ALIGNED_FROM = 4096  # bytes from which on memory is aligned to 64, as JAX and TensorFlow share it

# The dtype of a Python number without one of its own; an int has to fit.
_NUMBERS: dict[type, tuple[DataType, Any]] = {
    float: (datatypes.float32, np.float32),
    bool: (datatypes.bool_, np.bool_),
    int: (datatypes.int32, np.int32),
}
_INT32 = range(-(2**31), 2**31)


def make_value(
    values: Any,
    dtype: object = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> TensorValue:
    """Return numbers, text, lists of them or an array as a value in new memory.

    Args:
        values: a number, str, bytes, nested lists or tuples of them, or an array of any dtype that
            `as_dtype` reads. Text is encoded in UTF-8.
        dtype: of the elements; None is TensorFlow's choice, see the module. Values are only
            converted to a wider kind (bool, integer, floating, complex).
        shape: fully known; None is that of `values`. A single value is repeated without taking more
            memory; else the number of elements must be right.
        verify_shape: refuse any other shape than that of `values`.
        allow_broadcast: for compatibility with TensorFlow; a single value may always be repeated.

    Raises:
        ArgumentError: None, ragged lists, integers out of range, a shape that does not fit, or
            `verify_shape` and `allow_broadcast` together.
        UnsupportedTypeError: values of another kind than `dtype`, or of an unknown kind.

    Example:
        >>> make_value([1, 2]), make_value(0, "float32", [2, 3]).array.strides
        (TensorValue(tf.int32, shape=(2,)), (0, 0))
    """
    if verify_shape and allow_broadcast:
        raise ArgumentError("verify_shape and allow_broadcast are not both allowed.")
    number = _NUMBERS.get(type(values))
    plain = number is not None and dtype is None and shape is None
    if plain and (type(values) is not int or values in _INT32):
        return TensorValue(number[0], np.array(values, number[1]))  # type: ignore[index]
    wanted = None if dtype is None else as_dtype(dtype).base_dtype
    if wanted is not None and wanted.kind == "h":
        raise UnsupportedTypeError(f"there are no constants of dtype {wanted.name}")
    kind, array = _convert(values, wanted)
    return TensorValue(kind, array if shape is None else _reshape(array, shape, verify_shape))


def _convert(values: Any, wanted: DataType | None) -> tuple[DataType, Array]:
    """Return dtype and array of the values; the array is memory of its own."""
    given = isinstance(values, np.ndarray | np.generic)
    array = np.asarray(values) if given else _read(values)
    if array.dtype.kind in "OSU":
        return datatypes.string, _encode(values, array, wanted)
    if wanted is not None and wanted.kind == "q" and _is_wrapped(values):
        array = array[..., 0]
    kind = as_dtype(array.dtype)
    if wanted is None and not given:
        wanted = _prefer(kind, array)
    wanted = wanted or kind
    if kind is not wanted:
        _check_kind(values, array, kind, wanted)
    return wanted, _copy(array, kind, wanted)


def _is_wrapped(values: Any) -> bool:
    """Return whether each number is in a tuple of its own, as TensorFlow wants quantised ones."""
    while isinstance(values, list) and values:
        values = values[0]
    return isinstance(values, tuple) and len(values) == 1


def _read(values: Any) -> Array:
    if values is None:
        raise ArgumentError("None values not supported.")
    try:
        array = np.asarray(values)
    except not_from_handler(ValueError) as error:
        raise ArgumentError(f"a tensor has lists of equal lengths: {error}") from error
    if array.dtype == object and any(isinstance(each, list | tuple) for each in array.flat):
        raise ArgumentError(f"a tensor has lists of equal lengths, got {_excerpt(values)}")
    return array  # NumPy before 1.24 makes objects of ragged lists


def _prefer(kind: DataType, array: Array) -> DataType:
    """Return TensorFlow's choice for Python's numbers, which NumPy reads as 64 bits wide."""
    if kind is datatypes.float64:
        return datatypes.float32
    if kind is datatypes.int64 and array.size:
        fits = int(array.min()) in _INT32 and int(array.max()) in _INT32
        return datatypes.int32 if fits else kind
    return kind


_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _check_kind(values: Any, array: Array, kind: DataType, wanted: DataType) -> None:
    """Refuse what would lose more than precision."""
    here, there = _KINDS.get(kind.kind, 9), _KINDS.get(wanted.kind, -1)
    if wanted.kind == "q" and kind.is_integer:
        here = there = 1
    if here > there or (there == 1 and here == 0 and wanted.kind == "q"):
        raise UnsupportedTypeError(
            f"Expected {wanted.name}, but got {_excerpt(values)} of type {kind.name}; "
            f"convert it first"
        )
    if there == 1 and here == 1 and array.size:
        base = wanted.numpy if wanted.kind == "q" else None
        least, most = _extremes(base[0]) if base is not None else (wanted.min, wanted.max)
        low, high = _span(array)
        if low < least or high > most:
            raise ArgumentError(
                f"{low if low < least else high} does not fit {wanted.name}, {least} to {most}"
            )


def _extremes(dtype: Any) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _span(array: Array) -> tuple[int, int]:
    """Return the least and the greatest of the integers."""
    wide = array if array.dtype.isbuiltin or array.dtype.kind in "iu" else array.astype(np.int16)
    return int(wide.min()), int(wide.max())


def _excerpt(values: Any) -> str:
    text = repr(values)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _copy(array: Array, kind: DataType, wanted: DataType) -> Array:
    """Return a row-major copy of the type `wanted`, aligned to 64 bytes if it is large."""
    target = wanted.numpy
    assert target is not None
    if wanted.kind == "q" and kind.kind != "q":
        return _copy_as(array, target[0]).view(target)
    return _copy_as(array, target)


def _copy_as(array: Array, target: np.dtype[Any]) -> Array:
    nbytes = array.size * target.itemsize
    with np.errstate(over="ignore"):  # 1e300 is infinite as a float32
        if nbytes < _ALIGNED_FROM:
            return np.array(array, target, order="C")
        made = as_array(allocate((nbytes,), BYTE)).view(target).reshape(array.shape)
        np.copyto(made, array, casting="unsafe")
    return made


# ---- text ---------------------------------------------------------------------------------------


def _encode(values: Any, array: Array, wanted: DataType | None) -> Array:
    """Return text as bytes, from the lists themselves, since NumPy strips trailing zeros."""
    if wanted is not None and wanted.kind != "s":
        raise UnsupportedTypeError(f"Expected {wanted.name}, but got {_excerpt(values)}")
    flat: Any = array.flat if isinstance(values, np.ndarray) else _flatten(values)
    encoded = np.empty(array.size, object)
    encoded[:] = [_as_bytes(text, values) for text in flat]
    return encoded.reshape(array.shape)


def _flatten(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [text for part in values for text in _flatten(part)]
    return [values]


def _as_bytes(text: Any, values: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return bytes(text)
    raise UnsupportedTypeError(
        f"Failed to convert elements of {_excerpt(values)} to Tensor: {_excerpt(text)} is of type "
        f"{type(text).__name__}; required are numbers, or str and bytes"
    )


# ---- shape --------------------------------------------------------------------------------------


def _reshape(array: Array, shape: Any, verify: bool) -> Array:
    wanted = as_shape(shape)
    if not wanted.is_fully_defined():
        raise ArgumentError(f"a constant needs a fully defined shape, got {wanted}")
    extents: tuple[Any, ...] = tuple(wanted.as_list())
    size = math.prod(extents)
    if verify and array.shape != extents:
        raise UnsupportedTypeError(f"Expected Tensor's shape: {extents}, but got {array.shape}.")
    if array.size == size:
        return array.reshape(extents)
    if array.size == 1:
        return np.broadcast_to(array.reshape(()), extents)
    if array.size > size:
        raise ArgumentError(
            f"Too many elements provided. Takes at most {size}, but got {array.size}"
        )
    raise ArgumentError(
        f"shape {extents} takes {size} elements, got {array.size}; TensorFlow would repeat the "
        "last one: do that by hand if it is meant"
    )
