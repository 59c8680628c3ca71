"""Memory that ends where a page begins that nobody may touch: one byte too far is a signal."""

from __future__ import annotations

import ctypes
import mmap

PAGE = mmap.PAGESIZE
_FILL = 0xA5


class Guarded:
    """Room for one tensor at a time, with a guard behind it and known bytes before it.

    Args:
        nbytes: the largest tensor.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.nbytes + PAGE)
        self._view = memoryview(self._map)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.end = start + self.nbytes
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(self.end, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._used = self.nbytes
        self.clear()

    def clear(self) -> None:
        """Forget what lies here, after a look at what lies before it."""
        self._view[self.nbytes - self._used : self.nbytes] = bytes([_FILL]) * self._used
        self._used = 0

    def place(self, data: bytes) -> int:
        """Return the address of a copy that ends at the guard."""
        self.clear()
        self._used = len(data)
        self._view[self.nbytes - self._used : self.nbytes] = data
        return self.end - self._used

    def buffer(self) -> memoryview:
        """Return what was placed last."""
        return self._view[self.nbytes - self._used : self.nbytes]

    def check(self, used: int | None = None, look: int = 64) -> None:
        """Fail where something was written before the `used` bytes at the end."""
        used = self._used if used is None else used
        before = self._view[max(0, self.nbytes - used - look) : self.nbytes - used]
        assert all(byte == _FILL for byte in before), "bytes before a tensor were written"
        self._used = max(self._used, used)
