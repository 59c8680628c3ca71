"""The CUDA driver by ctypes, for tests: nothing of dlbridge is used to check dlbridge."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_pointer, _int, _unsigned, _size = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_size_t,
)
_address = ctypes.c_uint64

# Arguments of what is called here; addresses of variables are also pointers.
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (_unsigned,),
    "cuDeviceGetCount": (_pointer,),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_pointer,),
    "cuCtxGetCurrent": (_pointer,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_address,),
    "cuMemAllocAsync": (_pointer, _size, _pointer),
    "cuMemFreeAsync": (_address, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _address, _size, _pointer),
    "cuEventCreate": (_pointer, _unsigned),
    "cuEventRecord": (_pointer, _pointer),
    "cuEventDestroy_v2": (_pointer,),
    "cuStreamCreate": (_pointer, _unsigned),
    "cuStreamDestroy_v2": (_pointer,),
    "cuStreamSynchronize": (_pointer,),
    "cuStreamQuery": (_pointer,),
    "cuStreamWaitEvent": (_pointer, _pointer, _unsigned),
    "cuStreamBeginCapture_v2": (_pointer, _int),
    "cuStreamEndCapture": (_pointer, _pointer),
    "cuStreamIsCapturing": (_pointer, _pointer),
    "cuGraphInstantiateWithFlags": (_pointer, _pointer, _address),
    "cuGraphLaunch": (_pointer, _pointer),
    "cuGraphExecDestroy": (_pointer,),
    "cuGraphDestroy": (_pointer,),
    "cuModuleLoadData": (_pointer, _pointer),
    "cuModuleGetFunction": (_pointer, _pointer, ctypes.c_char_p),
    "cuLaunchKernel": (_pointer, *(_unsigned,) * 7, _pointer, _pointer, _pointer),
}

LEGACY, PER_THREAD = 1, 2
NON_BLOCKING, NO_TIMING = 1, 2


class DriverError(Exception):
    """A driver function returned a code; `code` is the CUresult."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


class DriverCalls:
    """Functions of the driver at `path`, called with numbers; a code other than 0 is raised."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.contexts: dict[int, int] = {}
        for name, arguments in _SIGNATURES.items():
            getattr(self.library, name).argtypes = arguments
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise DriverError(name, code)

    def make(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument is where it writes a pointer; return that."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def ask(self, name: str, *arguments: object) -> int:
        """Call a function whose last argument is where it writes an int; return that."""
        told = ctypes.c_int()
        self.call(name, *arguments, ctypes.byref(told))
        return told.value

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make the primary context of a device the current one."""
        if device not in self.contexts:
            self.contexts[device] = self.make("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxPushCurrent_v2", self.contexts[device])
        try:
            yield
        finally:
            self.make("cuCtxPopCurrent_v2")


def why_no_gpu() -> str | None:
    """Return why there is no GPU to test on, or None if there is one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no GPU"
    return None
