"""`cupy.cuda.Device`."""

from __future__ import annotations

import threading
from typing import Any, Self

from cupy import _driver


class _Entered(threading.local):
    """The devices to which the blocks of a thread return."""

    def __init__(self) -> None:
        self.stack: list[int] = []


_ENTERED = _Entered()


class Device:
    """A device; its block makes it the current one of the thread."""

    def __init__(self, device: Any = None) -> None:
        self.id = _driver.current_device() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(("cuda", self.id))

    def __enter__(self) -> Self:
        current = _driver.current_device()
        _ENTERED.stack.append(current)
        if self.id != current:
            _driver.set_device(self.id)
        return self

    def __exit__(self, *_details: object) -> None:
        _driver.set_device(_ENTERED.stack.pop())

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> Device:
        """Make it the current device until further notice."""
        _driver.set_device(self.id)
        return self

    def synchronize(self) -> None:
        """Make the host wait for it."""
        with self:
            _driver.call("cuCtxSynchronize")
