"""Kernels in CUDA C++: compile_cuda for text, by NVRTC, which needs neither a GPU nor nvcc.

What it compiles is kept in the cache of `kernels.cache`, one entry for each content and
architecture. Machine code is for one architecture; PTX, which comes with it, is what the driver of
a newer device compiles.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Unpack, overload

from dlbridge import registry
from dlbridge.calls import public, words
from dlbridge.cuda import is_available
from dlbridge.cuda.modules import Function, Module
from dlbridge.cuda.nvrtc import (
    Architecture,
    Nvrtc,
    Output,
    device_architecture,
    driver_version,
    open_nvrtc,
    read_architecture,
)
from dlbridge.errors import ArgumentError
from dlbridge.kernels import cache
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.source import COMMENT, check_text, included, lines_with
from dlbridge.kernels.wrap import FurtherOptions, check_names, wrap
from dlbridge.text import did_you_mean


@overload
def compile_cuda(source: str, *, arch: str | None = None, flags: Iterable[str] = ()) -> Module: ...


@overload
def compile_cuda(
    source: str,
    name: str,
    schema: Any,
    abi: str | None = None,
    *,
    arch: str | None = None,
    flags: Iterable[str] = (),
    **options: Unpack[FurtherOptions],
) -> Kernel: ...


@public
def compile_cuda(
    source: str,
    name: str | None = None,
    schema: Any = None,
    abi: str | None = None,
    *,
    arch: str | None = None,
    flags: Iterable[str] = (),
    **options: Unpack[FurtherOptions],
) -> Module | Kernel:
    """Compile CUDA C++ and return one of its kernels as a Kernel, or all of them as a module.

    NVRTC compiles it, without nvcc and without a GPU: of a toolkit, or of
    `pip install nvidia-cuda-nvrtc`. `#include <stdint.h>` always works, CUDA's own headers
    (`cuda_fp16.h`, `cuda/std/…`) where a toolkit or `nvidia-cuda-runtime` is installed. The same
    text with the same flags is compiled once and read from the cache afterwards, so several kernels
    of one text are several calls.

    Args:
        source: the CUDA C++ text.
        name: of a `__global__` function in it, with the values of a template's parameters and its
            namespace, "scale<float>", "mine::scale". Left out, the whole module is returned:
            `wrap(module["scale"], schema, grid=…, block=…)`.
        schema: as for `wrap`.
        abi: the C signature with the names of the schema, "void(const float *x, float *out, int64_t
            n)". None is what stands in the source, whose parameters then have those names; a
            template needs it.
        arch: "sm_90" compiles for devices of compute capability 9.0, and PTX for newer ones;
            "compute_80" compiles PTX alone. None compiles for each device that a kernel is called
            on, for device 0 at once, which starts CUDA in this process; without a GPU it compiles
            for the oldest architecture that NVRTC knows, to find mistakes.
        flags: further options of NVRTC, as ("--use_fast_math", "-DN=4", "-I/opt/include").
        **options: those of `wrap`: grid and block are needed, shared may be.

    Raises:
        ArgumentError: the text cannot be compiled, NVRTC says why; or it has no such kernel, or its
            parameters are others than the abi's or the schema's.
        KernelError: there is no NVRTC, or none whose code the driver takes.

    Example:
        >>> source = '''
        ... extern "C" __global__ void scale(const float *x, float *out, float by, long long n) {
        ...     long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        ...     if (i < n)
        ...         out[i] = by * x[i];
        ... }
        ... '''
        >>> scale = compile_cuda(
        ...     source, "scale", "docs::scale(x: f32[n], *, by: float) -> f32[n]",
        ...     grid="(n + 255) // 256", block=256,
        ... )  # doctest: +SKIP
    """
    check_names("compile_cuda", options, ("source", "name", "schema", "abi", "arch", "flags"))
    check_text("source", source)
    flags = _check_flags(words("compile_cuda", "flags", flags))
    chosen = None if arch is None else read_architecture(arch)
    if name is None:
        if schema is not None or abi is not None or options:
            raise ArgumentError("schema=, abi= and options of wrap need the name of a kernel")
        return _module(source, flags, chosen)
    check_text("name", name)
    if abi is not None:
        check_text("abi", abi)
    return wrap(_module(source, flags, chosen)[name], schema, abi=abi, **options)


_FLAG_OF_ARCH = re.compile(r"--?(gpu-architecture|arch)(=|$)")


def _check_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    for each in flags:
        check_text("flags", each)
        if _FLAG_OF_ARCH.match(each):
            raise ArgumentError(f"flags: {each!r} is what arch= is for, as in arch='sm_90'")
    return flags


# ---- the module ----------------------------------------------------------------------------------

_MODULES: dict[tuple[Any, ...], Compiled] = {}
_LOCK = registry.lock()


def _module(source: str, flags: tuple[str, ...], arch: Architecture | None) -> Compiled:
    """Return the module of a text: one, so that kernels of one text share its variables."""
    key = (source, flags, arch, tuple(included(source, flags)))
    with _LOCK:
        found = _MODULES.get(key)
    if found is None:
        made = Compiled(_Unit(source, flags), arch)
        with _LOCK:
            found = _MODULES.setdefault(key, made)
    return found


class _Unit(NamedTuple):
    """What is compiled: a text with its flags, and the expression that names a kernel, if any."""

    source: str
    flags: tuple[str, ...]
    expression: str = ""


class Compiled(Module):
    """The module of a text, compiled for each device that needs it."""

    def __init__(self, unit: _Unit, arch: Architecture | None) -> None:
        self._unit, self._arch = unit, arch
        self._nvrtc = _nvrtc()
        first = self._first_architecture()
        self._first = _build(self._nvrtc, unit, first)
        super().__init__(self._first.ptx)
        self._images = {first: self._first}
        self._instances: dict[str, Compiled] = {}
        if self._first.warnings:
            cache.warn_caller(f"compile_cuda: {self._nvrtc} warns:\n{self._first.warnings}")

    def _first_architecture(self) -> Architecture:
        known = self._nvrtc.architectures
        if self._arch is None:
            return self._best(device_architecture(0)) if is_available() else _oldest(known)
        if self._arch.number not in known:
            numbers = ", ".join(map(str, known))
            raise ArgumentError(
                f"arch: {self._nvrtc} does not compile for {self._arch}; it does for {numbers}"
            )
        return self._arch

    def _best(self, device: Architecture) -> Architecture:
        """Return the architecture to compile for a device: its own, if NVRTC knows that."""
        known = [each for each in self._nvrtc.architectures if each <= device.number]
        if not known:
            oldest = min(self._nvrtc.architectures)
            raise ArgumentError(
                f"arch: {self._nvrtc} compiles for sm_{oldest} and newer, and the device is "
                f"{device}; an older NVRTC is needed: DLBRIDGE_NVRTC says where it is"
            )
        best = max(known)
        return Architecture("sm" if best == device.number else "compute", best)

    def image(self, device: int) -> bytes:
        """Return the code for a device: machine code, else PTX that its driver compiles."""
        here = device_architecture(device)
        arch = self._arch or self._best(here)
        with self._lock:
            if arch not in self._images:
                self._images[arch] = _build(self._nvrtc, self._unit, arch)
            images = self._images[arch]
        if arch.number > here.number:
            raise ArgumentError(
                f"compile_cuda: arch={str(arch)!r} is newer than cuda:{device}, which is {here}"
            )
        return images.cubin if arch.runs_on(here) else images.ptx

    def __repr__(self) -> str:
        return f"Module of {', '.join(_kernels_in(self._unit.source)) or 'no kernels'}"

    def __getitem__(self, name: Any) -> Function:
        """Return the kernel called `name`, of a template with the values of its parameters.

        Raises:
            ArgumentError: the source has no such kernel.
        """
        check_text("Module: a kernel's name", name)
        symbol = self._first.symbol if name == self._unit.expression else name
        parameters = self._first.kernels.get(symbol)
        if parameters is not None:
            return Function(self, symbol, _read_signature(self._unit.source, name), parameters)
        with self._lock:
            made = self._instances.get(name)
        if made is None:
            made = self._instantiate(name)
            with self._lock:
                made = self._instances.setdefault(name, made)
        return made[name]

    def _instantiate(self, name: str) -> Compiled:
        """Compile the text once more, with what names a kernel by an expression of C++."""
        names = _kernels_in(self._unit.source)
        if _base(name) not in names:
            has = f"; it has {', '.join(names)}" if names else ": no __global__ function at all"
            nearest = did_you_mean(name, names)
            raise ArgumentError(f"the source has no kernel {name!r}{nearest or has}")
        return Compiled(self._unit._replace(expression=name), self._arch)


def _nvrtc() -> Nvrtc:
    return open_nvrtc(driver_version()[0] if is_available() else None)


def _oldest(known: tuple[int, ...]) -> Architecture:
    return Architecture("sm", min(known))


# ---- what NVRTC made, and the cache --------------------------------------------------------------


class _Images(NamedTuple):
    """What was made of a text for one architecture.

    Attributes:
        kernels: the parameters of each: "u", "f" or "b" for an integer, a float, bytes; and size.
    """

    ptx: bytes
    cubin: bytes
    symbol: str
    warnings: str
    kernels: dict[str, tuple[tuple[str, int], ...]]


def _build(nvrtc: Nvrtc, unit: _Unit, arch: Architecture) -> _Images:
    """Return what NVRTC makes of a text, from the cache if it is there."""
    options = (
        f"--gpu-architecture={arch}",
        *[f"--include-path={folder}" for folder in nvrtc.include],
        *unit.flags,
    )
    own = included(unit.source, unit.flags)
    parts = (unit.source, unit.expression, str(nvrtc), *options, *own)
    key = cache.digest("\0".join(f"{len(part)}:{part}" for part in ("cuda", *parts)).encode())

    @functools.cache
    def made() -> Output:
        output = nvrtc.compile(unit.source, options, unit.expression)
        if not output:
            raise ArgumentError(_failure(nvrtc, unit, output.log))
        return output

    def kept(suffix: str, contents: str) -> bytes:
        path = cache.entry(key, suffix, lambda _: _encoded(getattr(made(), contents)), _CALL)
        return path.read_bytes()

    ptx = kept(".ptx", "ptx")
    cubin = kept(".cubin", "cubin") if arch.kind == "sm" else b""
    symbol = kept(".symbol", "symbol").decode() if unit.expression else ""
    log = kept(".log", "log").decode()
    return _Images(ptx, cubin, symbol, log, _read_kernels(ptx.decode(errors="replace")))


_CALL = "compile_cuda"


def _encoded(contents: str | bytes) -> bytes:
    return contents if isinstance(contents, bytes) else contents.encode()


_UNDEFINED = re.compile(r"Unresolved extern function '(?:_Z)?(?P<mangled>\w+)'")
_ADVICE = {
    r'open source file "dlbridge_kernel\.h': (
        "dlbridge_kernel.h is for functions of the host, which are told what they are called with; "
        "a kernel has it in its parameters"
    ),
    r'identifier "u?int\d+_t" is undefined': "the source lacks #include <stdint.h>",
    r'open source file "(cuda|cub|thrust|cooperative_groups|mma|curand)': (
        "the headers of CUDA are not here: `pip install nvidia-cuda-runtime nvidia-cuda-cccl`, or "
        "flags=['-I…'] with their folder"
    ),
}


def _failure(nvrtc: Nvrtc, unit: _Unit, log: str) -> str:
    """Return the text of a refusal: what NVRTC said, and what may be done."""
    if "__nv_name_map" in log:
        return f"the source has no kernel {unit.expression!r}; {nvrtc} says:\n{log}"
    missing = _UNDEFINED.search(log)
    if missing is not None:
        name = _demangle(missing["mangled"])
        where = lines_with(unit.source, name) or "the source, through a macro,"
        return f"{where} uses {name!r}, which nothing defines"
    advice = next((what for pattern, what in _ADVICE.items() if re.search(pattern, log)), "")
    return f"{nvrtc} cannot compile the source:\n{log}{f'{chr(10)}{advice}' if advice else ''}"


def _demangle(mangled: str) -> str:
    """Return the name of a function without its namespaces and parameters."""
    rest, names = mangled.removeprefix("N"), []
    while found := re.match(r"\d+", rest):
        end = found.end() + int(found[0])
        names.append(rest[found.end() : end])
        rest = rest[end:]
    return names[-1] if names else mangled


# ---- the text ------------------------------------------------------------------------------------

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z])(\d+)\s+(?:\.ptr\b[^,]*?)?[\w$]+(?:\[(\d+)\])?\s*(?:,|$)"
)


def _read_kernels(ptx: str) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the kernels of PTX with the kind and the size of each parameter, in bytes."""
    return {
        found[1]: tuple(
            ("b", int(count)) if count else (kind, int(bits) // 8)
            for kind, bits, count in _PARAMETER.findall((found[2] or "").strip())
        )
        for found in _ENTRY.finditer(ptx)
    }


_KERNEL = r"\b__global__\b(?P<between>[^;{{}}]*?)\b{name}\s*\((?P<parameters>[^()]*)\)\s*(?=[{{;])"


def _base(name: str) -> str:
    """Return the name of a kernel without namespaces and the values of a template."""
    return name.partition("<")[0].rpartition("::")[2].strip()


def _kernels_in(source: str) -> list[str]:
    """Return the names of the `__global__` functions that stand in a text."""
    pattern = _KERNEL.format(name=r"(?P<name>[A-Za-z_]\w*)")
    return list(dict.fromkeys(each["name"] for each in re.finditer(pattern, _bare(source))))


def _bare(source: str) -> str:
    """Return a text without comments and `__launch_bounds__`, whose parentheses are in the way."""
    text = COMMENT.sub(" ", source)
    return re.sub(r"\b__(launch_bounds|cluster_dims|maxnreg)__\s*\([^()]*\)", " ", text)


def _read_signature(source: str, name: str) -> str | None:
    """Return the C signature of a kernel as it stands in the text; None where it is a template."""
    if "<" in name or not re.fullmatch(r"[A-Za-z_]\w*", _base(name)):
        return None
    pattern = _KERNEL.format(name=_base(name))
    found = {" ".join(each["parameters"].split()) for each in re.finditer(pattern, _bare(source))}
    return f"void({found.pop()})" if len(found) == 1 else None
