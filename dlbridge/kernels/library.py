"""Kernels in C: load_library for a shared library, compile_c for C text.

compile_c keeps its libraries in a cache directory, one for each content. Concurrent processes
are safe: each compiles into a file of its own, which then takes its final name in one step. The
directory is `$DLBRIDGE_CACHE_DIR`, else `$XDG_CACHE_HOME/dlbridge`, else `~/.cache/dlbridge`; files
in it may be deleted at any time.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dlbridge.errors import ArgumentError, KernelError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.wrap import wrap


class Library:
    """A shared library that stays loaded; its functions are found by name.

    `library["axpy"]` and `library.axpy` are ctypes functions without a prototype, as `wrap` takes
    them with an abi; `library.wrap("axpy", schema)` is the Kernel.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ArgumentError(f"load_library: {path} cannot be loaded: {error}") from error

    def __getitem__(self, name: str) -> Any:
        """Return the function called `name` in the library's symbol table."""
        if not isinstance(name, str):
            raise ArgumentError(f"load_library: a symbol's name must be text, got {name!r}")
        try:
            return self._library[name]
        except AttributeError:
            raise ArgumentError(
                f"load_library: {self.path} has no symbol {name!r}; C++ functions need extern "
                '"C", and hidden ones __attribute__((visibility("default")))'
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except ArgumentError as error:
            raise AttributeError(str(error)) from None

    def __contains__(self, name: Any) -> bool:
        try:
            return bool(self[name])
        except ArgumentError:
            return False

    def wrap(
        self, name: str, schema: Any = None, *, abi: str = "dltensors", **options: Any
    ) -> Kernel:
        """Return the function called `name` as a Kernel; the options are those of `wrap`."""
        return wrap(self[name], schema, abi=abi, **options)

    def __repr__(self) -> str:
        return f"Library({self.path!r})"


def load_library(path: str | os.PathLike[str]) -> Library:
    """Load a shared library, for its functions to be wrapped as kernels.

    It is never unloaded: compiled graphs may call its kernels until the process ends. A library
    that changed on disk is loaded again only under another path.

    Args:
        path: of the library. A bare name without a slash is searched for as `dlopen` does, unless
            there is such a file here.

    Raises:
        ArgumentError: it cannot be loaded.

    Example:
        >>> libm = load_library("libm.so.6")
        >>> "cos" in libm, "cosine" in libm
        (True, False)
    """
    given = os.fspath(path)
    found = Path(given)
    return Library(str(found.resolve()) if found.is_file() else given)


# ---- compile_c -----------------------------------------------------------------------------------


_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared")
_HEADERS = ("dlpack.h", "dlbridge_kernel.h")


def compile_c(
    source: str,
    name: str,
    schema: Any = None,
    abi: str = "dltensors",
    *,
    flags: Iterable[str] = (),
    compiler: str | None = None,
    **options: Any,
) -> Kernel:
    """Compile C text and return one of its functions as a Kernel.

    `#include "dlpack.h"` and `#include "dlbridge_kernel.h"` work. The text is compiled as GNU C11
    with -O3 and linked with libm. The same text with the same flags is compiled once and read from
    the cache afterwards, so several functions of one text are several calls.

    Args:
        source: the C text.
        name: of the function in it, not `static`.
        schema: as for `wrap`.
        abi: as for `wrap`: "dltensors" (default: `int f(void *context, DLTensor *arguments, int
            count)`), "pointers" (`int f(DLTensor *first, DLTensor *second, …)`), or a C signature,
            "void(const float *x, float *out, int64_t n)", which the function must have exactly.
        flags: further options of the compiler and linker, as ("-march=native", "-fopenmp").
        compiler: the command; None is $CC, else cc, gcc or clang.
        **options: those of `wrap`.

    Raises:
        ArgumentError: the text cannot be compiled, the compiler says why; or it has no such
            function, or the function is none of this abi.
        KernelError: there is no compiler, or it cannot be run.

    Example:
        >>> import numpy
        >>> text = '''
        ... #include "dlpack.h"
        ... int twice(void *context, DLTensor *arguments, int count) {
        ...     const float *x = arguments[0].data;
        ...     float *out = arguments[1].data;
        ...     for (int64_t i = 0; i < arguments[0].shape[0]; i++)
        ...         out[i] = 2 * x[i];
        ...     return 0;
        ... }
        ... '''
        >>> twice = compile_c(text, "twice", "docs::twice(x: f32[n]) -> f32[n]")
        >>> twice(numpy.array([1, 2.5], "float32")).tolist()
        [2.0, 5.0]
    """
    _check_text("source", source)
    _check_text("name", name)
    if not name.isidentifier():
        raise ArgumentError(f"compile_c: name must be that of a C function, got {name!r}")
    if isinstance(flags, str):
        raise ArgumentError(f"compile_c: flags must be a sequence such as ('-g',), got {flags!r}")
    command = _find_compiler(compiler)
    library = load_library(_build(source, tuple(flags), command))
    if name not in library:
        raise ArgumentError(f"compile_c: the source has no function {name!r} that others can call")
    _check_definition(source, name, abi)
    if "(" in str(abi):
        _check_signature(source, name, abi, tuple(flags), command)
    return library.wrap(name, schema, abi=abi, **options)


def _check_text(argument: str, value: object) -> None:
    if not isinstance(value, str):
        raise ArgumentError(f"compile_c: {argument} must be text, got {describe(value)}")


def include_directory() -> Path:
    """Return the directory of dlpack.h and dlbridge_kernel.h, for `cc -I`."""
    package = Path(__file__).resolve().parent.parent
    for directory in (package / "include", package.parent / "include"):
        if all((directory / header).is_file() for header in _HEADERS):
            return directory
    raise KernelError(f"compile_c: dlbridge was installed without its headers {_HEADERS}")


def _build(source: str, flags: tuple[str, ...], compiler: tuple[str, ...]) -> Path:
    """Return the path of the library, compiled unless it is in the cache."""
    path = _cached(source, flags, compiler, ".so")
    if not path.is_file():
        handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
        os.close(handle)
        try:
            done = _compile(source, flags, compiler, "-o", made)
            if done.returncode != 0:
                raise ArgumentError(
                    f"compile_c: {compiler[0]} cannot compile the source:\n{done.stderr.strip()}"
                )
            Path(made).replace(path)
        finally:
            Path(made).unlink(missing_ok=True)
    return path


def _cached(source: str, flags: tuple[str, ...], compiler: tuple[str, ...], suffix: str) -> Path:
    """Return where the cache has what the compiler made of this text."""
    directory = include_directory()
    headers = [(directory / header).read_text() for header in _HEADERS]
    parts = (source, *headers, *flags, *compiler, _version(compiler), platform.machine())
    digest = hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()
    return _cache_directory() / f"{digest[:32]}{suffix}"


def _compile(
    source: str, flags: tuple[str, ...], compiler: tuple[str, ...], *options: str
) -> subprocess.CompletedProcess[str]:
    command = [*compiler, *_FLAGS, f"-I{include_directory()}", "-x", "c", "-", *flags, "-lm"]
    return _run([*command, *options], f'#line 1 "source.c"\n{source}\n')


# ---- the function against its abi ----------------------------------------------------------------

_CONVENTIONS = {
    "dltensors": "int {name}(void *context, DLTensor *arguments, int count)",
    "pointers": "int {name}(DLTensor *first, DLTensor *second, …)",
}
_PLAIN_TYPE = re.compile(
    r"\b(const|restrict|__restrict__|__restrict|unsigned|signed|void|bool|_Bool|char|short|int|long"
    r"|float|double|_Complex|size_t|ssize_t|ptrdiff_t|u?intptr_t|u?int\d+_t)\b"
)


def _check_definition(source: str, name: str, abi: object) -> None:
    """Refuse a function of plain pointers and numbers where the abi passes DLTensors.

    It would compile, and be called with other arguments than it takes. Only what the text says
    plainly is refused: types of its own may be anything.
    """
    if abi not in _CONVENTIONS:
        return
    text = _COMMENT.sub(" ", source)
    for found in re.finditer(rf"\b{name}\s*\(([^()]*)\)\s*\{{", text):
        parameters = [each.strip() for each in found[1].split(",")]
        if parameters in ([""], ["void"]) or not all(map(_is_plain, parameters)):
            continue
        kinds = [each.count("*") + each.count("[") for each in parameters]
        if abi == "dltensors" and kinds == [1, 1, 0] and "void" in parameters[1]:
            continue  # which it casts
        if abi == "pointers" and all("void" in each for each in parameters):
            continue
        wanted = _CONVENTIONS[str(abi)].format(name=name)
        given = ", ".join(" ".join(each.split()) for each in parameters)
        raise ArgumentError(
            f"compile_c: abi={abi!r} calls {name!r} as `{wanted}`, and the source defines "
            f"`{name}({given})`; pass that as abi, with the names of the schema, as in "
            "abi='void(const float *x, float *out, int64_t n)'"
        )


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def _is_plain(parameter: str) -> bool:
    """Return whether a parameter is a number of C, or a pointer to one, with a name."""
    words = re.findall(r"\w+", _PLAIN_TYPE.sub(" ", parameter))
    return _PLAIN_TYPE.search(parameter) is not None and len(words) <= 1


def _check_signature(
    source: str, name: str, abi: str, flags: tuple[str, ...], compiler: tuple[str, ...]
) -> None:
    """Have the compiler compare the function with the C signature, once for each text of both."""
    declared = re.sub(r"(\(\s*\*\s*\)\s*)?\(", f" {name}(", abi.strip().rstrip(";"), count=1)
    declared = f'#line 1 "abi"\n#include <stdbool.h>\n#include <stdint.h>\n{declared};'
    checked = _cached(f"{source}\n{declared}", flags, compiler, ".checked")
    if checked.is_file():
        return
    done = _compile(f"{source}\n{declared}", flags, compiler, "-fsyntax-only")
    if done.returncode != 0:
        raise ArgumentError(
            f"compile_c: the source defines {name!r} otherwise than abi={abi!r} calls it:\n"
            f"{done.stderr.strip()}"
        )
    checked.touch()


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise KernelError(f"compile_c: {command[0]} cannot be run: {error}") from error


def _find_compiler(compiler: str | None) -> tuple[str, ...]:
    """Return the command of the compiler, with the options that $CC may have."""
    command = shlex.split(compiler or os.environ.get("CC", ""))
    if command:
        return tuple(command)
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    if found is None:
        raise KernelError(
            f"compile_c: there is no C compiler here: none of {', '.join(_COMPILERS)} is in PATH, "
            "and $CC is not set"
        )
    return (found,)


@cache
def _version(compiler: tuple[str, ...]) -> str:
    return _run([*compiler, "--version"]).stdout


def _cache_directory() -> Path:
    """Return the cache directory, made if need be; one for this process where none can be made."""
    chosen = os.environ.get("DLBRIDGE_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(chosen) if chosen else Path(home) / "dlbridge"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if chosen:
            raise KernelError(f"compile_c: $DLBRIDGE_CACHE_DIR cannot be made: {error}") from error
        return _private_directory()
    return path if chosen or os.access(path, os.W_OK) else _private_directory()


@cache
def _private_directory() -> Path:
    path = tempfile.mkdtemp(prefix="dlbridge-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)
