"""`cupy.cuda.memory`: a pool that uses memory again, as soon as it is free, on its own stream."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from cupy import _driver
from cupy.cuda.stream import GONE, get_current_stream

_UNIT = 512
_GARBAGE = 0xDB  # what freed memory holds until it is used again


class OutOfMemoryError(MemoryError):
    """A device has no memory left."""


class UnownedMemory:
    """Memory of somebody else, kept alive by `owner`."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = _driver.device_of(ptr) if device_id == -1 else device_id


class _Chunk:
    """Memory of the driver that a pool keeps; it belongs to the stream that it was made for."""

    def __init__(self, ptr: int, size: int, stream: int) -> None:
        self.ptr, self.size, self.stream = ptr, size, stream


class PooledMemory:
    """Memory of a pool, which has it back as soon as this object is gone.

    The next array of this size on the same stream gets it at once, and may write to it; kernels
    that others still have on it are none of the pool's business. So garbage is written at this
    point of the stream, and whoever was let in and not ordered before it is found out.
    """

    def __init__(self, pool: MemoryPool, chunk: _Chunk, device_id: int) -> None:
        self.ptr, self.size, self.device_id = chunk.ptr, chunk.size, device_id
        self._pool, self._chunk = pool, chunk

    def __del__(self) -> None:
        if not _driver.is_shutting_down():
            self._pool._take_back(self._chunk, self.device_id)


class MemoryPointer:
    """An address in memory that it keeps alive."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id: int = mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    """Memory by device and stream; nothing goes back to the driver but by `free_all_blocks`."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[int, int], list[_Chunk]] = defaultdict(list)
        self._lock = threading.RLock()
        self._used = 0

    def malloc(self, size: int) -> MemoryPointer:
        """Return memory for work on the current stream."""
        size = -(-max(size, 1) // _UNIT) * _UNIT
        device = _driver.current_device()
        stream = get_current_stream().ptr
        with self._lock:
            free = self._free[device, stream]
            fitting = [each for each in reversed(free) if each.size >= size]
            if fitting:
                chunk = min(fitting, key=lambda each: each.size)
                free.remove(chunk)
            else:
                chunk = _Chunk(self._more(size), size, stream)
            self._used += chunk.size
        return MemoryPointer(PooledMemory(self, chunk, device), 0)

    def _more(self, size: int) -> int:
        try:
            return _driver.made("cuMemAlloc_v2", size)
        except _driver.CUDARuntimeError:
            self.free_all_blocks()
        try:
            return _driver.made("cuMemAlloc_v2", size)
        except _driver.CUDARuntimeError as error:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes") from error

    def _take_back(self, chunk: _Chunk, device: int) -> None:
        before = _driver.current_device()
        _driver.set_device(device)
        try:
            if chunk.stream not in GONE and not _driver.is_capturing(chunk.stream):
                _driver.fill(chunk.stream, chunk.ptr, chunk.size, _GARBAGE)
        finally:
            _driver.set_device(before)
        with self._lock:
            self._used -= chunk.size
            self._free[device, chunk.stream].append(chunk)

    def free_all_blocks(self) -> None:
        """Give everything that is free to the driver."""
        with self._lock:
            for chunks in self._free.values():
                while chunks:
                    _driver.call("cuMemFree_v2", chunks.pop().ptr)

    def used_bytes(self) -> int:
        """Return how many bytes are in use."""
        return self._used


_DEFAULT = MemoryPool()
_allocator: Callable[[int], MemoryPointer] = _DEFAULT.malloc


def alloc(size: int) -> MemoryPointer:
    """Return memory from the current allocator."""
    return _allocator(size)


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    """Let arrays have their memory from `allocator`."""
    global _allocator
    _allocator = _DEFAULT.malloc if allocator is None else allocator
