"""TensorProto to and from tensors: the public functions.

load_tensor(buffer)    -> dlbridge.Tensor over the buffer's memory
read_tensor(buffer)    -> TensorValue, also of strings and quantised types
dump_tensor(tensor)    -> bytes, those of tf.make_tensor_proto(tensor).SerializeToString()
dump_tensor_buffers(…) -> the same as buffers, of which the second is the tensor's own memory
make_tensor_proto, make_ndarray: TensorFlow's functions of these names, with our messages
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange.exchange import as_tensor
from dlbridge.proto import messages
from dlbridge.proto.making import make_value
from dlbridge.proto.tensor_bytes import CONTENT, Parts, TensorFields, split_tensor, write_head
from dlbridge.proto.values import TensorValue
from dlbridge.proto.wire import flatten
from dlbridge.shape import row_major
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
        WireError: not a valid TensorProto; see `tensor_bytes`.
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
        WireError: the message is invalid; see `tensor_bytes`.
    """
    return read_tensor(message.SerializeToString()).array.copy()
