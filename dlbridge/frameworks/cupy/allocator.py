"""CuPy's allocator of device memory, for Tensors."""

from __future__ import annotations

from dlbridge.cuda.driver import stream_of_cupy
from dlbridge.tensor.allocator import FrameworkAllocator


class CuPyAllocator(FrameworkAllocator):
    """CuPy's current allocator, by default its memory pool."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self._kept: dict[int, object] = {}

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of memory of CuPy's pool, of the arena of this stream."""
        cuda = self._framework.cuda
        with cuda.Device(device), stream_of_cupy(cuda, stream, device):
            memory = cuda.alloc(nbytes)
        self._kept[int(memory.ptr)] = memory
        return int(memory.ptr)

    def deallocate(self, address: int, nbytes: int) -> None:
        """Give the memory back to the pool."""
        del self._kept[address]
