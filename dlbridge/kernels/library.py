"""Kernels in C: load_library for a shared library, compile_c for C text.

compile_c keeps its libraries in a cache directory, one for each content. Concurrent processes
are safe: each compiles in a folder of its own, and the library takes its final name in one step.
The directory is `$DLBRIDGE_CACHE_DIR`, else `$XDG_CACHE_HOME/dlbridge`, else `~/.cache/dlbridge`;
files in it may be deleted at any time. Only a directory that nobody else can write to is used, and
a library is loaded only if it is what its name says: the name ends with a checksum.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dlbridge.errors import ArgumentError, KernelError
from dlbridge.exchange.protocol import describe
from dlbridge.files import read_own, why_not_private, write_file
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
        except (OSError, ValueError) as error:
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
        path: of the library. Text without a slash, "libm.so.6", is a name that the loader searches
            for in the system's folders, never here: write "./libmine.so" for a file of the current
            folder. A `pathlib.Path` is a file in any case.

    Raises:
        ArgumentError: it cannot be loaded.

    Example:
        >>> libm = load_library("libm.so.6")
        >>> "cos" in libm, "cosine" in libm
        (True, False)
    """
    if isinstance(path, str) and "/" not in path:
        return Library(path)
    return Library(str(Path(os.fspath(path)).resolve()))


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
    key = _key(source, flags, compiler)
    cache = _cache_directory()
    found = _find(cache, key, ".so")
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=cache) as folder:
        made = Path(folder) / "library.so"
        done = _compile(source, flags, compiler, "-o", str(made))
        if done.returncode != 0:
            raise ArgumentError(
                f"compile_c: {compiler[0]} cannot compile the source:\n{done.stderr.strip()}"
            )
        return _keep(cache, key, ".so", made.read_bytes())


# ---- entries of the cache ------------------------------------------------------------------------
# "<key>-<checksum of the contents><suffix>": an entry that was cut off or changed is none.


def _key(source: str, flags: tuple[str, ...], compiler: tuple[str, ...]) -> str:
    """Return the digest of all that decides what the compiler makes of this text."""
    directory = include_directory()
    headers = [(directory / header).read_text() for header in _HEADERS]
    made_by = (_version(compiler), _target(flags, compiler))
    parts = (source, *headers, *flags, *compiler, *made_by)
    return _digest("\0".join(f"{len(part)}:{part}" for part in parts).encode())


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:32]


def _find(cache: Path, key: str, suffix: str) -> Path | None:
    """Return the entry of a key that is as it was written, or None."""
    for path in cache.glob(f"{key}-*{suffix}"):
        contents = read_own(path)
        if contents is not None and path.name == _name(key, suffix, contents):
            return path
    return None


def _keep(cache: Path, key: str, suffix: str, contents: bytes) -> Path:
    path = cache / _name(key, suffix, contents)
    try:
        write_file(path, [contents], mode=0o700)
    except OSError as error:
        raise KernelError(f"compile_c: the cache cannot be written: {error}") from error
    return path


def _name(key: str, suffix: str, contents: bytes) -> str:
    return f"{key}-{_digest(contents)}{suffix}"


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
    key, cache = _key(f"{source}\n{declared}", flags, compiler), _cache_directory()
    if _find(cache, key, ".checked") is not None:
        return
    done = _compile(f"{source}\n{declared}", flags, compiler, "-fsyntax-only")
    if done.returncode != 0:
        raise ArgumentError(
            f"compile_c: the source defines {name!r} otherwise than abi={abi!r} calls it:\n"
            f"{done.stderr.strip()}"
        )
    _keep(cache, key, ".checked", b"")


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


@cache
def _target(flags: tuple[str, ...], compiler: tuple[str, ...]) -> str:
    """Return the macros that a compiler defines: features of the processor, also of `native`."""
    return _run([*compiler, *_FLAGS, "-x", "c", "-", *flags, "-dM", "-E"]).stdout


# ---- the folder of the cache ---------------------------------------------------------------------


def _cache_directory() -> Path:
    """Return the cache directory, made if need be; one of this process where that cannot be used.

    Raises:
        KernelError: $DLBRIDGE_CACHE_DIR cannot be used.
    """
    chosen = os.environ.get("DLBRIDGE_CACHE_DIR")
    path = cache_path()
    if path is None:
        return _own_directory()
    try:
        _make(path)
        why = why_not_private(path)
    except OSError as error:
        if chosen:
            raise KernelError(f"compile_c: $DLBRIDGE_CACHE_DIR cannot be made: {error}") from error
        return _own_directory()
    if why is not None and chosen:
        raise KernelError(
            f"compile_c: $DLBRIDGE_CACHE_DIR is not used, because what others put there would run: "
            f"{why}; chmod go-w, or name another directory"
        )
    if why is not None:
        warnings.warn(
            f"compile_c: {path} is not used, because what others put there would run: {why}; "
            "libraries are compiled again in each process",
            stacklevel=2,
        )
        return _own_directory()
    return path if chosen or os.access(path, os.W_OK) else _own_directory()


def cache_path() -> Path | None:
    """Return where the cache is meant to be, made or not; None without a home."""
    chosen = os.environ.get("DLBRIDGE_CACHE_DIR")
    return Path(chosen).absolute() if chosen else _default_directory()


def _default_directory() -> Path | None:
    """Return where the XDG base directory standard puts caches; None without a home.

    Relative paths in $XDG_CACHE_HOME are invalid there, and are to be ignored.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "dlbridge"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "dlbridge" if home.is_absolute() else None


def _make(path: Path) -> None:
    """Make a directory, and those above it, for this user alone."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _own_directory() -> Path:
    """Return a directory of this process, removed when it ends; a forked one has its own."""
    return _temporary_directory(os.getpid())


@cache
def _temporary_directory(process: int) -> Path:
    path = tempfile.mkdtemp(prefix="dlbridge-")
    atexit.register(_remove, path, process)
    why = why_not_private(Path(path))
    if why is not None:
        raise KernelError(
            f"compile_c: there is no folder that only this user can change: {why}; name one in "
            "$DLBRIDGE_CACHE_DIR"
        )
    return Path(path)


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # a forked child runs what its parent registered
        shutil.rmtree(path, ignore_errors=True)
