"""The CUDA driver by ctypes, and what the fake one is told of work that it cannot see.

The functions have the names of CUDA's runtime library, which is what CuPy calls; each does what
that library does by the driver.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from typing import Any

_pointer, _int, _unsigned, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_address = ctypes.c_uint64

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_unsigned,),
    "cuDeviceGetCount": (_pointer,),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuCtxSetCurrent": (_pointer,),
    "cuCtxGetCurrent": (_pointer,),
    "cuCtxGetDevice": (_pointer,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_address,),
    "cuMemHostAlloc": (_pointer, _size, _unsigned),
    "cuMemGetInfo_v2": (_pointer, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _address, _size, _pointer),
    "cuMemcpyHtoDAsync_v2": (_address, _pointer, _size, _pointer),
    "cuMemcpyDtoDAsync_v2": (_address, _address, _size, _pointer),
    "cuPointerGetAttribute": (_pointer, _int, _address),
    "cuEventCreate": (_pointer, _unsigned),
    "cuEventRecord": (_pointer, _pointer),
    "cuEventQuery": (_pointer,),
    "cuEventSynchronize": (_pointer,),
    "cuEventDestroy_v2": (_pointer,),
    "cuStreamCreate": (_pointer, _unsigned),
    "cuStreamDestroy_v2": (_pointer,),
    "cuStreamSynchronize": (_pointer,),
    "cuStreamQuery": (_pointer,),
    "cuStreamWaitEvent": (_pointer, _pointer, _unsigned),
    "cuStreamIsCapturing": (_pointer, _pointer),
    "cuModuleLoadData": (_pointer, _pointer),
    "cuModuleGetFunction": (_pointer, _pointer, ctypes.c_char_p),
    "cuLaunchKernel": (_pointer, *(_unsigned,) * 7, _pointer, _pointer, _pointer),
    "fake_touch": (_pointer, _pointer, _int),
}

STREAM_LEGACY, STREAM_PER_THREAD = 1, 2
NON_BLOCKING, NO_TIMING = 1, 2
NOT_READY = 600
_DEVICE_ORDINAL, _IS_MANAGED = 9, 8  # CUpointer_attribute


class CUDARuntimeError(RuntimeError):
    """A function of the driver failed; `status` is its CUresult."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: CUresult {status}")
        self.status = status


class _Driver:
    """The library, opened and initialised when it is first needed."""

    def __init__(self) -> None:
        self.library: Any = None
        self.contexts: dict[int, int] = {}

    def open(self) -> Any:
        if self.library is None:
            library = ctypes.CDLL(os.environ.get("DLBRIDGE_CUDA_DRIVER", "libcuda.so.1"))
            for name, arguments in _SIGNATURES.items():
                getattr(library, name).argtypes = arguments
            self.library = library
            call("cuInit", 0)
        return self.library


_DRIVER = _Driver()


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver; raise where it fails."""
    status = getattr(_DRIVER.open(), name)(*arguments)
    if status:
        raise CUDARuntimeError(name, status)


def made(name: str, *arguments: Any) -> int:
    """Call a function whose first argument is where it writes a pointer or number; return it."""
    out = ctypes.c_uint64()
    call(name, ctypes.byref(out), *arguments)
    return out.value


# ---- devices


def device_count() -> int:
    """Return the number of devices; 0 without a driver."""
    try:
        return made("cuDeviceGetCount") & 0xFFFFFFFF
    except (OSError, CUDARuntimeError):
        return 0


def set_device(device: int) -> None:
    """Make a device's primary context the current one of this thread, as cudaSetDevice does."""
    if not 0 <= device < device_count():
        raise CUDARuntimeError("cudaSetDevice", 101)
    if device not in _DRIVER.contexts:
        _DRIVER.contexts[device] = made("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", _DRIVER.contexts[device])


def current_device() -> int:
    """Return the device of the current context; 0, whose context is then made, without one."""
    if not made("cuCtxGetCurrent"):
        set_device(0)
    return made("cuCtxGetDevice") & 0xFFFFFFFF


# ---- memory


def is_managed(address: int) -> bool:
    """Return whether an address is in managed memory."""
    return bool(_attribute(_IS_MANAGED, address))


def device_of(address: int) -> int:
    """Return the device that memory is on."""
    return _attribute(_DEVICE_ORDINAL, address)


def _attribute(kind: int, address: int) -> int:
    found = ctypes.c_uint64()
    status = _DRIVER.open().cuPointerGetAttribute(ctypes.byref(found), kind, address)
    return 0 if status else found.value & 0xFFFFFFFF


# ---- work


def is_capturing(stream: int) -> bool:
    """Return whether work on a stream goes into a graph."""
    out = ctypes.c_int()
    call("cuStreamIsCapturing", stream, ctypes.byref(out))
    return out.value == 1


def is_done(name: str, handle: int) -> bool:
    """Return what a query of a stream or an event says."""
    status = getattr(_DRIVER.open(), name)(handle)
    if status not in (0, NOT_READY):
        raise CUDARuntimeError(name, status)
    return bool(status == 0)


class Range(ctypes.Structure):
    """Memory that work touches, as the fake driver's `fake_touch` takes it."""

    _fields_ = [
        ("address", _address),
        ("nbytes", ctypes.c_uint64),
        ("writes", ctypes.c_int32),
        ("value", ctypes.c_int32),
    ]


def touch(stream: int, reads: list[tuple[int, int]], writes: list[tuple[int, int]]) -> None:
    """Tell the fake driver of work on a stream by the memory that it reads and writes."""
    ranges = [Range(*each, 0, -1) for each in reads] + [Range(*each, 1, -1) for each in writes]
    if ranges:
        call("fake_touch", stream, (Range * len(ranges))(*ranges), len(ranges))


def fill(stream: int, address: int, nbytes: int, value: int) -> None:
    """Write a byte all over memory."""
    call("fake_touch", stream, (Range * 1)(Range(address, nbytes, 1, value)), 1)


class _Shutdown:
    """Whether the interpreter ends: handles stay where they are then, as CuPy leaves them."""

    is_begun = False


def is_shutting_down() -> bool:
    """Return whether the interpreter ends."""
    return _Shutdown.is_begun


@atexit.register
def _begin_shutdown() -> None:
    _Shutdown.is_begun = True
