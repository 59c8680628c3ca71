"""Allocators: where the memory of Tensors comes from and goes back to.

An allocator hands out addresses and takes them back. The memory of a Tensor goes back to its
allocator exactly once, when the last Tensor, view or exported capsule over it is gone, on whatever
thread that happens.
"""

from __future__ import annotations

import math
import operator
from importlib import import_module
from typing import Any, NamedTuple, cast

from dlbridge import registry
from dlbridge._core import native
from dlbridge.calls import public
from dlbridge.cuda.memory import no_memory
from dlbridge.device import CUDA_TYPES, as_device, make_device
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)
from dlbridge.signals import not_from_handler
from dlbridge.tensor import values
from dlbridge.tensor.tensor import Tensor


class Statistics(NamedTuple):
    """The counters of an allocator; all sizes in bytes."""

    bytes_in_use: int = 0
    peak_bytes_in_use: int = 0
    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    """Blocks in use."""
    total: int = 0
    """Blocks ever handed out."""


class Allocator:
    """Hands out memory; subclass it and give `allocate` and `deallocate` to use memory of yours.

    Both may be called on any thread, `deallocate` also while the garbage collector runs. CUDA
    memory is to be ready for the current stream (`dlbridge.cuda.current_stream`), and comes back
    when all kernels that are known to use it are over. Statistics are kept here and are exact under
    threads. Tensors of no bytes ask for no memory.

    Example:
        >>> import numpy, dlbridge
        >>> class Arena(Allocator):
        ...     def __init__(self):
        ...         super().__init__("arena")
        ...         self.memory = numpy.zeros(4096, numpy.uint8)
        ...     def allocate(self, nbytes, alignment):
        ...         address = self.memory.__array_interface__["data"][0]
        ...         return -(-address // alignment) * alignment
        ...     def deallocate(self, address, nbytes):
        ...         pass
        >>> arena = Arena()
        >>> tensor = dlbridge.full((2,), 7, "int16", allocator=arena)
        >>> tensor.tolist(), arena.statistics().bytes_in_use
        ([7, 7], 4)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._statistics = Statistics()
        # Giving memory back can interrupt this very thread at any allocation, even under the lock.
        self._lock = registry.lock()

    def allocate(self, nbytes: int, alignment: int) -> int:
        """Return the address of `nbytes` > 0 bytes, a multiple of `alignment`, or 0 for none."""
        raise NotImplementedError

    def deallocate(self, address: int, nbytes: int) -> None:
        """Take back what `allocate` gave."""
        raise NotImplementedError

    def statistics(self) -> Statistics:
        """Return what is handed out now, and was at most and in all."""
        return self._statistics

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.statistics().bytes_in_use} bytes>"

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a compact Tensor over new memory of this allocator, its values undefined."""
        nbytes = dtype.packed_bytes(math.prod(shape))
        block = self._request(nbytes, alignment) if nbytes else _Block(self, 0, 0)
        made = native.take_object(block, block.address, shape, None, dtype.triple, device)
        if device[0] in CUDA_TYPES:  # it comes back when all kernels on it are over
            native.cuda_set_streams(made, native.cuda_current_stream(device[1]), -1)
        return cast("Tensor", made)

    def _request(self, nbytes: int, alignment: int) -> _Block:
        try:
            address = self.allocate(nbytes, alignment)
        except not_from_handler(MemoryError) as error:
            raise values.no_memory(self.name, nbytes, alignment) from error
        if not address:
            raise values.no_memory(self.name, nbytes, alignment)
        return _check_block(_Block(self, nbytes, address), alignment)

    def _count(self, nbytes: int, blocks: int) -> None:
        """Add to the statistics; both numbers are negative when memory comes back."""
        with self._lock:
            in_use, peak, count, total = self._statistics
            in_use += nbytes
            self._statistics = Statistics(
                in_use, max(peak, in_use), count + blocks, total + max(blocks, 0)
            )


class _Block:
    """The owner of an allocator's memory, which it gives back at its end."""

    __slots__ = ("address", "allocator", "nbytes")

    def __init__(self, allocator: Allocator, nbytes: int, address: int) -> None:
        self.allocator = allocator
        self.nbytes = nbytes
        self.address = address
        if address:
            allocator._count(nbytes, 1)

    def __del__(self) -> None:
        if self.address:
            self.allocator._count(-self.nbytes, -1)
            self.allocator.deallocate(self.address, self.nbytes)


def _check_block(block: _Block, alignment: int) -> _Block:
    if block.address % alignment:
        raise AllocationError(
            f"allocator {block.allocator.name!r} was asked for {block.nbytes} bytes aligned to "
            f"{alignment}, and gave {block.address:#x}; ask it with another alignment=…"
        )
    return block


class CPUAllocator(Allocator):
    """The native allocator of CPU memory, which all `dlbridge` functions use by default.

    There is one set of statistics for all its instances: that of the native core.
    """

    def __init__(self) -> None:
        super().__init__("cpu")
        self._blocks: dict[int, native.TensorBase] = {}

    def allocate(self, nbytes: int, alignment: int = 64) -> int:
        """Return the address of new memory, which `deallocate` must be given back."""
        block = allocate_native((nbytes,), as_dtype("uint8"), check_alignment(alignment))
        self._blocks[block.data_ptr] = block
        return block.data_ptr

    def deallocate(self, address: int, nbytes: int) -> None:
        """Free what `allocate` gave."""
        del self._blocks[address]

    def statistics(self) -> Statistics:
        """Return the counters of the native core."""
        return Statistics(**native.allocator_statistics())

    @property
    def cached_bytes(self) -> int:
        """Bytes of freed memory that are kept for reuse; `dlbridge.trim` frees them."""
        return native.cached_bytes()

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a compact Tensor over new memory; nothing but C gives it back."""
        if device != values.CPU:
            raise ExchangeError("device", f"the CPU allocator has no memory on device {device}")
        return allocate_native(shape, dtype, alignment)


def check_alignment(alignment: object) -> int:
    """Return an alignment in bytes as an int.

    Raises:
        ArgumentError: it is no power of two, or more than addresses have.
    """
    try:
        given = operator.index(alignment)  # type: ignore[arg-type]
    except not_from_handler(TypeError):
        given = 0
    if not 1 <= given <= _MOST_ALIGNMENT or given & (given - 1):
        raise ArgumentError(f"alignment must be a power of two below 2**63, got {alignment!r}")
    return given


_MOST_ALIGNMENT = 2**62


def allocate_native(
    shape: tuple[int, ...], dtype: DType, alignment: int, zero: bool = False
) -> Tensor:
    """Return a compact Tensor over new memory of the native allocator."""
    return cast("Tensor", values.allocate(shape, dtype.triple, alignment, zero))


class ExchangeAllocator(Allocator):
    """A framework's own allocator, through its C exchange table (DLPack 1.2).

    Args:
        source: an array type with `__dlpack_c_exchange_api__`, such as `torch.Tensor`, or the
            capsule that this attribute holds.

    Raises:
        UnsupportedTypeError: there is no such table.

    Example:
        >>> import dlbridge
        >>> allocator = ExchangeAllocator(dlbridge.Tensor)
        >>> dlbridge.empty((2, 3), "bfloat16", allocator=allocator).shape
        (2, 3)
    """

    def __init__(self, source: object) -> None:
        table = getattr(source, "__dlpack_c_exchange_api__", source)
        if type(table).__name__ != "PyCapsule":
            raise UnsupportedTypeError(
                f"ExchangeAllocator: {source!r} has no __dlpack_c_exchange_api__ (DLPack 1.2)"
            )
        module = getattr(source, "__module__", "exchange table")
        super().__init__(module.partition(".")[0])
        self._table = table
        self._blocks: dict[int, native.TensorBase] = {}

    def allocate(self, nbytes: int, alignment: int) -> int:
        """Return the address of new CPU memory, aligned as the framework does."""
        block = self._ask((nbytes,), values.BYTE, values.CPU)
        self._blocks[block.data_ptr] = block
        return block.data_ptr

    def deallocate(self, address: int, nbytes: int) -> None:
        """Give the memory back to the framework."""
        del self._blocks[address]

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a Tensor that the framework allocated for this shape, dtype and device."""
        made = self._ask(shape, dtype.triple, device)
        if not made.nbytes:
            return cast("Tensor", made)
        self._blocks[made.data_ptr] = made
        block = _check_block(_Block(self, made.nbytes, made.data_ptr), alignment)
        return cast(
            "Tensor",
            native.take_object(
                block, made.data_ptr, shape, made.strides, dtype.triple, device, made.flags
            ),
        )

    def _ask(
        self, shape: tuple[int, ...], dtype: tuple[int, int, int], device: tuple[int, int]
    ) -> native.TensorBase:
        try:
            return native.allocate_table(self._table, shape, dtype, device)
        except not_from_handler(MemoryError) as error:
            raise AllocationError(
                f"allocator {self.name!r} cannot give {_packed_bytes(shape, dtype)} bytes for a "
                f"tensor of shape {shape}: {error}"
            ) from error


def _packed_bytes(shape: tuple[int, ...], dtype: tuple[int, int, int]) -> int:
    return (math.prod(shape) * dtype[1] * dtype[2] + 7) // 8


# ---- CUDA memory: the driver's, and the base of frameworks' own ---------------------------------

_DEVICE_MEMORY = 2  # kDLCUDA
# The least alignment of the driver's memory, in bytes.
_ALIGNMENT = 256


class CUDAAllocator(Allocator):
    """The driver's memory: its pool of each device, pinned host memory and managed memory.

    Device memory is allocated and freed in the order of the current stream (`dlbridge.cuda.stream`)
    and never makes the host wait. Pinned and managed blocks are kept for reuse;
    `dlbridge.cuda.trim` frees them. Statistics are those of the native core, of all devices.
    """

    def __init__(self) -> None:
        super().__init__("cuda")

    def statistics(self, device: tuple[int, int] = (2, 0)) -> Statistics:
        """Return the counters of one device, (2, 0) for `cuda:0`."""
        return Statistics(*native.cuda_statistics(device))

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a compact Tensor over new memory; nothing but C gives it back."""
        if alignment > _ALIGNMENT:
            raise ArgumentError(
                f"empty: CUDA memory is aligned to {_ALIGNMENT} bytes, got alignment={alignment}"
            )
        return cast("Tensor", native.cuda_allocate(shape, dtype.triple, device))


class FrameworkAllocator(Allocator):
    """The caching allocator of a framework, which shares its pool with dlbridge.

    Memory is asked for on the current stream, and goes back to the framework for use in the order
    of that stream.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        try:
            self._framework: Any = import_module(name)
        except not_from_handler(ImportError) as error:
            raise FrameworkMissingError(f"set_allocator: {name} is not installed") from error

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of device memory for use on this stream."""
        raise NotImplementedError

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a compact Tensor over new memory of the framework, its values undefined."""
        kind, number = device
        if kind != _DEVICE_MEMORY:
            raise ExchangeError(
                "device",
                f"allocator {self.name!r} has device memory only, none for {make_device(*device)}",
            )
        stream = native.cuda_current_stream(number)
        nbytes = dtype.packed_bytes(math.prod(shape))
        block = _Block(self, nbytes, self._ask(nbytes, number, stream) if nbytes else 0)
        _check_block(block, alignment)
        made = native.take_object(block, block.address, shape, None, dtype.triple, device)
        native.cuda_set_streams(made, stream, stream)
        return cast("Tensor", made)

    def _ask(self, nbytes: int, device: int, stream: int) -> int:
        try:
            return self.request(nbytes, device, stream)
        except not_from_handler(MemoryError, RuntimeError) as error:
            if type(error).__name__ != "OutOfMemoryError" and not isinstance(error, MemoryError):
                raise
            raise no_memory(f"allocator {self.name!r}", nbytes, _DEVICE_MEMORY, device) from error


# ---- which one ----------------------------------------------------------------------------------

_default = CPUAllocator()
_cuda = CUDAAllocator()
_defaults: dict[int, Allocator] = {2: _cuda, 3: _cuda, 13: _cuda}  # by device type
_chosen: dict[tuple[int, int | None], Allocator] = {}  # by device, None for all of the type
_choosing = registry.lock()


def check_allocator(allocator: object) -> Allocator | None:
    """Return an allocator that a call was given, or None.

    Raises:
        ArgumentError: it is something else.
    """
    if allocator is None or isinstance(allocator, Allocator):
        return allocator
    raise ArgumentError(
        f"allocator must be a dlbridge.Allocator or None, got {allocator!r}"
        + ("; set_allocator takes names" if isinstance(allocator, str) else "")
    )


@public
def set_allocator(device: object, allocator: Allocator | str | None) -> None:
    """Choose where the memory of Tensors on a CUDA device comes from, for the whole process.

    Args:
        device: "cuda" for all CUDA devices, or one of them, "cuda:1"; "cuda_host" and
            "cuda_managed" likewise.
        allocator: an Allocator, or the name of one: "driver" (the driver's async pool, the
            default), "cupy" or "torch" (the framework's own caching allocator); None forgets the
            choice. Tensors that are there keep theirs.

    Raises:
        ArgumentError: `device` is none of CUDA's, or there is no allocator of this name.
        FrameworkMissingError: the framework is not installed.
    """
    kind, number = as_device(device).pair
    if kind not in _defaults:
        raise ArgumentError(f"set_allocator: a CUDA device is required, got {device!r}")
    chosen = _allocator_called(allocator) if isinstance(allocator, str) else allocator
    if chosen is not None and not isinstance(chosen, Allocator):
        raise ArgumentError(
            f"set_allocator: allocator must be an Allocator, one of {_allocator_names()} or "
            f"None, got {allocator!r}"
        )
    if isinstance(chosen, FrameworkAllocator) and kind != _DEVICE_MEMORY:
        raise ArgumentError(
            f"set_allocator: {allocator!r} gives device memory only, and {device!r} is another kind"
        )
    key = (kind, None if isinstance(device, str) and ":" not in device else number)
    with _choosing:
        if chosen is not None:
            _chosen[key] = chosen
        else:
            _chosen.pop(key, None)
        native.set_cuda_allocator(_give_bytes if _chosen else None)


def _allocator_called(name: str) -> Allocator:
    """Return the driver's allocator, or the one that a framework's adapter gives."""
    if name == "driver":
        return CUDAAllocator()
    name = registry.canonical_name(name)
    if name not in (row.name for row in registry.rows() if registry.adapter(row.name).allocates):
        raise ArgumentError(
            f"set_allocator: allocator must be one of {_allocator_names()}, got {name!r}"
        )
    made: Allocator = registry.adapter(name).cuda_allocator()
    return made


def _allocator_names() -> str:
    named = (row.name for row in registry.rows() if registry.adapter(row.name).allocates)
    return ", ".join(("driver", *sorted(named)))


def allocator_of(pair: tuple[int, int]) -> Allocator:
    """Return the allocator of a device, (type, id): the one chosen, or the default."""
    kind = pair[0]
    return _chosen.get(pair) or _chosen.get((kind, None)) or _defaults.get(kind, _default)


def _give_bytes(nbytes: int, device: tuple[int, int]) -> native.TensorBase | None:
    """Return memory for a result of the core, or None where no allocator was chosen."""
    source = allocator_of(device)
    return None if source is _cuda else source.new_tensor((nbytes,), as_dtype("uint8"), device, 1)
