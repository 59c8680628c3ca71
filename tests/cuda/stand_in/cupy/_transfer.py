"""Copies between the host and devices, by pinned memory and asynchronous as CuPy has them."""

from __future__ import annotations

import ctypes
import math
import threading
from typing import Any

import numpy as np

from cupy import _driver
from cupy.cuda.stream import Event, get_current_stream

_WAITING: list[tuple[Event, int, int]] = []  # (end of the copy, pinned memory, size)
_FREE: dict[int, list[int]] = {}  # size -> pinned memory
_LOCK = threading.RLock()


def _pinned(nbytes: int) -> tuple[int, int]:
    """Return pinned memory and its size: used again where the copy before is through."""
    size = 1 << max(math.ceil(math.log2(nbytes)), 9)
    with _LOCK:
        for each in [each for each in _WAITING if each[0].done]:
            _WAITING.remove(each)
            _FREE.setdefault(each[2], []).append(each[1])
        free = _FREE.get(size)
        return (free.pop() if free else _driver.made("cuMemHostAlloc", size, 0)), size


def to_device(host: np.ndarray, kind: Any) -> Any:
    """Return a copy of a contiguous array on the current device, on its current stream."""
    if host.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    made = kind(host.shape, host.dtype)
    if host.nbytes:
        stream = get_current_stream()
        staging, size = _pinned(host.nbytes)
        ctypes.memmove(staging, host.ctypes.data, host.nbytes)
        _driver.call("cuMemcpyHtoDAsync_v2", made.data.ptr, staging, host.nbytes, stream.ptr)
        _WAITING.append((stream.record(), staging, size))
    return made


def to_host(array: Any, stream: Any) -> np.ndarray:
    """Return a copy of a contiguous array in NumPy; the host waits for the stream."""
    out = np.empty(array.shape, array.dtype)
    if array.nbytes:
        staging, size = _pinned(array.nbytes)
        _driver.call("cuMemcpyDtoHAsync_v2", staging, array.data.ptr, array.nbytes, stream.ptr)
        stream.synchronize()
        ctypes.memmove(out.ctypes.data, staging, array.nbytes)
        _FREE.setdefault(size, []).append(staging)
    return out


def from_peer(array: Any) -> Any:
    """Return a copy of another device's array on the current one.

    As in CuPy the copy is on the current stream of the current device, after all that is on the
    current stream of the other device.
    """
    from cupy.cuda.device import Device

    with array.device:
        plain = array if array.flags.c_contiguous else array.copy()
        event = get_current_stream().record()
    made = type(array)(array.shape, array.dtype)
    stream = get_current_stream()
    stream.wait_event(event)
    if array.nbytes:
        _driver.call(
            "cuMemcpyDtoDAsync_v2", made.data.ptr, plain.data.ptr, array.nbytes, stream.ptr
        )
    if plain is not array:
        done = stream.record()
        with Device(array.data.device_id):
            get_current_stream().wait_event(done)
    return made
