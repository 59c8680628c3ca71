"""Pickle and copy Tensors: the memory goes as one buffer, out of band where protocol 5 allows.

With protocol 5 and a `buffer_callback`, nothing is copied into the pickle, and unpickling is a
Tensor over the buffers that the reader passes: read-only if they are. Without one the bytes are
part of the pickle. Memory that is compact in some order of dimensions is stored as it lies; any
other layout is packed first.

CUDA memory stays where it is: the pickle has a handle of it for other processes of this machine,
valid while the sender runs; see `cuda.ipc`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dlbridge._core import native
from dlbridge.cuda import ipc
from dlbridge.dtype import make_dtype
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.shape import row_major
from dlbridge.signals import not_from_handler
from dlbridge.tensor import values, views

if TYPE_CHECKING:
    from dlbridge.tensor.tensor import Tensor

_CUDA = 2
_FLAGS = values.READ_ONLY | values.PADDED


def reduce(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """Return what pickle needs to build `tensor` again.

    Raises:
        ExchangeError: with reason "device", the memory is not in the CPU's reach, nor CUDA's; with
            reason "stream", the current stream is being captured.
        CUDAError: the driver failed.
    """
    if values.is_on_cuda(tensor):
        return _reduce_cuda(tensor)
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


def _reduce_cuda(tensor: Tensor) -> tuple[Any, ...]:
    """Return a ticket for the memory; a tensor without elements has none."""
    sent: native.TensorBase = tensor
    ticket: tuple[Any, ...] = ()
    if tensor.size:
        sent, ticket = ipc.send(tensor)
    layout = (tensor.shape, sent.strides, tensor._dtype_triple, tensor.flags & _FLAGS)
    arguments = (type(tensor), tuple(ticket), tensor._device_pair[1], *layout)
    return rebuild_cuda, arguments, getattr(tensor, "__dict__", None) or None


def rebuild_cuda(
    cls: type[Tensor],
    ticket: tuple[Any, ...],
    device: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: tuple[int, int, int],
    flags: int,
) -> Tensor:
    """Return the Tensor of class `cls` over what another process, or this one, has sent.

    It is the sender's memory, or a copy of it on the same GPU where that memory cannot be shared.
    The current stream waits for the sender's work; the sender keeps the memory until this tensor is
    gone. `device` is the sender's index, for a tensor without elements.

    Raises:
        ArgumentError: what the pickle says does not agree.
        ExchangeError: with reason "device", the sender has ended or let go of the memory, or this
            process does not see its GPU.
        CUDAError: the driver failed.
    """
    _check_class(cls)
    _check_layout(shape, strides, dtype, flags)
    if type(device) is not int or not 0 <= device < 2**31:
        raise ArgumentError(f"unpickling: device must be the index of one, got {device!r}")
    if ticket:
        found, reach = _check_ticket(ticket, shape, strides, dtype, flags)
        memory = ipc.receive(found, shape, strides, dtype, flags, reach)
    elif math.prod(shape) == 0:
        memory = native.take_object(None, 0, shape, strides, dtype, (_CUDA, device), flags)
    else:
        raise ArgumentError(f"unpickling: shape {shape} has elements, and the pickle no memory")
    return memory._view(shape, strides, cls=cls)  # type: ignore[return-value]


def _check_class(cls: object) -> None:
    if not isinstance(cls, type) or not issubclass(cls, native.TensorBase):
        raise UnsupportedTypeError(f"unpickling: a class of Tensors is required, got {cls!r}")


_WORDS = range(-(2**63), 2**63)


def _check_layout(shape: object, strides: object, dtype: object, flags: object) -> None:
    if not _is_dims(shape) or not _is_dims(dtype) or len(dtype) != 3:  # type: ignore[arg-type]
        raise ArgumentError(
            f"unpickling: shape and dtype must be tuples of integers from 0 on, got {shape!r}, "
            f"{dtype!r}"
        )
    make_dtype(*dtype)  # type: ignore[misc]
    if (
        type(strides) is not tuple
        or [type(n) for n in strides] != [int] * len(shape)  # type: ignore[arg-type]
        or not all(n in _WORDS for n in (*shape, *strides))  # type: ignore[misc]
    ):
        raise ArgumentError(f"unpickling: shape {shape} and strides {strides!r} do not agree")
    if type(flags) is not int or flags & ~_FLAGS:
        raise ArgumentError(f"unpickling: flags must be at most {_FLAGS}, got {flags!r}")


def _check_ticket(
    given: tuple[Any, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: tuple[int, int, int],
    flags: int,
) -> tuple[ipc.Ticket, tuple[int, int]]:
    """Return the ticket and the reach of the elements in bytes, see `ipc.receive`.

    The allocation in the ticket is compared first, which is often enough.
    """
    ticket = ipc.read_ticket(given)
    _, bits, lanes = dtype
    width = (-(-bits // 8) * 8 if flags & values.PADDED else bits) * lanes
    low, high = views.reach(shape, strides)
    first, end = low * width // 8, -(-(high + 1) * width // 8)
    if ticket.offset + first < 0 or ticket.offset + end > ticket.nbytes:
        raise ArgumentError(
            f"unpickling: shape {shape} with strides {strides} leaves the {ticket.nbytes} bytes of "
            f"the allocation at offset {ticket.offset}"
        )
    return ticket, (first, end)


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
        UnsupportedTypeError: `cls` is no class of Tensors, or `data` no buffer.
    """
    _check_class(cls)
    _check_state(shape, dtype, order, flags)
    try:
        memory = native.take_buffer(data)
    except not_from_handler(TypeError) as error:
        raise UnsupportedTypeError(f"unpickling: the memory must be a buffer: {error}") from error
    _check_memory(memory, shape, dtype, flags)
    strides = row_major(shape)
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
        raise ArgumentError(
            f"unpickling: {order} is not an order of the dimensions of shape {shape}"
        )
    if type(flags) is not int or flags not in (0, values.PADDED):
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
