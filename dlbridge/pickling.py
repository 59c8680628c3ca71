"""Pickle and copy Tensors: the memory goes as one buffer, out of band where protocol 5 allows.

With protocol 5 and a `buffer_callback`, nothing is copied into the pickle, and unpickling is a
Tensor over the buffers that the reader passes: read-only if they are. Without one the bytes are
part of the pickle. Memory that is compact in some order of dimensions is stored as it lies; any
other layout is packed first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge import values, views
from dlbridge._core import native

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
        ordered = native.allocate(host.shape, host._dtype_triple)
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
    """Return the Tensor of class `cls` over `data`, whose dimensions lie in this order."""
    strides = views.row_major(shape)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    layout = views.transpose(shape, strides, inverse)
    memory = native.take_buffer(data)
    return memory._view(layout.shape, layout.strides, 0, dtype, flags, cls)  # type: ignore[return-value]
