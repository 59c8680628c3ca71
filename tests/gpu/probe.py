"""What this driver, this GPU and these frameworks do: facts to print, not promises to hold.

    python tests/gpu/probe.py --list
    python tests/gpu/probe.py NAME
    python tests/gpu/probe.py --frameworks
    python tests/gpu/probe.py --warm FRAMEWORK

Each line runs in a process of its own: one may break its context, and the next must not see it.
Status 77 says that what it asks is not installed.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cuda"), str(HERE.parents[1])]

from driver_calls import NON_BLOCKING, DriverCalls, DriverError  # noqa: E402

ABSENT = 77
DRIVER = os.environ.get("DLBRIDGE_CUDA_DRIVER", "libcuda.so.1")
TOUCH = HERE.parent / "cuda/touch.ptx"
SPIN = 20_000_000  # nanoseconds
MODES = ("global", "thread-local", "relaxed")  # cuStreamBeginCapture's 0, 1, 2

PACKAGES = ("torch", "jax", "jaxlib", "cupy-cuda13x", "cupy-cuda12x", "triton", "numba-cuda",
            "cuda-core", "cuda-bindings", "apache-tvm-ffi", "jax-tvm-ffi", "numpy", "pytest",
            "hypothesis")  # fmt: skip
ATTRIBUTES = {
    "compute capability, major": 75,
    "compute capability, minor": 76,
    "multiprocessors": 16,
    "copy engines": 40,
    "unified addressing": 41,
    "memory pools": 115,
    "pageable memory access (HMM)": 88,
    "concurrent managed access": 89,
    "compute preemption": 90,
    "host pointers of registered memory": 91,
    "pageable memory access by the host's page tables": 100,
    "handle types of pools": 119,
}


def absent(why: str) -> NoReturn:
    """End: what is asked for is not here."""
    print(why)
    sys.exit(ABSENT)


def framework(name: str) -> Any:
    """Return a framework that sees the GPU, as the tests know it."""
    from gpu_frameworks import find

    found = find(name)
    if isinstance(found, str):
        absent(found)
    return found


# ---- the driver by itself ------------------------------------------------------------------------


class Driver(DriverCalls):
    """The driver with the primary context of device 0, and a kernel that spins."""

    def __init__(self) -> None:
        super().__init__(DRIVER)
        self.context = self.make("cuDevicePrimaryCtxRetain", 0)
        self.call("cuCtxPushCurrent_v2", self.context)
        self._touch = 0

    def code(self, name: str, *arguments: Any) -> int:
        """Return the CUresult of a function; numbers are passed 64 bits wide."""
        wide = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
        function = getattr(self.library, name)
        declared, function.argtypes = function.argtypes, None
        try:
            return int(function(*wide))
        finally:
            function.argtypes = declared

    def stream(self) -> int:
        return self.make("cuStreamCreate", NON_BLOCKING)

    def load(self) -> None:
        if not self._touch:
            module = self.make("cuModuleLoadData", TOUCH.read_bytes() + b"\0")
            self._touch = self.make("cuModuleGetFunction", module, b"dlb_touch")

    def spin(self, stream: int, nanoseconds: int = SPIN, target: tuple[int, int] = (0, 0),
             value: int = 0) -> None:  # fmt: skip
        """Enqueue a kernel that spins, and then fills the target."""
        self.load()
        numbers = [ctypes.c_uint64(n) for n in (0, 0, *target, nanoseconds)]
        numbers += [ctypes.c_uint32(n) for n in (value, 0)]
        pointers = (ctypes.c_void_p * 7)(*(ctypes.addressof(each) for each in numbers))
        self.call("cuLaunchKernel", self._touch, 1, 1, 1, 256, 1, 1, 0, stream, pointers, None)


def versions() -> None:
    print(f"python {platform.python_version()}, glibc {platform.libc_ver()[1]}")
    for name in PACKAGES:
        try:
            print(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            print(name, "is not installed")


def driver() -> None:
    """The driver's version, the devices, and what they can."""
    calls = DriverCalls(DRIVER)
    print("driver", calls.ask("cuDriverGetVersion"), "of", DRIVER)
    for device in range(calls.ask("cuDeviceGetCount")):
        name = ctypes.create_string_buffer(100)
        calls.call("cuDeviceGetName", name, 100, device)
        print(f"device {device}: {name.value.decode()}")
        for text, number in ATTRIBUTES.items():
            value = ctypes.c_int()
            code = calls.library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            print(f"  {text}: {value.value if code == 0 else f'CUresult {code}'}")


def compilers() -> None:
    for name in ("cc", "gcc", "nvcc", "ptxas", "compute-sanitizer", "cuda-gdb"):
        path = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False,
                              timeout=10).stdout if path else "missing"  # fmt: skip
        print(f"{name}: {path or ''} {' | '.join(text.strip().splitlines()[-2:])}")
    header = Path(sys.base_prefix, "include", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    print(f"Python.h: {(header / 'Python.h').exists()}")


def module_load() -> None:
    """CUresults of loading a module while a stream of the same thread is captured."""
    for mode, name in enumerate(MODES):
        calls = Driver()
        stream = calls.stream()
        calls.call("cuStreamBeginCapture_v2", stream, mode)
        module = ctypes.c_void_p()
        loaded = calls.code("cuModuleLoadData", ctypes.byref(module), TOUCH.read_bytes() + b"\0")
        ended = calls.code("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))
        print(f"{name}: cuModuleLoadData {loaded}, cuStreamEndCapture {ended}")
        stream = calls.stream()
        calls.call("cuStreamBeginCapture_v2", stream, mode)
        previous = ctypes.c_int(2)
        calls.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(previous))
        loaded = calls.code("cuModuleLoadData", ctypes.byref(module), TOUCH.read_bytes() + b"\0")
        calls.code("cuThreadExchangeStreamCaptureMode", ctypes.byref(previous))
        ended = calls.code("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))
        print(f"{name}, relaxed meanwhile: cuModuleLoadData {loaded}, cuStreamEndCapture {ended}")


def relaunch() -> None:
    """CUresults of launching a graph again whose allocations nobody has freed."""
    for name, flags in (("no flags", 0), ("AUTO_FREE_ON_LAUNCH", 1)):
        calls = Driver()
        stream = calls.stream()
        calls.call("cuStreamBeginCapture_v2", stream, 1)
        allocated = calls.code("cuMemAllocAsync", ctypes.byref(ctypes.c_uint64()), 1 << 20, stream)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        calls.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        made = calls.code("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
        launches = [calls.code("cuGraphLaunch", executable, stream) for _ in range(2)]
        print(f"{name}: allocate {allocated}, instantiate {made}, launch {launches}, "
              f"synchronise {calls.code('cuStreamSynchronize', stream)}")  # fmt: skip


def memories(calls: Driver) -> Iterator[tuple[str, int, object]]:
    """Yield each kind of memory: a name, an address, and what keeps it."""
    yield "cuMemAlloc", calls.make("cuMemAlloc_v2", 1 << 20), None
    yield "pool", calls.make("cuMemAllocAsync", 1 << 20, 1), None
    managed, pinned = ctypes.c_uint64(), ctypes.c_void_p()
    if calls.code("cuMemAllocManaged", ctypes.byref(managed), 1 << 20, 1) == 0:
        yield "managed", managed.value, None
    if calls.code("cuMemHostAlloc", ctypes.byref(pinned), 1 << 20, 1) == 0:
        yield "pinned", pinned.value or 0, None
    host = ctypes.create_string_buffer(1 << 20)
    yield "pageable", ctypes.addressof(host), host
    import numpy as np
    from gpu_frameworks import find

    for name in ("torch", "jax", "cupy"):
        found = find(name)
        if isinstance(found, str):
            print(f"{name}: {found}")
            continue
        kept = found.put(np.zeros(1 << 18, np.float32))
        yield name, found.pointer(kept), kept


def ipc() -> None:
    """CUresults of cuIpcGetMemHandle: which memory another process can open."""
    calls = Driver()
    for name, address, _kept in memories(calls):
        handle = ctypes.create_string_buffer(64)
        print(f"{name}: cuIpcGetMemHandle {calls.code('cuIpcGetMemHandle', handle, address)}")


def pointers() -> None:
    """What the driver knows of an address, with a context and without one."""
    calls = Driver()
    asked = {"type": 2, "managed": 8, "ordinal": 9, "start": 11, "size": 12}
    for name, address, _kept in memories(calls):
        for where in ("with a context", "without"):
            popped = ctypes.c_void_p()
            if where == "without":
                calls.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
            told = []
            for text, number in asked.items():
                value = ctypes.c_uint64()
                code = calls.code("cuPointerGetAttribute", ctypes.byref(value), number, address)
                is_start = text == "start" and code == 0
                shown = value.value == address if is_start else value.value & 0xFFFFFFFF
                told.append(f"{text} {shown if code == 0 else f'CUresult {code}'}")
            if where == "without":
                calls.call("cuCtxPushCurrent_v2", popped)
            print(f"{name}, {where}: {', '.join(told)}")


_SIDE = ("X", "Y", "Type", "Host", "Device", "Array", "Pitch")


class _Copy2D(ctypes.Structure):
    _fields_ = (
        *((side + name, ctypes.c_uint64) for side in ("src", "dst") for name in _SIDE),
        ("width", ctypes.c_uint64),
        ("height", ctypes.c_uint64),
    )


@contextmanager
def timed(text: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    print(f"{text}: {(time.perf_counter() - begin) * 1e3:.3f} ms of the host")


def copies() -> None:
    """How long the host stays in a copy of pageable memory behind a kernel of 20 ms."""
    calls = Driver()
    calls.load()
    for nbytes in (1 << 10, 1 << 16):
        there = calls.make("cuMemAlloc_v2", 2 * nbytes)
        host = ctypes.create_string_buffer(nbytes)
        for way in ("to the device", "to the device, 2D", "to the host"):
            stream = calls.stream()
            calls.spin(stream)
            with timed(f"{nbytes} bytes {way}"):
                if way == "to the host":
                    calls.call("cuMemcpyDtoHAsync_v2", host, there, nbytes, stream)
                elif way == "to the device":
                    calls.code("cuMemcpyHtoDAsync_v2", there, host, nbytes, stream)
                else:
                    copy = _Copy2D(srcType=4, srcDevice=ctypes.addressof(host), srcPitch=64,
                                   dstType=4, dstDevice=there, dstPitch=128, width=64,
                                   height=nbytes // 64)  # fmt: skip
                    code = calls.code("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)
                    print(f"  CUresult {code}")
            calls.call("cuStreamSynchronize", stream)


def pageable_capture() -> None:
    """CUresults of a copy of pageable memory in a capture, and of the end of the capture."""
    for way in ("to the device", "to the host"):
        calls = Driver()
        stream, there = calls.stream(), calls.make("cuMemAlloc_v2", 1024)
        host = ctypes.create_string_buffer(1024)
        calls.call("cuStreamBeginCapture_v2", stream, 1)
        if way == "to the device":
            copied = calls.code("cuMemcpyHtoDAsync_v2", there, host, 1024, stream)
        else:
            copied = calls.code("cuMemcpyDtoHAsync_v2", host, there, 1024, stream)
        ended = calls.code("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))
        print(f"{way}: copy {copied}, cuStreamEndCapture {ended}")


def rows() -> None:
    """Copies of rows within the device: which pitches are refused, the engine, our kernels."""
    import dlbridge
    from dlbridge import cuda

    calls = Driver()
    total = 1 << (18 if hasattr(calls.library, "fake_reset") else 26)
    source, target = (calls.make("cuMemAlloc_v2", 4 * total) for _ in range(2))
    stream = calls.stream()
    for width in (64, 512, 4096):
        for pitch in (width, width + 1, width + 4, width + 16, 2 * width, 3 * width + 512):
            height = min(total // width, 4 * total // pitch)
            copy = _Copy2D(srcType=4, srcDevice=source, srcPitch=pitch, dstType=4, dstDevice=target,
                           dstPitch=width, width=width, height=height)  # fmt: skip
            codes: set[int] = set()

            def engine(copy: _Copy2D = copy, codes: set[int] = codes) -> None:
                codes.add(calls.code("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream))
                calls.call("cuStreamSynchronize", stream)

            rate = 2 * width * height / _quickest(engine) / 1e9
            told = f"{rate:.0f} GB/s" if codes == {0} else f"CUresults {sorted(codes)}"
            print(f"rows of {width}, pitch {pitch}, cuMemcpy2DAsync: {told}")
        flat = dlbridge.zeros((2 * total,), "uint8", device="cuda:0").reshape(-1, 2 * width)
        boxes = dlbridge.zeros((8 * 2 * total,), "uint8", device="cuda:0")
        boxes = boxes.reshape(16, 16, -1, 2 * width)
        for name, view in (
            ("as dlbridge copies them", flat[:, :width]),
            ("by its kernels, in four dimensions", boxes[::2, ::2, ::2, :width]),
        ):
            out = view.copy("C")

            def ours(view: Any = view, out: Any = out) -> None:
                out[...] = view
                cuda.synchronize()

            cuda.synchronize()
            print(f"rows of {width}, {name}: {2 * out.nbytes / _quickest(ours) / 1e9:.0f} GB/s")


def _quickest(call: Callable[[], None]) -> float:
    """Return the fewest seconds of a few calls."""
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def overwritten() -> None:
    """Whether the driver has taken the values of pageable memory when a copy returns."""
    calls = Driver()
    calls.load()
    for nbytes in (1 << 8, 1 << 10, 1 << 14, 1 << 16, (1 << 16) + 64):
        there = calls.make("cuMemAlloc_v2", nbytes)
        host = ctypes.create_string_buffer(b"\7" * nbytes, nbytes)
        back = ctypes.create_string_buffer(nbytes)
        stream = calls.stream()
        calls.spin(stream)
        calls.code("cuMemcpyHtoDAsync_v2", there, host, nbytes, stream)
        ctypes.memset(host, 9, nbytes)
        calls.call("cuStreamSynchronize", stream)
        calls.call("cuMemcpyDtoHAsync_v2", back, there, nbytes, stream)
        calls.call("cuStreamSynchronize", stream)
        print(f"{nbytes} bytes: {'taken at once' if set(back.raw) == {7} else 'READ LATER'}")


def gather() -> None:
    """Whether the kernels for strided copies load, are right, and how fast they are."""
    import numpy as np

    import dlbridge
    from dlbridge import cuda

    small = dlbridge.from_dlpack(np.arange(1000.0)).to("cuda:0")
    cuda.synchronize()
    with timed("the first strided copy: the driver compiles the kernels"):
        small[::2].copy()
        cuda.synchronize()
    side = 256 if hasattr(ctypes.CDLL(DRIVER), "fake_reset") else 8192
    array = np.arange(side * side, dtype=np.float32).reshape(side, side)
    there = dlbridge.from_dlpack(array).to("cuda:0")
    wrong = 0
    for name, view in (
        ("compact", lambda x: x),
        ("every second column", lambda x: x[:, ::2]),
        ("transposed", lambda x: x.transpose(1, 0)),
        ("rows reversed", lambda x: x[::-1]),
        ("columns reversed", lambda x: x[:, ::-1]),
    ):
        copied = view(there).copy("C")
        cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            copied = view(there).copy("C")
        cuda.synchronize()
        rate = 20 * copied.nbytes / (time.perf_counter() - begin) / 1e9
        is_right = np.array_equal(dlbridge.to_numpy(copied.to("cpu")), view(array))
        wrong += not is_right
        print(f"{name}: {rate:.0f} GB/s read and written{'' if is_right else ', WRONG VALUES'}")
    sys.exit(int(wrong > 0))


# ---- with the frameworks -------------------------------------------------------------------------


def jax_wait() -> None:
    """How long the host stays in from_dlpack of a jax.Array that is computed for long."""
    import numpy as np

    import dlbridge

    jax = framework("jax").root
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ y / 100, x))
    start = jax.device_put(np.ones((8192, 8192), np.float32), jax.devices("cuda")[0])
    slow(start).block_until_ready()
    with timed("the program itself"):
        slow(start).block_until_ready()
    dlbridge.from_dlpack(start)
    for what in ("dlbridge.from_dlpack", "its own __dlpack__ without a stream"):
        value = slow(start)
        with timed(what):
            kept = dlbridge.from_dlpack(value) if what.startswith("dl") else value.__dlpack__()
        del kept
        value.block_until_ready()


def torch_path() -> None:
    """Whether torch's fast path is open here."""
    torch = framework("torch").root
    from dlbridge.frameworks.torch import internals

    print(f"torch {torch.__version__}: {internals.path()}")


def jax_consumer() -> None:
    """JAX as a slow consumer: its reference dropped, the memory overwritten by its producer."""
    import numpy as np

    import dlbridge
    from dlbridge import cuda

    jax = framework("jax").root
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ y / 4096, x).sum())
    expected = None
    for overwrites in (False, True):
        tensor = dlbridge.full((4096, 4096), 1.0, "float32", device="cuda:0")
        given = dlbridge.to_jax(tensor)
        result = slow(given)
        del given, tensor
        if overwrites:
            for _ in range(4):
                dlbridge.full((4096, 4096), 5.0, "float32", device="cuda:0")
        value = float(np.asarray(result))
        cuda.synchronize()
        expected = value if expected is None else expected
    same = value == expected
    print("the same as without the overwriting" if same else f"WRONG: {value}, not {expected}")
    if not same:
        sys.exit(1)


def pairs() -> None:
    """Each pair of frameworks: values and address."""
    import numpy as np
    from gpu_frameworks import NAMES, TARGETS, find

    import dlbridge

    there = {name: find(name) for name in NAMES}
    for name, found in there.items():
        if isinstance(found, str):
            print(f"{name}: {found}")
    wrong = 0
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for source, ours in there.items():
        for target in TARGETS:
            theirs = there[target]
            if source == target or isinstance(ours, str) or isinstance(theirs, str):
                continue
            try:
                x = ours.put(array)
                y = dlbridge.convert(x, target)
                told = "the same memory" if theirs.pointer(y) == ours.pointer(x) else "COPIED"
                told += "" if theirs.get(y).tolist() == array.tolist() else ", WRONG VALUES"
            except Exception as error:  # the next pair is asked all the same
                told = f"FAILED {type(error).__name__}: {str(error).splitlines()[0]}"
            wrong += told != "the same memory"
            print(f"{source} -> {target}: {told}")
    sys.exit(int(wrong > 0))


def warm(name: str) -> None:
    """Import a framework and let it do one thing on the GPU."""
    import numpy as np

    begin = time.perf_counter()
    found = framework(name)
    imported = time.perf_counter()
    x = found.put(np.ones(8, np.float32))
    with suppress(NotImplementedError):
        x = found.add(x, 1)
    found.get(x)
    found.settle()
    ended = time.perf_counter()
    print(f"imported in {imported - begin:.1f} s, first work in {ended - imported:.1f} s")


# What the others rest on comes first.
LINES: dict[str, Callable[[], None]] = {
    line.__name__: line
    for line in (driver, versions, pointers, ipc, module_load, gather, compilers, relaunch, copies,
                 pageable_capture, rows, overwritten, torch_path, pairs, jax_wait, jax_consumer)
}  # fmt: skip


def main() -> None:
    """Print the names of the lines or of the frameworks, or run one."""
    if sys.argv[1:] == ["--list"]:
        print(*LINES)
        return
    if sys.argv[1:] == ["--frameworks"]:
        from gpu_frameworks import NAMES

        print(*NAMES)
        return
    if sys.argv[1] == "--warm":
        warm(sys.argv[2])
        return
    try:
        LINES[sys.argv[1]]()
    except DriverError as error:
        print(f"FAILED {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
