"""`cupy.cuda.Stream`, events, and the current stream of each thread and device.

As in CuPy, the current stream is that of the current device, and the null stream is handle 0.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any, ClassVar

from cupy import _driver


class _Current(threading.local):
    """The current streams of a thread by device, and those to which its blocks return."""

    def __init__(self) -> None:
        self.by_device: dict[int, Any] = {}
        self.stack: list[tuple[int, Any]] = []


_CURRENT = _Current()
GONE: set[int] = set()  # streams that were destroyed; the fake never uses a handle again


def get_current_stream(device_id: int = -1) -> Any:
    """Return the current stream of this thread on a device: the current one by default."""
    device = _driver.current_device() if device_id == -1 else device_id
    return _CURRENT.by_device.get(device, Stream.null)


class Event:
    """A CUDA event."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        flags = (1 if block else 0) | (2 if disable_timing else 0) | (4 if interprocess else 0)
        self.ptr = _driver.made("cuEventCreate", flags)

    def __del__(self) -> None:
        if getattr(self, "ptr", 0) and not _driver.is_shutting_down():
            _driver.call("cuEventDestroy_v2", self.ptr)

    def record(self, stream: Any = None) -> None:
        """Put it at the end of a stream, the current one by default."""
        _driver.call("cuEventRecord", self.ptr, (stream or get_current_stream()).ptr)

    def synchronize(self) -> None:
        """Make the host wait for it."""
        _driver.call("cuEventSynchronize", self.ptr)

    @property
    def done(self) -> bool:
        """Whether it has been reached."""
        return _driver.is_done("cuEventQuery", self.ptr)


class _BaseStream:
    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def _checked_device(self) -> int:
        current = _driver.current_device()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({current})"
            )
        return current

    def __enter__(self) -> Any:
        device = self._checked_device()
        _CURRENT.stack.append((device, _CURRENT.by_device.get(device, Stream.null)))
        _CURRENT.by_device[device] = self
        return self

    def __exit__(self, *_details: object) -> None:
        device, before = _CURRENT.stack.pop()
        _CURRENT.by_device[device] = before

    def use(self) -> Any:
        """Make it the current stream until further notice."""
        _CURRENT.by_device[self._checked_device()] = self
        return self

    @property
    def done(self) -> bool:
        """Whether all work on it is through."""
        return _driver.is_done("cuStreamQuery", self.ptr)

    def synchronize(self) -> None:
        """Make the host wait for it."""
        _driver.call("cuStreamSynchronize", self.ptr)

    def record(self, event: Event | None = None) -> Event:
        """Put an event at its end."""
        event = Event() if event is None else event
        _driver.call("cuEventRecord", event.ptr, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what comes on it wait for an event."""
        _driver.call("cuStreamWaitEvent", self.ptr, event.ptr, 0)

    def is_capturing(self) -> bool:
        """Return whether what is put on it goes into a graph."""
        return _driver.is_capturing(self.ptr)


class Stream(_BaseStream):
    """A stream of its own, or one of the two default ones."""

    null: ClassVar[Any]
    ptds: ClassVar[Any]

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self._foreign_stream_ref: Any = None
        self._is_own = not null and not ptds
        if not self._is_own:
            super().__init__(0 if null else _driver.STREAM_PER_THREAD, -1)
            return
        flags = _driver.NON_BLOCKING if non_blocking else 0
        device = _driver.current_device()
        super().__init__(_driver.made("cuStreamCreate", flags), device)

    def __del__(self) -> None:
        if getattr(self, "_is_own", False) and not _driver.is_shutting_down():
            GONE.add(self.ptr)
            _driver.call("cuStreamDestroy_v2", self.ptr)

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """Return the stream of another library, which is kept alive."""
        _version, ptr = obj.__cuda_stream__()
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, ptr, -1)
        stream._foreign_stream_ref, stream._is_own = obj, False
        return stream


class ExternalStream(_BaseStream):
    """A stream that others made, by its handle."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn(
            "ExternalStream is deprecated. Use Stream.from_external() instead to interoperate with "
            "external streams that implement the CUDA stream protocol.",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
