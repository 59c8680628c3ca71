"""TensorProto to and from tensors, by way of its bytes.

load_tensor(buffer)    -> dlbridge.Tensor over the buffer's memory
read_tensor(buffer)    -> TensorValue, also of strings and quantised types
dump_tensor(tensor)    -> bytes, those of tf.make_tensor_proto(tensor).SerializeToString()
dump_tensor_buffers(…) -> the same as buffers, of which the second is the tensor's own memory
make_tensor_proto, make_ndarray: TensorFlow's functions of these names, with our messages

TensorFields reads dtype, shape and where the values are. Everything that TensorFlow reads is read,
with these exceptions, which are refused because TensorFlow silently reads something else: values in
a field of another dtype; more values than elements; an unpaired part of a complex value;
integers that the dtype does not hold; a shape of unknown rank.

`split_tensor` writes a header, and shares the array's memory wherever the wire has the values as
they are in memory. The choice between tensor_content and the dtype's typed field is that of
`tf.make_tensor_proto`, so the bytes are the same: content for more than one element of the types in
`_CONTENT`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, WireError
from dlbridge.exchange.exchange import as_tensor
from dlbridge.proto import messages, wire
from dlbridge.proto.datatypes import DATA_TYPES, DataType
from dlbridge.proto.values import TensorValue, make_value
from dlbridge.proto.wire import flatten
from dlbridge.shape import MAX_RANK, row_major
from dlbridge.signals import not_from_handler
from dlbridge.tensor.tensor import Tensor
from dlbridge.tensor.values import PADDED, as_array

Array = np.ndarray[Any, Any]


def load_tensor(buffer: object) -> Tensor:
    """Return the tensor in a serialised TensorProto, over the memory of `buffer`.

    The tensor shares the buffer if the values are stored as in memory: in tensor_content, or in the
    typed fields of floating point and complex types. A repeated value is a view with strides of 0.
    Other typed fields are decoded into a copy. The time does not depend on the size of the content,
    except for bool, whose bytes are checked.

    Content starts directly after the header, so `data_ptr` is rarely aligned. For consumers that
    need alignment, `convert` makes a copy, or refuses with the reason "alignment" if the caller
    forbids copies; `tensor.copy()` is aligned to 64 bytes.

    Args:
        buffer: bytes, bytearray, memoryview, mmap, … It is kept alive. Do not write to it while the
            tensor is in use.

    Returns:
        A Tensor, read-only if the buffer is read-only or values are repeated; int4 and other types
        below 8 bits have one element in each byte.

    Raises:
        WireError: not a valid TensorProto; see the module.
        ExchangeError: reason "dtype"; DLPack has no such dtype (string, quantised, resource, …).

    Example:
        >>> load_tensor(dump_tensor(np.ones((2, 3), np.float32))).shape
        (2, 3)
    """
    data = flatten(buffer, "load_tensor")
    fields = TensorFields(data)
    dtype = fields.dtype.dlpack
    if dtype is None:
        raise ExchangeError("dtype", f"load_tensor: DLPack has no dtype for {fields.dtype.name}; "
                            "read_tensor reads it into a NumPy array")  # fmt: skip
    content = fields.content
    if content is None or fields.dtype.kind == "b":
        return _over_array(fields.decode(), dtype.triple)
    memory = native.take_buffer(content)
    padded = PADDED if dtype.bits < 8 else 0
    strides = row_major(fields.shape)
    return cast("Tensor", memory._view(fields.shape, strides, 0, dtype.triple, padded))


def _over_array(array: Array, triple: tuple[int, int, int]) -> Tensor:
    """Return a Tensor over the memory of an array of whole bytes per element."""
    address: int = array.__array_interface__["data"][0]
    strides = tuple([stride // array.itemsize for stride in array.strides])
    flags = (PADDED if triple[1] < 8 else 0) | (0 if array.flags.writeable else 1)
    made = native.take_object(array, address, array.shape, strides, triple, (1, 0), flags)
    return cast("Tensor", made)


def read_tensor(buffer: object) -> TensorValue:
    """Return the value in a serialised TensorProto, of any dtype but resource and variant.

    The array of the value shares the buffer as in `load_tensor`. It is decoded at once, so that
    invalid contents raise here.

    Raises:
        WireError: not a valid TensorProto.
    """
    value = lazy_value(TensorFields(flatten(buffer, "read_tensor")))
    value.array  # noqa: B018  (decodes)
    return value


def lazy_value(fields: TensorFields) -> TensorValue:
    """Return a value whose contents are decoded on first access."""
    return TensorValue.lazy(fields.dtype, fields.shape, fields.decode)


def dump_tensor(tensor: Any, dtype: object = None, shape: Any = None) -> bytes:
    """Return a serialised TensorProto: `tf.make_tensor_proto(…).SerializeToString()`.

    Args:
        tensor: a tensor of any framework in memory that the CPU can read, any strides and byte
            order; a TensorValue; or numbers, text and lists of them, as in `make_value`.
        dtype: of the elements, as in `make_value`; None keeps that of `tensor`.
        shape: of the TensorProto, as in `make_value`; None keeps that of `tensor`.

    Raises:
        ArgumentError: the values take 2 GiB or more.
        ExchangeError: the memory cannot be read (on a device: reason "device").
        UnsupportedTypeError: TensorFlow has no such dtype.
    """
    return native.join(dump_tensor_buffers(tensor, dtype, shape))


def dump_tensor_buffers(tensor: Any, dtype: object = None, shape: Any = None) -> list[Any]:
    """Return the bytes of `dump_tensor` as a list of buffers, to be written in order.

    Returns:
        The header; and the values, if there are any: an array of bytes over the tensor's own memory
        if it is row-major and the wire has the values as they are in memory, else a copy. It keeps
        the memory alive and shows later writes to it.

    Example:
        >>> header, memory = dump_tensor_buffers(np.ones(1000))
        >>> len(header), memory.nbytes
        (12, 8000)
    """
    value = as_value(tensor, dtype, shape)
    return write_value(value)


def write_value(value: TensorValue) -> list[Any]:
    """Return a TensorProto of the value as buffers, as `dump_tensor_buffers` does."""
    return split_value(value).buffers()


def split_value(value: TensorValue) -> Parts:
    """Return a TensorProto of the value in pieces; typed values from the wire are unchanged."""
    fields = getattr(value.decode, "__self__", None)
    if not isinstance(fields, TensorFields):
        return split_tensor(value.dtype, value.array)
    if fields.content is None or fields.dtype.kind == "s":
        return Parts(bytes(fields.raw))
    return Parts(write_head(fields.dtype, fields.shape), CONTENT, fields.content)


def as_value(x: Any, dtype: object = None, shape: Any = None) -> TensorValue:
    """Return a tensor of any framework, or any argument of `make_value`, as a TensorValue.

    The memory of tensors is shared when neither `dtype` nor `shape` is given.
    """
    if isinstance(x, TensorValue) and dtype is None and shape is None:
        return x
    if not isinstance(x, np.ndarray) and _is_tensor(x):
        x = as_array(as_tensor(x), "dump_tensor")
    if isinstance(x, np.ndarray) and dtype is None and shape is None and x.dtype.kind not in "OSU":
        return TensorValue.of(x)
    return make_value(x, dtype, shape)


def _is_tensor(x: object) -> bool:
    kinds = ("__dlpack__", "__cuda_array_interface__")
    return isinstance(x, native.TensorBase) or any(hasattr(type(x), name) for name in kinds)


def make_tensor_proto(
    values: Any,
    dtype: object = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> Any:
    """Return a TensorProto message with the same fields as TensorFlow's.

    Arguments and errors are those of `make_value` and `dump_tensor`. A TensorProto, ours or
    TensorFlow's, is returned unchanged.
    """
    if messages.is_message(values, "TensorProto"):
        return values
    if verify_shape or allow_broadcast:
        value = make_value(values, dtype, shape, verify_shape, allow_broadcast)
    else:
        value = as_value(values, dtype, shape)
    return messages.parse("TensorProto", b"".join(write_value(value)))


def make_ndarray(message: Any) -> Array:
    """Return the values of a TensorProto, ours or TensorFlow's, as a new writable array.

    Raises:
        WireError: the message is invalid; see the module.
    """
    messages.require("make_ndarray", message, "TensorProto")
    return read_tensor(message.SerializeToString()).array.copy()


# ---- a TensorProto as bytes: read as far as needed, written around an array's own memory --------

MOST_BYTES = 1 << 31
"""Size in bytes from which on no protocol buffer can be read."""
CONTENT = b"\x22"
"""The tag of TensorProto.tensor_content."""

_MOST = 2**63 - 1
# Several values, the last of which is repeated, need more memory than they take on the wire.
EXPANSION_LIMIT = 1 << 28

# ---- typed fields --------------------------------------------------------------------------------


class Typed(NamedTuple):
    """A field of values: its number and encoding, and the type of its array."""

    number: int
    kind: str
    """"fixed" and "bytes": as in memory; "varint"; "string"."""
    numpy: Any = None
    """The type of one value in memory, if `kind` is "fixed"."""


_INT = Typed(7, "varint", np.int32)
_HALF = Typed(13, "varint", np.uint16)
_FLOAT8 = Typed(18, "bytes")
TYPED_FIELDS: dict[int, Typed] = {
    1: Typed(5, "fixed", np.float32),
    2: Typed(6, "fixed", np.float64),
    7: Typed(8, "string"),
    8: Typed(9, "fixed", np.float32),
    9: Typed(10, "varint", np.int64),
    10: Typed(11, "varint", np.bool_),
    14: _HALF,
    18: Typed(12, "fixed", np.float64),
    19: _HALF,
    22: Typed(16, "varint", np.uint32),
    23: Typed(17, "varint", np.uint64),
    **dict.fromkeys((3, 4, 5, 6, 11, 12, 13, 15, 16, 17, 29, 30, 31, 32), _INT),
    **dict.fromkeys((24, 25, 26, 27, 28, 33), _FLOAT8),
}
"""The field of each dtype's values, by the DataType's number."""

_FIELD_NAMES = {
    5: "float_val", 6: "double_val", 7: "int_val", 8: "string_val", 9: "scomplex_val",
    10: "int64_val", 11: "bool_val", 12: "dcomplex_val", 13: "half_val",
    14: "resource_handle_val", 15: "variant_val", 16: "uint32_val", 17: "uint64_val",
    18: "float8_val",
}  # fmt: skip
_STRINGS = (8, 14, 15)  # an empty field is a value here


def _wire_types(number: int) -> tuple[int, ...]:
    """Return the wire types of a field of values; with others it is an unknown field."""
    if number in (*_STRINGS, 18):
        return (wire.LENGTH,)
    if number in (5, 9):
        return (wire.LENGTH, wire.FIXED32)
    return (wire.LENGTH, wire.FIXED64 if number in (6, 12) else wire.VARINT)


TAGS = frozenset(number << 3 | kind for number in _FIELD_NAMES for kind in _wire_types(number))
"""The tags of all fields of values, packed and not."""

# ---- reading -------------------------------------------------------------------------------------


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
            elif tag in TAGS:
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
            validate_typed(self.raw, self._values)
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
            A view of the buffer if tensor_content holds all elements; a view with strides of 0 if
            one value is repeated; else a copy.

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
            return self._repeat(read_typed(self.dtype, self.raw, self._values))
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


# ---- shape ---------------------------------------------------------------------------------------


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
    except not_from_handler(UnicodeDecodeError) as error:
        raise WireError(f"malformed protocol buffer: a string is not UTF-8: {error}") from error


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
    """Refuse shapes of TensorFlow that NumPy arrays cannot have."""
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


# ---- reading typed values ------------------------------------------------------------------------


def read_typed(dtype: DataType, raw: memoryview, values: list[wire.Field]) -> Array:
    """Return the values in the field of `dtype` in one dimension, shared where they are one run.

    Raises:
        WireError: there are values in another field, or out of the dtype's range, or cut short.
    """
    typed = TYPED_FIELDS[dtype.number]
    for tag, start, end in values:
        number = tag >> 3
        if number != typed.number and (
            start != end or tag & 7 != wire.LENGTH or number in _STRINGS
        ):
            raise WireError(
                f"a TensorProto of {dtype.name} has its values in {_FIELD_NAMES[typed.number]}, "
                f"got {_FIELD_NAMES[number]}"
            )
    given: Array = _READERS[typed.kind](
        raw, [it for it in values if it[0] >> 3 == typed.number], typed
    )
    if typed.kind == "string":
        return given
    if typed.kind == "varint":
        given = _narrow(given, typed, dtype)
    if given.nbytes % dtype.size:
        raise WireError(f"{dtype.name}: real and imaginary parts must come in pairs")
    array: Array = given.view(dtype.numpy)
    return array


def validate_typed(raw: memoryview, values: list[wire.Field]) -> None:
    """Raise WireError if values are malformed that tensor_content makes irrelevant."""
    for field in values:
        number = field[0] >> 3
        if number in (14, 15):
            raise WireError(f"a TensorProto with content has values in {_FIELD_NAMES[number]}")
        typed = next(typed for typed in TYPED_FIELDS.values() if typed.number == number)
        _READERS[typed.kind](raw, [field], typed)


def _read_fixed(raw: memoryview, values: list[wire.Field], typed: Typed) -> Array:
    """Return packed and single values as one array, a view where there is only one run."""
    width = np.dtype(typed.numpy).itemsize
    for _, start, end in values:
        if (end - start) % width:
            raise WireError(f"{_FIELD_NAMES[typed.number]}: the last value is cut short")
    runs = [raw[start:end] for _, start, end in values]
    return np.frombuffer(runs[0] if len(runs) == 1 else b"".join(runs), typed.numpy)


def _read_varints(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    runs = []
    for tag, start, end in values:
        packed = tag & 7 == wire.LENGTH
        runs.append(wire.decode_varints(raw[start:end]) if packed else np.array([start], np.uint64))
    return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, np.uint64), *runs])


def _narrow(words: Array, typed: Typed, dtype: DataType) -> Array:
    """Return 64-bit varints as values of the field, which must be in the range of `dtype`."""
    if typed.numpy is np.bool_:
        return np.asarray(words != 0)
    if typed.numpy in (np.int64, np.uint64):
        return words.view(typed.numpy)
    low = words.astype(np.uint32)
    if typed.numpy is np.uint32:
        return low
    values = low.view(np.int32)
    least, most, target = _RANGES[dtype.number]
    if values.size and not least <= int(values.min()) <= int(values.max()) <= most:
        raise WireError(
            f"{_FIELD_NAMES[typed.number]} of {dtype.name}: values from {least} to {most} are "
            f"required, got {int(values.min())} to {int(values.max())}"
        )
    return values.astype(target)


def _range(bits: int, sign: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, (1 << bits) - 1)


# Some writers sign-extend the bits of 16-bit floats.
_RANGES: dict[int, tuple[int, int, Any]] = {
    14: (-(1 << 15), (1 << 16) - 1, np.uint16),
    19: (-(1 << 15), (1 << 16) - 1, np.uint16),
    **{
        number: (*_range(bits, sign), np.dtype(f"{'i' if sign else 'u'}{max(bits // 8, 1)}"))
        for number, bits, sign in (
            (3, 32, True), (4, 8, False), (5, 16, True), (6, 8, True), (11, 8, True),
            (12, 8, False), (13, 32, True), (15, 16, True), (16, 16, False), (17, 16, False),
            (29, 4, True), (30, 4, False), (31, 2, True), (32, 2, False),
        )
    },
}  # fmt: skip


def _read_octets(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    """Return the last value of a field of bytes that is not repeated."""
    start, end = values[-1][1:] if values else (0, 0)
    return np.frombuffer(raw[start:end], np.uint8)


def _read_strings(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    array = np.empty(len(values), object)
    array[:] = [bytes(raw[start:end]) for _, start, end in values]
    return array


_READERS = {
    "fixed": _read_fixed,
    "varint": _read_varints,
    "bytes": _read_octets,
    "string": _read_strings,
}

# ---- writing -------------------------------------------------------------------------------------

# As in TensorFlow, uint16 and types narrower than a byte are not among these.
_CONTENT = frozenset((1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 14, 15, 16, 19, 22, 23, *range(24, 29), 33))
_BITS: dict[int, Any] = {14: np.uint16, 19: np.uint16, 29: np.int8, 31: np.int8, 30: np.uint8,
                         32: np.uint8}  # fmt: skip


def write_shape(shape: tuple[int, ...]) -> bytes:
    """Return a TensorShapeProto."""
    parts = []
    for extent in shape:
        size = b"\x08" + wire.varint(extent) if extent else b""
        parts.append(b"\x12" + wire.varint(len(size)) + size)
    return b"".join(parts)


class Parts(NamedTuple):
    """A TensorProto in pieces: dtype and shape; the tag of a field, CONTENT or a typed one; values.

    Values are bytes, a uint8 array or memoryview over the tensor's own memory, or None.
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
        return [self.head + self.tag + wire.varint(length), self.values]


def write_head(dtype: DataType, shape: tuple[int, ...]) -> bytes:
    """Return dtype and shape of a TensorProto; ArgumentError for more than 254 dimensions."""
    if len(shape) > MAX_RANK:
        raise ArgumentError(f"a tensor has at most {MAX_RANK} dimensions, got {len(shape)}")
    dims = write_shape(shape)
    return b"\x08" + wire.varint(dtype.number) + b"\x12" + wire.varint(len(dims)) + dims


def split_tensor(dtype: DataType, array: Array) -> Parts:
    """Return a TensorProto of an array in pieces.

    Args:
        dtype: the DataType of the elements.
        array: of the type `dtype.numpy`, any strides. Its memory is shared if it is row-major and
            the wire has the values as they are in memory. One element in memory, repeated by
            strides of 0, is one value on the wire.
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
    tag = wire.varint(typed.number << 3 | 2)
    if typed.kind == "varint":
        return Parts(head, tag, _write_varints(dtype, array))
    return Parts(head, tag, as_octets(array))


def _is_one_value(array: Array) -> bool:
    """Return True if all elements are one in memory, by strides of 0."""
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
    return wire.encode_varints(flat)


def _write_strings(array: Array) -> bytes:
    parts = []
    for text in array.flat:
        parts += [b"\x42", wire.varint(len(text)), text]
    return b"".join(parts)
