"""The CUDA driver from Python: its functions and failures, devices, and streams."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import starmap
from operator import index
from typing import Any, NamedTuple

from dlbridge._core import ffi, lib, native
from dlbridge.calls import public
from dlbridge.device import CUDA_TYPES, Device
from dlbridge.errors import ArgumentError, CUDAError, DLBridgeError, ExchangeError

_INVALID_DEVICE = 101  # CUDA_ERROR_INVALID_DEVICE

# dlb_cuda_failure_kind in _core/cuda.h
_CALL, _MISSING = 0, 1
_REFUSALS = {
    2: "the tensor's last work is being captured into a CUDA graph, and a stream outside of the "
    "capture would read memory that nothing has written yet; capture that stream as well, or pass "
    'stream="none"',
    4: "the legacy default stream cannot be used while a stream is captured that it waits for: "
    "capture a stream that was made as non-blocking, or work on one here",
    5: "dlbridge does not capture a copy from or to memory of the host that is not pinned: each "
    "launch of the graph would use that memory, which nothing keeps until then; use memory of "
    'device="cuda_host", or copy outside of the capture',
}


def driver() -> Any:
    """Return the open driver: a cffi struct with its functions, `driver().cuMemGetInfo(…)`.

    Raises:
        CUDAError: there is no driver, or no GPU.
    """
    why = native.cuda_open()
    if why is not None:
        raise _no_driver("cuda", why)
    return lib.dlb_cuda_get()


def is_available() -> bool:
    """Return whether there is a CUDA driver with at least one GPU."""
    return native.cuda_open() is None and device_count() > 0


def check(call: str, code: int, function: str) -> None:
    """Raise what a CUresult of `function` means, unless it is 0."""
    if code:
        raise failure(call, _CALL, code, function)


def failure(call: str, kind: int, code: int, function: str, why: str = "") -> DLBridgeError:
    """Return the exception for a failure in the core; see `dlb_cuda_failure_kind`."""
    if kind == _MISSING:
        return _no_driver(call, why)
    if kind in _REFUSALS:
        return ExchangeError("stream", f"{call}: {_REFUSALS[kind]}")
    name = _ask_text("cuGetErrorName", code)
    text = f"{call}: {function}: {name}: {_ask_text('cuGetErrorString', code)}"
    if code == _INVALID_DEVICE:
        text += f"; this machine has {device_count()} CUDA devices"
    return CUDAError(text, code, name)


def _no_driver(call: str, why: str) -> CUDAError:
    return CUDAError(
        f"{call}: CUDA memory needs the CUDA driver, and there is none ({why}); "
        "install NVIDIA's driver, or say where it is in DLBRIDGE_CUDA_DRIVER"
    )


def _ask_text(function: str, code: int) -> str:
    text = ffi.new("const char **")
    known = getattr(lib.dlb_cuda_get(), function)(code, text) == 0 and text[0] != ffi.NULL
    return ffi.string(text[0]).decode() if known else f"CUresult {code}"


native.set_hooks(cuda_failure=failure)
atexit.register(native.cuda_drain)


# ---- devices -------------------------------------------------------------------------------------


class MemoryInfo(NamedTuple):
    """The memory of a device, in bytes."""

    free: int
    total: int


def device_count() -> int:
    """Return the number of CUDA devices."""
    count = ffi.new("int *")
    check("device_count", driver().cuDeviceGetCount(count), "cuDeviceGetCount")
    return int(count[0])


def device_id(device: object) -> int:
    """Return the index of a CUDA device, given as anything that `Device` takes or as the index.

    Raises:
        ArgumentError: it is no CUDA device.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        if not 0 <= device < 2**31:
            raise ArgumentError(f"cuda: a device's index must be from 0 to 2**31 - 1, got {device}")
        return device
    found = Device(device)
    if found.pair[0] not in CUDA_TYPES:
        raise ArgumentError(f"cuda: a CUDA device is required, got {found}")
    return found.id


def no_device(call: str, device: int) -> CUDAError:
    """Return the error of a device that this machine does not have."""
    return CUDAError(
        f"{call}: there is no device cuda:{device}; this machine has {device_count()} CUDA devices"
    )


@contextmanager
def entered(device: int) -> Iterator[Any]:
    """Make the primary context of a device the current one; yields the driver."""
    functions = driver()
    scope = ffi.new("dlb_cuda_scope *")
    # An interrupt may come between any two steps; `list` is one, and leaves once.
    leaving = map(lib.dlb_cuda_leave, (scope,))
    try:
        try:
            if lib.dlb_cuda_enter(device, scope) < 0:
                scope.is_pushed = False
                raise no_device("cuda", device)
            yield functions
        finally:
            list(leaving)
    finally:  # once more, for an interrupt of the first time
        list(leaving)


@contextmanager
def relaxed(functions: Any) -> Iterator[None]:
    """Let this thread call what captures forbid though it does not affect them, such as loading."""
    mode = ffi.new("int *", 2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    # An interrupt may come between any two steps; `next` and `list` are one each, and two exchanges
    # leave the mode as it was.
    exchanges = map(functions.cuThreadExchangeStreamCaptureMode, (mode, mode))
    try:
        try:
            next(exchanges)
            yield
        finally:
            list(exchanges)
    finally:  # once more, for an interrupt of the first time
        list(exchanges)


@public
def memory_info(device: object = "cuda") -> MemoryInfo:
    """Return how much memory of a device is free, and how much it has."""
    sizes = ffi.new("size_t[2]")
    with entered(device_id(device)) as functions:
        check("memory_info", functions.cuMemGetInfo(sizes, sizes + 1), "cuMemGetInfo")
    return MemoryInfo(int(sizes[0]), int(sizes[1]))


@public
def synchronize(device: object = "cuda") -> None:
    """Make the host wait for all work on a device, and give back what waited for it."""
    number = device_id(device)
    with entered(number) as functions:
        check("synchronize", functions.cuCtxSynchronize(), "cuCtxSynchronize")
    native.cuda_synchronised(number)
    native.cuda_collect()


# ---- streams: as numbers, and the current one of each thread and device -------------------------


LEGACY, PER_THREAD, NONE = 1, 2, -1


def wait_for(stream: int, device: int) -> None:
    """Make the host wait for the work on one stream, by its number as in `__dlpack__`."""
    with entered(device) as functions:
        code = functions.cuStreamSynchronize(ffi.cast("CUstream", stream))
        check("wait_for", code, "cuStreamSynchronize")


@public
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


@public
def current_stream(device: object = "cuda") -> int:
    """Return the stream of this thread on a device; 1, the legacy default one, unless set."""
    return native.cuda_current_stream(device_id(device))


@public
def stream(stream: Any, device: object = "cuda") -> AbstractContextManager[int]:
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
    return _working_on(number, where)


@contextmanager
def _working_on(number: int, where: int) -> Iterator[int]:
    # An interrupt may come between any two steps; `extend` and `list` are one each, and close what
    # was opened once.
    opened: list[tuple[int, int]] = []
    opening = map(native.cuda_open_scope, (where,), (number,))
    closing = starmap(partial(native.cuda_close_scope, where), iter(opened))
    try:
        try:
            opened.extend(opening)
            yield number
        finally:
            list(closing)
    finally:  # once more, for an interrupt of the first time
        list(closing)
