"""A GPU as a Machine: slow kernels, and the bytes that come out, tell what was not ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from machine import Machine

from dlbridge import cuda
from dlbridge._core import ffi

SPIN = 20_000_000  # nanoseconds of a slow kernel

# Calls that make the host wait, with their arguments; dlbridge's own calls of them are counted.
_WAITS = {
    "cuCtxSynchronize": "CUresult(*)(void)",
    "cuEventSynchronize": "CUresult(*)(CUevent)",
    "cuStreamSynchronize": "CUresult(*)(CUstream)",
}


class RealMachine(Machine):
    """The GPUs of this machine, through the driver that dlbridge itself opens."""

    is_fake = False

    def __init__(self, path: str = "libcuda.so.1", *, spin: int = SPIN) -> None:
        super().__init__(path)
        self._spin = spin
        self._waits = 0
        self._own: dict[str, Any] = {}
        self._callbacks: dict[str, Any] = {}

    def _count_waits(self) -> None:
        """Put a function that counts in front of each of dlbridge's function table.

        To open the driver fills the table again, so this comes after it.
        """
        table = ffi.cast("dlb_cuda_driver *", cuda.driver())
        for name, kind in _WAITS.items():
            own = getattr(table, name)
            if own != self._callbacks.get(name):
                self._own[name] = own
                self._callbacks[name] = ffi.callback(kind, self._counted(own))
                setattr(table, name, self._callbacks[name])

    def _counted(self, own: Callable[..., Any]) -> Callable[..., int]:
        def counted(*arguments: Any) -> int:
            self._waits += 1
            return int(own(*arguments))

        return counted

    def slow_down(self, stream: int) -> int:
        return self._spin

    def reuse_handles(self) -> None:
        """The driver does so anyway."""

    @property
    def host_synchronisations(self) -> int:
        return self._waits

    def reset(self) -> None:
        self._count_waits()
        self.synchronise()
        self._waits = 0

    def finish(self) -> None:
        self.synchronise()

    def check(self) -> None:
        self.synchronise()  # an address that a kernel may not touch is an error from here on

    def close(self) -> None:
        super().close()
        table = ffi.cast("dlb_cuda_driver *", cuda.driver())
        for name, own in self._own.items():
            setattr(table, name, own)
