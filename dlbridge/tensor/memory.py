"""Make Tensors of new memory, or of memory that others own."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dlbridge._core import native
from dlbridge.calls import check_flag, public
from dlbridge.device import as_device
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
)
from dlbridge.shape import row_major
from dlbridge.signals import not_from_handler
from dlbridge.tensor import values
from dlbridge.tensor.allocator import (
    Allocator,
    allocate_native,
    allocator_of,
    check_alignment,
    check_allocator,
)
from dlbridge.tensor.tensor import Tensor

aligned_numpy = native.aligned_numpy
_MOST_BITS = 2**63 - 1


# ---- new memory ---------------------------------------------------------------------------------

# Of new memory without a dtype, as of Python's floats.
_DEFAULT = as_dtype(float)


def _kind(dtype: object) -> DType:
    """Return the dtype that was given; a number in its place is meant for an extent."""
    if dtype is None:
        return _DEFAULT
    if isinstance(dtype, int):
        raise UnsupportedTypeError(
            f"the second argument is the dtype, and {dtype!r} cannot be read as a dtype; pass a "
            "name such as 'float32', and a shape of several dimensions as a tuple: (2, 3)"
        )
    return as_dtype(dtype)


def _empty(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor of new memory: the Python path behind `dlbridge.empty`."""
    kind = _kind(dtype)
    extents, pair = _check_shape(shape, kind), as_device(device).pair
    source = check_allocator(allocator) or allocator_of(pair)
    return source.new_tensor(extents, kind, pair, check_alignment(alignment))


def _zeros(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor of zeros: the Python path behind `dlbridge.zeros`."""
    if allocator is None and as_device(device).pair == values.CPU:
        kind = _kind(dtype)
        return allocate_native(_check_shape(shape, kind), kind, check_alignment(alignment), True)
    tensor = empty(shape, dtype, device=device, allocator=allocator, alignment=alignment)
    native.fill(tensor if values.is_on_cuda(tensor) else values.on_host(tensor, "zeros"), 0)
    return tensor


def _full(
    shape: int | Sequence[int],
    fill_value: object,
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor of one number: the Python path behind `dlbridge.full`.

    Example:
        >>> full((2, 2), 1.5, "bfloat16")
        Tensor([[1.5, 1.5],
                [1.5, 1.5]], shape=(2, 2), dtype=bfloat16, device=cpu)
    """
    if dtype is None:
        dtype = getattr(fill_value, "dtype", type(fill_value))
    tensor = empty(shape, dtype, device=device, allocator=allocator, alignment=alignment)
    values.assign(tensor, fill_value)
    return tensor


def _ones(
    shape: int | Sequence[int],
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor of ones: the Python path behind `dlbridge.ones`."""
    return full(shape, True, _kind(dtype), device=device, allocator=allocator, alignment=alignment)


for _slow in (_empty, _zeros, _ones, _full):
    _slow.__qualname__ = _slow.__name__[1:]  # as errors of a wrong call show it
native.set_hooks(
    slow_empty=public(_empty),
    slow_zeros=public(_zeros),
    slow_ones=public(_ones),
    slow_full=public(_full),
)
if TYPE_CHECKING:
    empty, zeros, ones, full = _empty, _zeros, _ones, _full
else:  # the same, in C for plain arguments
    empty, zeros, ones, full = native.empty, native.zeros, native.ones, native.full


def trim() -> int:
    """Free the CPU memory that dlbridge keeps for reuse, at most 256 MiB; return its bytes.

    Freed memory of Tensors, and of NumPy arrays made under `aligned_numpy`, is kept because new
    pages are slow to touch. `CPUAllocator().cached_bytes` says how much there is.
    dlbridge calls `trim` by itself when memory runs out. Memory of CUDA has
    `dlbridge.cuda.trim`.

    Example:
        >>> import dlbridge
        >>> del_me = dlbridge.empty(2**20, "uint8")
        >>> del del_me
        >>> dlbridge.trim() >= 2**20
        True
    """
    return native.trim()


@public
def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: object = None,
    *,
    device: object = "cpu",
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a one-dimensional Tensor of the numbers from `start` to `stop`, `stop` excluded.

    Args:
        start: the first number; with `start` alone, numbers from 0 to `start`.
        stop: the end.
        step: the distance of two numbers, not 0.
        dtype: None is int64 for integers and float64 else. The numbers must fit it, and those that
            are no integers need floating point.
        device: as of `empty`.
        allocator: as of `empty`.
        alignment: as of `empty`.

    Raises:
        ArgumentError: `step` is 0, or there are too many numbers.
        AllocationError: there is no memory.
        ExchangeError: with reason "dtype", a number does not fit the dtype.

    Example:
        >>> arange(2, 8, 2).tolist(), arange(3, dtype="bfloat16").tolist()
        ([2, 4, 6], [0.0, 1.0, 2.0])
    """
    given: dict[str, object] = {"start": start, "stop": 0 if stop is None else stop, "step": step}
    for name, number in given.items():
        if isinstance(number, str) or not hasattr(number, "__float__"):
            raise UnsupportedTypeError(f"arange: {name} must be a number, got {number!r}")
    if step == 0:
        raise ArgumentError(f"arange: step must not be zero, got {step!r}")
    try:
        numbers = np.arange(0, start, step) if stop is None else np.arange(start, stop, step)
    except not_from_handler(ValueError, ZeroDivisionError, OverflowError) as error:
        raise ArgumentError(f"arange: {error}") from error
    except not_from_handler(MemoryError) as error:
        raise AllocationError(f"arange: {error}") from error
    kind = numbers.dtype if dtype is None else dtype
    return full(
        numbers.shape, numbers, kind, device=device, allocator=allocator, alignment=alignment
    )


# ---- new memory like that of a tensor -----------------------------------------------------------


@public
def empty_like(
    x: Any,
    dtype: object = None,
    *,
    device: object = None,
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor as `empty` does, of the shape of `x`.

    Args:
        x: a Tensor, or anything that `from_dlpack` takes.
        dtype: None for that of `x`.
        device: None for that of `x`.
        allocator: as of `empty`.
        alignment: as of `empty`.

    Example:
        >>> import numpy
        >>> empty_like(numpy.ones((2, 3), "float32")).dtype
        DType('float32')
    """
    return _make_like(empty, x, dtype, device, allocator, alignment)


@public
def zeros_like(
    x: Any,
    dtype: object = None,
    *,
    device: object = None,
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor as `zeros` does, of the shape of `x`; see `empty_like`."""
    return _make_like(zeros, x, dtype, device, allocator, alignment)


@public
def ones_like(
    x: Any,
    dtype: object = None,
    *,
    device: object = None,
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor as `ones` does, of the shape of `x`; see `empty_like`."""
    return _make_like(ones, x, dtype, device, allocator, alignment)


@public
def full_like(
    x: Any,
    fill_value: object,
    dtype: object = None,
    *,
    device: object = None,
    allocator: Allocator | None = None,
    alignment: int = 64,
) -> Tensor:
    """Make a Tensor of the shape and dtype of `x`, each element equal to `fill_value`.

    Example:
        >>> full_like(zeros((2, 2), "int8"), 7).tolist()
        [[7, 7], [7, 7]]
    """
    make = partial(full, fill_value=fill_value)
    return _make_like(make, x, dtype, device, allocator, alignment)


def _make_like(
    make: Callable[..., Tensor],
    x: Any,
    dtype: object,
    device: object,
    allocator: Allocator | None,
    alignment: int,
) -> Tensor:
    """Call `make` with the shape of `x`, and its dtype and device where none is given."""
    like = x if isinstance(x, native.TensorBase) else native.from_dlpack(x)
    return make(
        like.shape,
        dtype=like.dtype if dtype is None else dtype,
        device=like.device if device is None else device,
        allocator=allocator,
        alignment=alignment,
    )


def _check_shape(shape: int | Sequence[int], dtype: DType) -> tuple[int, ...]:
    """Return the shape as a tuple; its size in bits must fit 63 bits, as the core counts."""
    given = _extents(shape)
    extents = tuple(_integer(extent, "an extent") for extent in given)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"shape {extents} has a negative extent")
    if math.prod(max(extent, 1) for extent in extents) * dtype.itembits > _MOST_BITS:
        raise ArgumentError(f"shape {extents} of {dtype} overflows 64 bits")
    return extents


def _extents(shape: Any) -> Sequence[Any]:
    if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)):
        return shape
    return (shape,)


def _integer(given: object, what: str) -> int:
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except not_from_handler(TypeError):
        raise ArgumentError(f"{what} must be an integer, got {given!r}") from None


@public
def set_aligned_numpy(enabled: bool = True) -> bool:
    """Allocate NumPy's new arrays as `aligned_numpy` does, without a `with` block.

    It is for the current thread or task; a thread that starts later begins with NumPy's own memory
    handler and needs a call of its own.

    Args:
        enabled: False for NumPy's own memory again.

    Returns:
        Whether it was enabled before.
    """
    check_flag("set_aligned_numpy", "enabled", enabled)
    return native.set_aligned_numpy(enabled)


# ---- memory of others ---------------------------------------------------------------------------


@public
def from_buffer(
    buffer: object,
    dtype: object = None,
    shape: int | Sequence[int] | None = None,
    offset: int = 0,
) -> Tensor:
    """Make a Tensor over the memory of any object with the buffer protocol, without a copy.

    Args:
        buffer: bytes, bytearray, memoryview, array.array, mmap, a NumPy array, … It is kept alive,
            and locked as `memoryview` locks it. The Tensor is read-only if the buffer is.
        dtype: how to read the bytes; None keeps the buffer's own format.
        shape: extents, one of which may be -1; None is what fits in one dimension, or the buffer's
            own shape if `dtype` is also None and `offset` 0.
        offset: bytes to leave out at the start.

    Raises:
        ArgumentError: the bytes do not hold the shape, or the buffer is closed or released.
        ExchangeError: the buffer's format is none that DLPack can name, or it is not contiguous
            although it is to be read as something else.
        UnsupportedTypeError: `buffer` has no buffer protocol.

    Example:
        >>> from_buffer(bytearray(range(8)), "int16", (2, -1), offset=4).tolist()
        [[1284], [1798]]
    """
    buffer, offset = _open(buffer), _integer(offset, "from_buffer: offset")
    own = native.take_buffer(buffer) if dtype is None else None
    if own is not None and shape is None and not offset:
        return cast("Tensor", own)
    kind = own.dtype if own is not None else as_dtype(dtype)
    memory = native.take_buffer(_flatten(buffer))
    if not 0 <= offset <= memory.nbytes:
        raise ArgumentError(f"from_buffer: offset {offset} is not in the {memory.nbytes} bytes")
    extents = _fit(shape, kind, memory.nbytes - offset)
    made = memory._view(extents, row_major(extents), offset, kind.triple)
    return cast("Tensor", made)


def _open(buffer: Any) -> memoryview:
    """Return the memory of an object with the buffer protocol."""
    try:
        return memoryview(buffer)
    except DLBridgeError:
        raise
    except not_from_handler(TypeError) as error:
        raise UnsupportedTypeError(f"from_buffer: {error}") from error
    except not_from_handler(ValueError) as error:
        raise ArgumentError(f"from_buffer: {error}") from error
    except not_from_handler(BufferError) as error:
        raise ExchangeError("producer", f"from_buffer: {error}") from error


def _flatten(view: memoryview) -> memoryview:
    """Return a buffer's memory as one run of bytes."""
    from pickle import PickleBuffer

    if not view.c_contiguous:
        raise ExchangeError(
            "strides", "from_buffer: only C-contiguous memory can be read as another dtype or shape"
        )
    return PickleBuffer(view).raw()


def _fit(shape: int | Sequence[int] | None, dtype: DType, nbytes: int) -> tuple[int, ...]:
    """Return the shape, its -1 worked out, that elements of `dtype` have in `nbytes` bytes."""
    wanted = _extents(-1 if shape is None else shape)
    given = [_integer(extent, "an extent") for extent in wanted]
    if given.count(-1) == 1:
        at = given.index(-1)
        known = math.prod(given[:at] + given[at + 1 :]) * dtype.itembits
        if known <= 0 or (nbytes * 8) % known:
            raise ArgumentError(f"from_buffer: {nbytes} bytes do not divide into {given} {dtype}")
        given[at] = nbytes * 8 // known
    extents = _check_shape(given, dtype)
    if dtype.packed_bytes(math.prod(extents)) > nbytes:
        raise ArgumentError(
            f"from_buffer: shape {extents} of {dtype} needs "
            f"{dtype.packed_bytes(math.prod(extents))} bytes, the buffer has {nbytes}"
        )
    return extents
