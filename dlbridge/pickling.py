"""Pickle and copy Tensors: the memory goes as one buffer, out of band where protocol 5 allows.

With protocol 5 and a `buffer_callback`, nothing is copied into the pickle, and unpickling is a
Tensor over the buffers that the reader passes: read-only if they are. Without one the bytes are
part of the pickle. Memory that is compact in some order of dimensions is stored as it lies; any
other layout is packed first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dlbridge import values, views
from dlbridge._core import native
from dlbridge.dtype import make_dtype
from dlbridge.errors import ArgumentError

if TYPE_CHECKING:
    from dlbridge.tensor import Tensor


def reduce(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """Return what pickle needs to build `tensor` again.

    Raises:
        ExchangeError: with reason "device", the memory is not in the CPU's reach.
    """
    host = values.on_host(tensor, "pickling")
    order = tuple(sorted(range(host.ndim), key=lambda i: -host.strides[i]))
    layout = views.transpose(host.shape, host.strides, order)
    ordered = host._view(layout.shape, layout.strides)
    if not ordered.is_contiguous:
        ordered = values.allocate(host.shape, host._dtype_triple)
        native.copy_into(ordered, host)
        order = tuple(range(host.ndim))
    flags = ordered.flags & values.PADDED
    data = _data(ordered, tensor.readonly, protocol)
    arguments = (type(tensor), data, ordered.shape, tensor._dtype_triple, order, flags)
    return rebuild, arguments, getattr(tensor, "__dict__", None) or None


def _data(tensor: native.TensorBase, readonly: bool, protocol: int) -> object:
    """Return the bytes of a contiguous tensor as pickle carries them best."""
    memory: Any = values.raw_bytes(tensor)
    if readonly and not memory.readonly:
        memory = memory._view(memory.shape, memory.strides, set_flags=values.READ_ONLY)
    if protocol >= 5:
        from pickle import PickleBuffer

        return PickleBuffer(memory)
    return (bytes if readonly else bytearray)(memory)


def rebuild(
    cls: type[Tensor],
    data: object,
    shape: tuple[int, ...],
    dtype: tuple[int, int, int],
    order: tuple[int, ...],
    flags: int,
) -> Tensor:
    """Return the Tensor of class `cls` over `data`, whose dimensions lie in this order.

    Raises:
        ArgumentError: what the pickle says does not agree, or `data`, which a reader may pass out
            of band, is not all of the memory.
    """
    _check_state(shape, dtype, order, flags)
    memory = native.take_buffer(data)
    _check_memory(memory, shape, dtype, flags)
    strides = views.row_major(shape)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    layout = views.transpose(shape, strides, inverse)
    return memory._view(layout.shape, layout.strides, 0, dtype, flags, cls)  # type: ignore[return-value]


def _check_state(shape: object, dtype: object, order: object, flags: object) -> None:
    """Refuse what `reduce` never writes; nothing else keeps a reader inside the memory."""
    if not all(_is_dims(each) for each in (shape, dtype, order)) or len(dtype) != 3:  # type: ignore[arg-type]
        raise ArgumentError(f"unpickling: shape, dtype and order must be tuples of integers from 0 "
                            f"on, got {shape!r}, {dtype!r}, {order!r}")  # fmt: skip
    make_dtype(*dtype)  # type: ignore[misc]
    if sorted(order) != list(range(len(shape))):  # type: ignore[call-overload, arg-type]
        raise ArgumentError(f"unpickling: {order} is no order of the dimensions of shape {shape}")
    if flags not in (0, values.PADDED):
        raise ArgumentError(f"unpickling: flags must be 0 or {values.PADDED}, got {flags!r}")


def _is_dims(given: object) -> bool:
    return type(given) is tuple and all(type(n) is int and n >= 0 for n in given)


def _check_memory(
    memory: native.TensorBase, shape: tuple[int, ...], dtype: tuple[int, int, int], flags: int
) -> None:
    """Refuse a buffer that is not compact, or too short for the elements."""
    _, bits, lanes = dtype
    nbits = math.prod(shape) * lanes * (-(-bits // 8) * 8 if flags else bits)
    if not memory.is_contiguous or memory.nbytes * 8 < nbits:
        raise ArgumentError(
            f"unpickling: shape {shape} needs a contiguous buffer of {(nbits + 7) // 8} bytes or "
            f"more, got {memory.nbytes} bytes with strides {memory.strides}"
        )
    if math.prod(max(extent, 1) for extent in shape) >= 2**63:
        raise ArgumentError(f"unpickling: shape {shape} overflows 64 bits")
