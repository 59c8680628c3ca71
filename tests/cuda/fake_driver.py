"""The fake CUDA driver of `fake/`: how it is built, and what tests can ask of it.

It has the driver's own functions, over host memory, and keeps a logical time for each stream. What
is not in order on a GPU is a fault, however it went; `fake/fake.h` says how. `FakeDriver` gives
the functions under their exported names, and checks their results.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).with_name("fake")
BUILT = Path(__file__).resolve().parents[2] / "build/tests"
CORE = Path(__file__).resolve().parents[2] / "dlbridge/_core"
OWN_KERNELS = [CORE / "cuda" / name for name in ("gather_parameters.h", "gather.cu")]
IN_PROCESS = "libdlbridge_fake_cuda.so"  # a name that no framework looks for
AS_DRIVER = "libcuda.so.1"  # what every framework looks for

_FLAGS = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-Werror",
    "-O1",
    "-g",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
]


def build(directory: Path, name: str = IN_PROCESS) -> Path:
    """Compile the fake driver into `directory`, unless it is there already; return its path.

    Libraries compiled from the same text are in `build/tests`.
    """
    target = directory / name
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        command = [*compiler.split(), *_FLAGS, f"-Wl,-soname,{name}"]
        sources = [*sorted(SOURCES.glob("*.[ch]")), *OWN_KERNELS]
        texts = [path.read_bytes() for path in sources]
        digest = hashlib.sha256(b"\0".join([repr(command).encode(), *texts])).hexdigest()[:16]
        kept = BUILT / digest / name
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            made = kept.with_name(f"{name}-{os.getpid()}")
            files = sorted(str(path) for path in SOURCES.glob("*.c"))
            command += ["-o", str(made), f"-I{CORE}", *files, "-ldl"]
            environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
            # A sanitizer would find the leaks of the compiler.
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            made.replace(kept)
        copy = directory / f"{name}-{os.getpid()}"
        shutil.copy(kept, copy)
        copy.replace(target)
    return target


def compile_fake(directory: Path) -> Path:
    """Compile the fake driver for use in this process, where other frameworks must not see it."""
    return build(directory, IN_PROCESS)


# ---- its functions in Python ---------------------------------------------------------------------


class Record(ctypes.Structure):
    """One call: `record` of fake/fake.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_uint64),
        ("event", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("result", ctypes.c_int32),
    )


class Range(ctypes.Structure):
    """Memory that a kernel of a test touches; its contents stay where `value` is negative."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("writes", ctypes.c_int32),
        ("value", ctypes.c_int32),
    )


class Call(NamedTuple):
    """A call as Python sees it; `result` is its CUresult."""

    name: str
    stream: int
    event: int
    address: int
    nbytes: int
    result: int


class DriverError(Exception):
    """A function of the driver returned something else than 0."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: CUresult {code}")
        self.code = code


# What Python's integers would be too wide or too narrow for.
_RESULTS: dict[str, Any] = {
    "fake_call_count": ctypes.c_uint32,
    "fake_call": ctypes.POINTER(Record),
    "fake_fault": ctypes.c_char_p,
    "fake_host_waits": ctypes.c_int64,
    "fake_implicit_waits": ctypes.c_int64,
    "fake_pageable_copies": ctypes.c_int64,
    "fake_blocks_alive": ctypes.c_int64,
    "fake_bytes_alive": ctypes.c_uint64,
    "fake_handles_alive": ctypes.c_int64,
    "fake_launches": ctypes.c_int64,
    "fake_read": ctypes.c_void_p,
    "fake_write": ctypes.c_void_p,
}

HANDLES = {"context": 1, "stream": 2, "event": 3, "module": 4, "function": 5, "graph": 6, "exec": 7}

KernelBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


class Driver:
    """A CUDA driver by ctypes. Integers that are passed are 64 bits wide.

    `driver.cuStreamCreate(out, 1)` calls and returns the CUresult; `driver.do(…)` raises unless it
    is 0; `driver.make(…)` returns the pointer or number that the call writes to its first argument.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.library, name)

        def wrapped(*arguments: Any) -> Any:
            return function(*map(_wide, arguments))

        return wrapped

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; DriverError unless it returns 0."""
        code = getattr(self, name)(*arguments)
        if code:
            raise DriverError(name, code)

    def make(self, name: str, *arguments: Any) -> int:
        """Return what the function writes to where its first argument points."""
        out = ctypes.c_uint64()
        self.do(name, ctypes.byref(out), *arguments)
        return out.value

    def make_last(self, name: str, *arguments: Any) -> int:
        """Return what the function writes to where its last argument points."""
        out = ctypes.c_uint64()
        self.do(name, *arguments, ctypes.byref(out))
        return out.value

    def enter(self, device: int = 0) -> int:
        """Make the device's primary context the current one of this thread; return it."""
        context = self.make("cuDevicePrimaryCtxRetain", device)
        self.do("cuCtxSetCurrent", context)
        return context


class FakeDriver(Driver):
    """The fake driver, with what tests can ask of it."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        for name, result in _RESULTS.items():
            getattr(self.library, name).restype = result
        self._kernels: list[object] = []  # bodies live as long as the library

    def reset(self, devices: int = 2, *, peers: bool = True) -> None:
        """Begin again: nothing made before may be used any more."""
        self.fake_reset()
        self.fake_set_devices(devices, int(peers))
        self.do("cuInit", 0)

    def touch(
        self,
        stream: int,
        reads: Iterable[tuple[int, int]] = (),
        writes: Iterable[tuple[int, int]] = (),
        value: int = -1,
    ) -> None:
        """Enqueue a kernel that reads and writes memory, given by address and bytes."""
        ranges = [Range(*each, 0, -1) for each in reads]
        ranges += [Range(*each, 1, value) for each in writes]
        self.do("fake_touch", stream, (Range * len(ranges))(*ranges), len(ranges))

    def add_kernel(
        self, name: str, sizes: Iterable[int], body: Callable[[int, Any], None], statics: int = 0
    ) -> None:
        """Let every module have a kernel whose body gets the launch and its parameters.

        It has so many bytes of static shared memory.
        """
        kept = KernelBody(body)
        self._kernels.append(kept)
        text = "".join(map(str, sizes))
        self.library.fake_add_kernel(name.encode(), text.encode(), kept, statics)

    @property
    def faults(self) -> list[str]:
        """The faults of order, a sentence each."""
        count = self.library.fake_fault_count()
        return [self.library.fake_fault(i).decode() for i in range(count)]

    @property
    def calls(self) -> list[Call]:
        """The calls since the last reset."""
        records = (self.library.fake_call(i)[0] for i in range(self.library.fake_call_count()))
        return [
            Call(r.name.decode(), r.stream, r.event, r.address, r.nbytes, r.result) for r in records
        ]

    def alive(self, kind: str) -> int:
        """Return how many handles of a kind, `HANDLES`, nobody has destroyed."""
        return int(self.library.fake_handles_alive(HANDLES[kind]))


def _wide(argument: Any) -> Any:
    return ctypes.c_uint64(argument) if isinstance(argument, int) else argument
