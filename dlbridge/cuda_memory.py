"""Allocators of CUDA memory: the driver's pool, which is the default, and frameworks' own."""

from __future__ import annotations

from typing import cast

from dlbridge._core import native
from dlbridge.allocator import Allocator, Statistics
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError
from dlbridge.tensor import Tensor

# What the driver gives at least, in bytes.
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
