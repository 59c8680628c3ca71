"""PyTorch's allocator of device memory, for Tensors."""

from __future__ import annotations

from dlbridge.cuda.driver import LEGACY
from dlbridge.tensor.allocator import FrameworkAllocator


class TorchAllocator(FrameworkAllocator):
    """PyTorch's caching allocator."""

    def __init__(self) -> None:
        super().__init__("torch")

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of memory that torch keeps for this stream."""
        handle = 0 if stream == LEGACY else stream
        return int(self._framework.cuda.caching_allocator_alloc(nbytes, device, handle))

    def deallocate(self, address: int, nbytes: int) -> None:
        """Give the memory back to the cache."""
        self._framework.cuda.caching_allocator_delete(address)
