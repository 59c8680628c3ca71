"""NVRTC, NVIDIA's compiler of CUDA C++ as a library: it needs no GPU and no driver.

It is found in `$DLBRIDGE_NVRTC`, in the toolkit of `$CUDA_HOME` or `$CUDA_PATH`, in the packages
`nvidia-cuda-nvrtc` and `nvidia-cuda-nvrtc-cu12` of pip, where the dynamic loader looks, and in
`/usr/local/cuda`: the first of these whose code the driver takes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from dlbridge._core import ffi
from dlbridge.cuda.driver import check, driver
from dlbridge.errors import ArgumentError, KernelError
from dlbridge.signals import not_from_handler

_SUCCESS, _INVALID_OPTION, _COMPILATION = 0, 5, 6  # of nvrtcResult
# What a source may include without any toolkit. The types are those of libcu++.
_HEADERS = {
    name: "#pragma once\n"
    + "".join(
        f"using {sign}int{bits}_t = {kind};\n"
        for bits, kind_of in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for sign, kind in (("", f"signed {kind_of}"), ("u", f"unsigned {kind_of}"))
    )
    + "using intptr_t = int64_t;\nusing uintptr_t = uint64_t;\n"
    for name in ("stdint.h", "cstdint")
}


class Architecture(NamedTuple):
    """What code is compiled for: "sm_90a" is machine code, "compute_80" is PTX."""

    kind: str
    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.kind}_{self.number}{self.suffix}"

    def runs_on(self, device: Architecture) -> bool:
        """Return whether machine code of this architecture runs on a device."""
        if self.kind != "sm" or self.number // 10 != device.number // 10:
            return False
        exact = self.suffix == "a"
        return self.number == device.number if exact else self.number <= device.number


_ARCHITECTURE = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")


def read_architecture(given: object) -> Architecture:
    """Return an architecture by its name.

    Raises:
        ArgumentError: it is no such name.
    """
    found = _ARCHITECTURE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ArgumentError(
            f"arch must be an architecture such as 'sm_90' or 'compute_80', got {given!r}"
        )
    return Architecture(found[1], int(found[2]), found[3])


def device_architecture(device: int) -> Architecture:
    """Return the architecture of a device; no context is made for that."""
    functions = driver()
    found = ffi.new("int[2]")
    handle = ffi.new("CUdevice *")
    check("arch", functions.cuDeviceGet(handle, device), "cuDeviceGet")
    for place, attribute in enumerate((75, 76)):  # COMPUTE_CAPABILITY_MAJOR, _MINOR
        code = functions.cuDeviceGetAttribute(found + place, attribute, handle[0])
        check("arch", code, "cuDeviceGetAttribute")
    return Architecture("sm", 10 * found[0] + found[1])


def driver_version() -> tuple[int, int]:
    """Return the newest version of CUDA that the driver knows."""
    found = ffi.new("int *")
    check("arch", driver().cuDriverGetVersion(found), "cuDriverGetVersion")
    return found[0] // 1000, found[0] % 1000 // 10


class Output(NamedTuple):
    """What NVRTC made of a source.

    Attributes:
        log: errors and warnings.
        ptx: text of the driver's assembler; empty where there was an error.
        cubin: machine code; empty for a "compute" architecture.
        symbol: of the expression that was passed, as the linker knows it.
    """

    log: str
    ptx: bytes = b""
    cubin: bytes = b""
    symbol: str = ""

    def __bool__(self) -> bool:
        return bool(self.ptx)


class Nvrtc:
    """One library of NVRTC.

    Attributes:
        path: where it is, or the name by which the loader found it.
        version: of CUDA.
        architectures: the numbers of those that it compiles for.
        include: the folders with CUDA's headers that belong to it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._functions = ctypes.CDLL(path)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        self.architectures = tuple(numbers)
        self.include = _find_headers(path)

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def compile(self, source: str, options: Iterable[str], expression: str = "") -> Output:
        """Compile a source, with an expression that names a kernel in it, `f<float>`, if any.

        Raises:
            ArgumentError: NVRTC does not take an option.
            KernelError: it fails otherwise than for the source.
        """
        program = ctypes.c_void_p()
        names, texts = _texts(_HEADERS), _texts(_HEADERS.values())
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"source.cu",
            len(_HEADERS), texts, names,
        )  # fmt: skip
        try:
            return self._compile(program, tuple(options), expression.encode())
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _compile(
        self, program: ctypes.c_void_p, options: tuple[str, ...], expression: bytes
    ) -> Output:
        if expression:
            self._call("nvrtcAddNameExpression", program, expression)
        status = self._functions.nvrtcCompileProgram(program, len(options), _texts(options))
        log = self._get("ProgramLog", program).decode(errors="replace").strip()
        if status == _INVALID_OPTION:
            raise ArgumentError(f"{self} does not take an option of flags=: {log}")
        if status == _COMPILATION:
            return Output(log)
        self._check(status, "nvrtcCompileProgram", log)
        symbol = ctypes.c_char_p()
        if expression:
            self._call("nvrtcGetLoweredName", program, expression, ctypes.byref(symbol))
        ptx, cubin = self._get("PTX", program), self._get("CUBIN", program)
        return Output(log, ptx.rstrip(b"\0"), cubin, (symbol.value or b"").decode())

    def _get(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        if not size.value:
            return b""
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw if what == "CUBIN" else text.raw.rstrip(b"\0")

    def _call(self, function: str, *arguments: Any) -> None:
        self._check(getattr(self._functions, function)(*arguments), function)

    def _check(self, status: int, function: str, log: str = "") -> None:
        if status == _SUCCESS:
            return
        name = self._functions.nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        said = f": {log}" if log else ""
        raise KernelError(f"{self.path}: {function}: {name(status).decode()}{said}")


def _texts(given: Iterable[str]) -> Any:
    encoded = [each.encode() for each in given]
    return (ctypes.c_char_p * len(encoded))(*encoded)


# ---- where it is ---------------------------------------------------------------------------------

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2")
_TOOLKIT = Path("/usr/local/cuda")
_ADVICE = "`pip install nvidia-cuda-nvrtc`, or say where it is in DLBRIDGE_NVRTC"


def open_nvrtc(newest: int | None = None) -> Nvrtc:
    """Return the first NVRTC that is found, of a version of CUDA up to `newest`.

    Raises:
        KernelError: there is none.
    """
    named = os.environ.get("DLBRIDGE_NVRTC")
    if named:
        try:
            return _open(named)
        except not_from_handler(OSError, AttributeError) as error:
            raise KernelError(f"$DLBRIDGE_NVRTC cannot be loaded: {error}") from error
    too_new = []
    for path in _candidates():
        try:
            found = _open(path)
        except not_from_handler(OSError, AttributeError):
            # not there, or older than what is called here
            continue
        if newest is None or found.version[0] <= newest:
            return found
        too_new.append(found)
    if too_new:
        raise KernelError(
            f"the driver takes code of CUDA {newest} and older, and here is {too_new[0]}, "
            f"{too_new[0].path}; `pip install nvidia-cuda-nvrtc-cu{newest}` where that is 12 or "
            "less, or say where such an NVRTC is in DLBRIDGE_NVRTC"
        )
    raise KernelError(f"there is no NVRTC here, which compiles CUDA C++; {_ADVICE}")


@functools.cache
def _open(path: str) -> Nvrtc:
    return Nvrtc(path)


def _candidates() -> Iterator[str]:
    """Yield the paths of libraries, and the names that the loader looks for."""
    folders = [*_in_toolkits(_chosen_toolkits()), *_packages("nvidia/*/lib")]
    yield from _libraries(folders)
    yield from _NAMES
    yield from _libraries(_in_toolkits([Path(sys.prefix), _TOOLKIT]))


def _chosen_toolkits() -> list[Path]:
    given = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"))
    return [Path(folder) for folder in given if folder]


def _in_toolkits(folders: Iterable[Path]) -> list[Path]:
    return [folder / name for folder in folders for name in ("lib64", "lib")]


def _packages(pattern: str) -> list[Path]:
    """Return folders of NVIDIA's packages for Python, which share one namespace."""
    spec = find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    return [
        folder for root in roots for folder in sorted(Path(root).parent.glob(pattern), reverse=True)
    ]


def _libraries(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        yield from (str(folder / name) for name in _NAMES if (folder / name).is_file())


def _find_headers(path: str) -> tuple[Path, ...]:
    """Return the folders with `cuda_fp16.h` and with CCCL, those of the library's own toolkit."""
    own = Path(path).resolve().parent if "/" in path else None
    near = [] if own is None else [own.parent / "include", own.parents[1] / "cuda_runtime/include"]
    for folder in (*near, *[root / "include" for root in (*_chosen_toolkits(), _TOOLKIT)]):
        if (folder / "cuda_fp16.h").is_file():
            return tuple(each for each in (folder, folder / "cccl") if each.is_dir())
    return ()
