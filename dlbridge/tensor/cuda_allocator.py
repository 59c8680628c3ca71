"""Allocators of CUDA memory: the driver's, the default, and the base of frameworks' own."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, cast

from dlbridge._core import native
from dlbridge.cuda.memory import no_memory
from dlbridge.device import make_device
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, ExchangeError, FrameworkMissingError
from dlbridge.tensor.allocator import Allocator, Statistics, _Block, _check_block
from dlbridge.tensor.tensor import Tensor

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
        except ImportError as error:
            raise FrameworkMissingError(f"set_allocator: {name} is not installed") from error

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of device memory for use on this stream."""
        raise NotImplementedError

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], alignment: int
    ) -> Tensor:
        """Return a compact Tensor over new memory of the framework, its values undefined."""
        kind, number = device
        if kind != DEVICE_MEMORY:
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
        except (MemoryError, RuntimeError) as error:
            if type(error).__name__ != "OutOfMemoryError" and not isinstance(error, MemoryError):
                raise
            raise no_memory(f"allocator {self.name!r}", nbytes, DEVICE_MEMORY, device) from error


DEVICE_MEMORY = 2  # kDLCUDA
