"""Arrays as TensorProtos: a header, and the array's own memory wherever the wire has it so.

The choice between tensor_content and the dtype's typed field is that of `tf.make_tensor_proto`, so
that the bytes are the same: content for more than one element of the types in `_CONTENT`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.proto import varints
from dlbridge.proto.datatypes import DataType
from dlbridge.proto.tensor_fields import MAX_RANK
from dlbridge.proto.typed_values import TYPED_FIELDS
from dlbridge.proto.wire import varint

Array = np.ndarray[Any, Any]

MOST_BYTES = 1 << 31
"""Bytes from which on no protocol buffer is read by anyone."""

# uint16 and what is narrower than a byte are missing here as in TensorFlow.
_CONTENT = frozenset((1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 14, 15, 16, 19, 22, 23, *range(24, 29), 33))
_BITS: dict[int, Any] = {14: np.uint16, 19: np.uint16, 29: np.int8, 31: np.int8, 30: np.uint8,
                         32: np.uint8}  # fmt: skip


def write_shape(shape: tuple[int, ...]) -> bytes:
    """Return a TensorShapeProto."""
    parts = []
    for extent in shape:
        size = b"\x08" + varint(extent) if extent else b""
        parts.append(b"\x12" + varint(len(size)) + size)
    return b"".join(parts)


CONTENT = b"\x22"


class Parts(NamedTuple):
    """A TensorProto in pieces: dtype and shape; the tag of a field, CONTENT or a typed one; values.

    Values are bytes, or a uint8 array or memoryview over the tensor's own memory, or None.
    """

    head: bytes
    tag: bytes = b""
    values: Any = None

    def buffers(self) -> list[Any]:
        """Return header and values, to be written one after the other.

        Raises:
            ArgumentError: the values take 2 GiB or more.
        """
        if self.values is None:
            return [self.head]
        length = len(self.values)
        if length >= MOST_BYTES:
            raise ArgumentError(
                f"a TensorProto holds less than 2 GiB, got {length} bytes; write several, or the "
                "tensor's memory by itself"
            )
        return [self.head + self.tag + varint(length), self.values]


def write_head(dtype: DataType, shape: tuple[int, ...]) -> bytes:
    """Return dtype and shape of a TensorProto; ArgumentError for more than 254 dimensions."""
    if len(shape) > MAX_RANK:
        raise ArgumentError(f"a tensor has at most {MAX_RANK} dimensions, got {len(shape)}")
    dims = write_shape(shape)
    return b"\x08" + varint(dtype.number) + b"\x12" + varint(len(dims)) + dims


def split_tensor(dtype: DataType, array: Array) -> Parts:
    """Return a TensorProto of an array in pieces.

    Args:
        dtype: the DataType of the elements.
        array: of the type `dtype.numpy`, any strides. Its memory is shared if it is row-major and
            the wire has the values as they are in memory. What is one element in memory, repeated
            by strides of 0, is one value on the wire.
    """
    head = write_head(dtype, array.shape)
    if not array.size:
        return Parts(head)
    if array.size > 1 and _is_one_value(array):
        array = array[(slice(0, 1),) * array.ndim]
    elif array.size > 1 and dtype.number in _CONTENT:
        return Parts(head, CONTENT, as_octets(array))
    typed = TYPED_FIELDS[dtype.number]
    if typed.kind == "string":
        return Parts(head + _write_strings(array))
    tag = varint(typed.number << 3 | 2)
    if typed.kind == "varint":
        return Parts(head, tag, _write_varints(dtype, array))
    return Parts(head, tag, as_octets(array))


def _is_one_value(array: Array) -> bool:
    """Tell whether many elements are one in memory, which the wire repeats, too."""
    if 0 not in array.strides:
        return False
    pairs = zip(array.shape, array.strides, strict=True)
    return all(stride == 0 or extent == 1 for extent, stride in pairs)


def as_octets(array: Array) -> Array:
    """Return the memory of an array as uint8[n], shared if it is row-major."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


def _write_varints(dtype: DataType, array: Array) -> bytes | Array:
    if dtype.kind == "b":  # a bool is the same byte in memory and on the wire
        return as_octets(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.number in (14, 19):
        flat = flat.view(np.uint16)
    elif dtype.kind == "q":
        flat = flat.view(array.dtype[0])
    elif dtype.number in _BITS:
        flat = flat.astype(_BITS[dtype.number])
    return varints.encode(flat)


def _write_strings(array: Array) -> bytes:
    parts = []
    for text in array.flat:
        parts += [b"\x42", varint(len(text)), text]
    return b"".join(parts)
