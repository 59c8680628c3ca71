"""Streams as numbers, and the current one of each thread and device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

from dlbridge._core import native
from dlbridge.cuda.driver import device_count, device_id, no_device
from dlbridge.errors import ArgumentError

LEGACY, PER_THREAD, NONE = 1, 2, -1


def as_stream(stream: Any) -> int:
    """Return a CUDA stream as the number that DLPack gives it.

    Args:
        stream: an integer as in `__dlpack__` (1 legacy default, 2 per-thread default, else the
            address of a CUDA stream); an object with `__cuda_stream__` (cuda.core and those that
            follow it); a stream of PyTorch (`cuda_stream`), CuPy (`ptr`) or Numba (`handle`). 0 as
            an address, which frameworks use for the default stream, is 1.

    Raises:
        ArgumentError: it is none of these.
    """
    if hasattr(stream, "__cuda_stream__"):
        return _checked(stream, index(stream.__cuda_stream__()[1]))
    for attribute in ("cuda_stream", "ptr", "handle"):
        found = getattr(stream, attribute, None)
        if found is not None:
            return _checked(stream, index(getattr(found, "value", found) or 0))
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise ArgumentError(f"stream must be an integer or a stream object, got {stream!r}")
    number = index(stream)
    if number == 0:
        raise ArgumentError(
            "stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread default one"
        )
    return _checked(stream, number)


def _checked(stream: object, number: int) -> int:
    if not 0 <= number < 2**63:
        raise ArgumentError(f"stream must be the address of a CUDA stream, got {stream!r}")
    return number or LEGACY


class Handle:
    """A stream by its number, for libraries that take what has CUDA's stream protocol."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


def stream_of_cupy(cuda: Any, stream: int, device: int) -> Any:
    """Return CuPy's object for a stream of the current device, a context of its own.

    Args:
        cuda: the module `cupy.cuda`.
        stream: its number; 0 is the legacy default stream.
        device: the index of the current device.
    """
    if stream in (0, LEGACY):
        return cuda.Stream.null
    if stream == PER_THREAD:
        return cuda.Stream.ptds
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(Handle(stream))
    return cuda.ExternalStream(stream, device)  # before CuPy 14, which warns of it


def current_stream(device: object = "cuda") -> int:
    """Return the stream of this thread on a device; 1, the legacy default one, unless set."""
    return native.cuda_current_stream(device_id(device))


@contextmanager
def stream(stream: Any, device: object = "cuda") -> Iterator[int]:
    """Make `stream` the one that this thread works on inside the block.

    It is the stream of copies, of kernels on Tensors, and the one that producers are asked to be
    ordered before by `from_dlpack`. It must live until the block ends, and may be destroyed then:
    tensors that were used in the block wait for an event at its end from there on.

    Args:
        stream: whatever `as_stream` takes, of `device`.
        device: a CUDA device.

    Raises:
        ArgumentError: `stream` is no stream, or -1: work needs one.
        CUDAError: there is no such device.
    """
    number, where = as_stream(stream), device_id(device)
    if where and native.cuda_open() is None and where >= device_count():
        raise no_device("stream", where)
    before, scope = native.cuda_open_scope(where, number)
    try:
        yield number
    finally:
        native.cuda_close_scope(where, before, scope)
