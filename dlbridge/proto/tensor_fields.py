"""TensorFields: a TensorProto on the wire, read as far as dtype, shape and where its values are.

What TensorFlow reads is read, with these exceptions, which are refused because it reads them
silently as something else: values in a field of another dtype; more values than elements; an odd
number of parts of complex values; integers that the dtype does not hold; a shape of unknown rank.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlbridge.errors import WireError
from dlbridge.proto import typed_values, wire
from dlbridge.proto.datatypes import DATA_TYPES, DataType

Array = np.ndarray[Any, Any]

MAX_RANK = 254
_MOST = 2**63 - 1
# Several values of which the last is repeated need memory that was not on the wire.
EXPANSION_LIMIT = 1 << 28


class TensorFields:
    """One TensorProto in a buffer; nothing of its values is copied until `decode`.

    Attributes:
        dtype: the DataType, never a reference type.
        shape: tuple of ints; their product and the size in bytes fit 63 bits.
        size: the number of elements.
        content: `tensor_content` as a memoryview of the buffer, or None; its length is right.
        raw: the whole TensorProto as a memoryview of the buffer, or the bytes it came from.
    """

    __slots__ = ("_values", "content", "dtype", "raw", "shape", "size")

    dtype: DataType
    shape: tuple[int, ...]
    size: int
    content: memoryview | None
    raw: memoryview

    def __init__(self, raw: memoryview) -> None:
        """Read the fields; WireError where they make no sense."""
        self.raw = raw
        self.content = None
        self._values: list[wire.Field] = []
        number = 0
        dims: list[int] = []
        for field in wire.fields(raw, 0, len(raw)):
            tag, start, end = field
            if tag == 0x08:
                number = wire.signed(start, 32)
            elif tag == 0x12:
                _read_shape(raw, start, end, dims)
            elif tag == 0x22:
                self.content = raw[start:end]
            elif tag in typed_values.TAGS:
                self._values.append(field)
        self._settle(number, dims)

    def _settle(self, number: int, dims: list[int]) -> None:
        dtype = DATA_TYPES.get(number)
        if dtype is None or dtype.is_ref:
            raise WireError(f"a TensorProto needs a dtype that values can have, got {number}")
        self.dtype = dtype
        self.shape = tuple(dims)
        self.size = check_size(self.shape, dtype)
        if self.content and self._values:
            typed_values.validate(self.raw, self._values)
        if not self.content:
            self.content = None
        elif dtype.kind != "s":
            check_length(len(self.content), self)

    def attach(self, content: memoryview) -> None:
        """Take `content` as the tensor_content; WireError if its length is wrong."""
        check_length(len(content), self)
        self.content = content

    def decode(self) -> Array:
        """Return the values as an array.

        Returns:
            The array views the buffer where tensor_content holds all elements and, with strides
            of 0, repeats what was given once; else it is a copy.

        Raises:
            WireError: the values do not fit the dtype and shape, or would need too much memory.
        """
        dtype = self.dtype
        if dtype.kind == "h":
            raise WireError(
                f"a TensorProto of dtype {dtype.name} has no values outside the process that wrote "
                "it; only its dtype and shape can be read"
            )
        _check_dimensions(self.shape)
        if self.content is None:
            return self._repeat(typed_values.read(self.dtype, self.raw, self._values))
        if dtype.kind == "s":
            return _split_strings(self.content, self.size).reshape(self.shape)
        array = np.frombuffer(self.content, dtype.numpy)
        if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise WireError("tensor_content: a byte of a bool is 0 or 1")
        return array.reshape(self.shape)

    def _repeat(self, given: Array) -> Array:
        """Return the values given, the last one repeated as often as the shape asks for."""
        if given.size == self.size:
            return given.reshape(self.shape)
        if given.size > self.size:
            raise WireError(
                f"a TensorProto of shape {text_of(self.shape)} holds {self.size} values, got "
                f"{given.size}"
            )
        if given.size <= 1:
            zero = b"" if self.dtype.kind == "s" else 0
            one = given if given.size else np.full(1, zero, self.dtype.numpy)
            return np.broadcast_to(one.reshape(()), self.shape)
        nbytes = self.size * given.itemsize
        if nbytes > EXPANSION_LIMIT:
            raise WireError(
                f"a TensorProto of shape {text_of(self.shape)} gives {given.size} values and "
                f"repeats the last one; dlbridge makes no more than {EXPANSION_LIMIT} bytes of "
                f"that, {nbytes} would be needed"
            )
        array = np.empty(self.size, given.dtype)
        array[: given.size] = given
        array[given.size :] = given[-1]
        return array.reshape(self.shape)


# ---- shape --------------------------------------------------------------------------------------


def text_of(shape: tuple[int, ...]) -> str:
    """Return a shape for an error's text, shortened if it has very many dimensions."""
    if len(shape) <= 16:
        return str(shape)
    return f"{str(shape[:8])[:-1]}, … {len(shape)} dimensions)"


def _read_shape(raw: memoryview, at: int, end: int, dims: list[int]) -> None:
    """Append the dims of a TensorShapeProto."""
    for tag, start, stop in wire.fields(raw, at, end):
        if tag == 0x12:
            dims.append(_read_dim(raw, start, stop))
            if len(dims) > MAX_RANK:
                raise WireError(f"a shape has at most {MAX_RANK} dimensions")
        elif tag == 0x18 and start:
            raise WireError("a TensorProto needs a shape, got one of unknown rank")


def _read_dim(raw: memoryview, at: int, end: int) -> int:
    size = 0
    for tag, start, stop in wire.fields(raw, at, end):
        if tag == 0x08:
            size = wire.signed(start)
        elif tag == 0x12:
            check_text(raw[start:stop])
    if size < 0:
        raise WireError(f"the shape of a TensorProto has no negative extents, got {size}")
    return size


def check_text(text: memoryview) -> None:
    """Raise WireError unless the bytes of a string field are UTF-8."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"malformed protocol buffer: a string is no UTF-8: {error}") from error


def check_size(shape: tuple[int, ...], dtype: DataType) -> int:
    """Return the number of elements; WireError when it, or their bytes, overflow 63 bits.

    As in TensorFlow, dims are multiplied from the left, and a 0 saves only what follows it.
    """
    size = 1
    for extent in shape:
        size *= extent
        if size > _MOST:
            raise WireError(f"the shape {text_of(shape)} has more than 2**63 - 1 elements")
    if size * max(dtype.size, 1) > _MOST:
        raise WireError(f"the shape {text_of(shape)} of {dtype.name} has more than 2**63 - 1 bytes")
    return size


def check_length(length: int, fields: TensorFields) -> None:
    """Raise WireError unless tensor_content has the bytes that dtype and shape ask for."""
    nbytes = fields.size * fields.dtype.size
    if length != nbytes or fields.dtype.kind == "h":
        raise WireError(
            f"tensor_content of shape {text_of(fields.shape)} and dtype {fields.dtype.name} "
            f"needs {nbytes} bytes, got {length}"
        )


_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


def _check_dimensions(shape: tuple[int, ...]) -> None:
    """Refuse shapes that NumPy has no arrays of, although TensorFlow has tensors of them."""
    if len(shape) > _MOST_DIMENSIONS or math.prod([n or 1 for n in shape]) > _MOST // 16:
        raise WireError(f"NumPy has no arrays of shape {text_of(shape)}")


def _split_strings(content: memoryview, size: int) -> Array:
    """Return the strings of a tensor_content: all lengths as varints, then all bytes."""
    if size > len(content):
        raise WireError(f"tensor_content: {size} strings do not fit {len(content)} bytes")
    lengths = []
    at = 0
    for _ in range(size):
        length, at = wire.read_varint(content, at, len(content))
        lengths.append(length)
    if at + sum(lengths) != len(content):
        raise WireError(
            f"tensor_content: {size} strings need {at + sum(lengths)} bytes, got {len(content)}"
        )
    array = np.empty(size, object)
    for place, length in enumerate(lengths):
        array[place] = bytes(content[at : at + length])
        at += length
    return array
