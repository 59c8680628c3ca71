"""Kernels in C and C++: load_library for a shared library, compile_c and compile_cpp for text.

These keep their libraries in the cache of `kernels.cache`, one for each content.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from dlbridge import registry
from dlbridge.calls import public, with_advice, words
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels import cache
from dlbridge.kernels.builds import find_built
from dlbridge.kernels.described import (
    Described,
    described_exports,
    functions_of_tvm,
    key_of,
    open_tvm,
    read_described,
)
from dlbridge.kernels.elf import why_not_loaded
from dlbridge.kernels.exports import TABLE, is_of, make_kernels, read_exports
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.source import COMMENT, check_text, included, lines_with
from dlbridge.kernels.wrap import FurtherOptions, check_names, wrap
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean


@with_advice
class Library:
    """A shared library that stays loaded: its kernels, and its functions by name.

    `library.rope` is the Kernel that it exports as "mylib::rope" with `DLB_EXPORT`, and so on for
    each; `library.kernels` has them by their whole names, also those that are called as an
    attribute is, or alike in two namespaces.

    `library["axpy"]` and, where no kernel is called so, `library.axpy` are ctypes functions without
    a prototype, as `wrap` takes them with an abi; `library.wrap("axpy", schema)` is the Kernel.

    Attributes:
        path: where it was loaded from.
        kernels: those that it exports: "namespace::name" -> Kernel.
    """

    kernels: Mapping[str, Kernel]

    def __init__(self, path: str, spelled: str | None = None) -> None:
        if not isinstance(path, str):
            raise UnsupportedTypeError(
                "Library: open libraries with dlbridge.load_library(path), "
                f"got {type(path).__name__}"
            )
        self.path = path
        self.kernels = MappingProxyType({})
        try:
            self._library = ctypes.CDLL(spelled or path)
        except not_from_handler(OSError, ValueError) as error:
            hint = ""
            if "/" not in path and os.path.isfile(path):
                hint = f"; write './{path}' for the file of the current folder"
            text = f"load_library: {path} cannot be loaded: {error}{hint}"
            raise ArgumentError(text) from error

    def _make_kernels(
        self, where: str, described: Mapping[str, Mapping[str, Any]], module: Any, names: list[str]
    ) -> None:
        """Make the kernels of the library's own table, those described, and those of tvm-ffi."""
        address = self._table()
        exports = read_exports(self.path, address) if address else []
        exports += described_exports(where, described, module, names, self.__getitem__)
        made = make_kernels(self.path, exports)
        for name in names:
            if name not in described:
                made[name] = wrap(module.get_function(name), name=name)
        self.kernels = MappingProxyType(made)
        known = dir(Library) + list(vars(self))
        vars(self).update({name: each for name, each in self._alone().items() if name not in known})
        if made:
            lines = [f"    {kernel.schema or name}" for name, kernel in made.items()]
            self.__doc__ = "\n".join([f"The kernels of {self.path}:", "", *lines, ""])

    def _alone(self) -> dict[str, Kernel]:
        """Return the kernels by the names that only one of them has, without a namespace."""
        names = Counter(kernel.__name__ for kernel in self.kernels.values())
        return {
            kernel.__name__: kernel
            for kernel in self.kernels.values()
            if names[kernel.__name__] == 1
        }

    def _table(self) -> int:
        """Return the address of the table, or 0; one of a library that this one needs is not it."""
        try:
            address = ctypes.addressof(ctypes.c_char.in_dll(self._library, TABLE))
        except not_from_handler(ValueError):
            return 0
        return address if is_of(address, self._library._handle) else 0

    def __getitem__(self, name: str) -> Any:
        """Return the function called `name` in the library's symbol table."""
        if not isinstance(name, str):
            raise ArgumentError(f"load_library: a symbol's name must be text, got {name!r}")
        try:
            return self._library[name]
        except not_from_handler(AttributeError):
            raise ArgumentError(
                f"load_library: {self.path} has no symbol {name!r}; C++ functions need extern "
                '"C", and hidden ones __attribute__((visibility("default")))'
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        namesakes = [each for each, kernel in self.kernels.items() if kernel.__name__ == name]
        if namesakes:
            raise AttributeError(
                f"load_library: {self.path} has {' and '.join(namesakes)}; take one from "
                f".kernels[{namesakes[0]!r}]"
            )
        try:
            return self[name]
        except ArgumentError as error:
            text = f"{error}; it has no kernels: nothing is exported with DLB_EXPORT"
            if self.kernels:
                nearest = did_you_mean(name, self._alone())
                text = f"load_library: {self.path} has no kernel and no symbol {name!r}{nearest}"
            raise AttributeError(text) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._alone()})

    def __contains__(self, name: Any) -> bool:
        try:
            return bool(self[name])
        except ArgumentError:
            return False

    @public
    def wrap(
        self,
        name: str,
        schema: Any = None,
        *,
        abi: str = "dltensors",
        **options: Unpack[FurtherOptions],
    ) -> Kernel:
        """Return the function called `name` as a Kernel; the options are those of `wrap`."""
        check_names("Library.wrap", options, ("name", "schema", "abi"))
        return wrap(self[name], schema, abi=abi, **options)

    def __repr__(self) -> str:
        kernels = f": {', '.join(self.kernels)}" if self.kernels else ""
        return f"Library({self.path!r}{kernels})"


def kernels_of(
    given: Kernel | Library | Iterable[Kernel], call: str, check: Callable[[Kernel], None]
) -> list[Kernel]:
    """Return the kernels of an argument that is one, several, or a library of them.

    Of a library they are those that a model can have; one that is given by itself must be such.

    Args:
        given: what a user passed.
        call: the function that it was passed to, for texts.
        check: raises an ArgumentError for what this function cannot have besides.

    Raises:
        ArgumentError: there is anything else, or a kernel that no model can have: it has no
            schema, a list of tensors or an optional result, an argument that is a dtype, or a
            result whose size it says; or a library has no other kernels.
    """
    listed: Iterable[Any] = [given]
    if isinstance(given, Library):
        listed = given.kernels.values()
    elif isinstance(given, Iterable) and not isinstance(given, Kernel):
        listed = given
    found, refused = [], []
    for kernel in listed:
        if not isinstance(kernel, Kernel):
            raise ArgumentError(f"{call}: kernels must be kernels, got {type(kernel).__name__}")
        try:
            _check_node(kernel, call)
            check(kernel.tensors)  # which a model has in place of numbers
        except ArgumentError as error:
            if not isinstance(given, Library):
                raise
            refused.append(error)
        else:
            found.append(kernel.tensors)
    if refused and not found:
        raise refused[0]
    return found


def _check_node(kernel: Kernel, call: str) -> None:
    """Refuse what no node of ONNX Runtime can be."""
    if kernel.schema is None:
        raise ArgumentError(f"{call}: {kernel.name} has no schema, which operators of a model need")
    if kernel.schema.has_lists:
        raise ArgumentError(
            f"{call}: {kernel.name}: it has a list of tensors or an optional result, and "
            "operators of ONNX Runtime here have none; pass a kernel whose arguments and "
            "results are one tensor each"
        )
    if kernel.schema.counts:
        raise ArgumentError(
            f"{call}: {kernel.name}: the kernel says {kernel.schema.counts[0].value}, and ONNX "
            "Runtime asks for the shapes of outputs before it runs; pass kernel.bounded, whose "
            "outputs have the bound"
        )
    for part in kernel.schema.scalars:
        if part.kind == "dtype":
            raise ArgumentError(
                f"{call}: {kernel.name}: argument {part.name!r} is a dtype, and in ONNX no "
                "attribute says the dtype of a result; pass a kernel for each dtype"
            )


@public
def load_library(path: str | os.PathLike[str], *, schemas: Described | None = None) -> Library:
    """Load a shared library: the kernels that it exports, and functions to be wrapped.

    What a library exports with `DLB_EXPORT` of dlbridge_kernel.h is a Kernel of that name, as
    `wrap` makes one, in every framework: `library.rope(x)`, `library.rope.torch`,
    `torch.ops.mylib.rope`. Either all of them are made or, with an error, none.

    Functions that a library has for tvm-ffi (`__tvm_ffi_add_one`), and others that it does not
    describe itself, are described by `schemas`, or by a file of TOML with the same beside it,
    "libmylib.so.toml". A function for tvm-ffi without a schema is a Kernel without one.

    It is never unloaded: compiled graphs may call its kernels until the process ends. Loaded again,
    it is the same object. Where another file has taken its place since, that is loaded beside it,
    and the names mean the new kernels from then on, as with `wrap`.

    Args:
        path: of the library. Text without a slash, "libm.so.6", is a name that the loader searches
            for in the system's folders, never here: write "./libmine.so" for a file of the current
            folder. A `pathlib.Path` is a file in any case. Of a folder with builds for several
            machines, "build/tvm-ffi01-cpu-x86_64-linux" and so on, as Hugging Face's kernels have,
            it is the library in the build for this one.
        schemas: of functions, by their names: {"add_one": "mylib::add_one(x: f32[n]) -> f32[n]"},
            or a dict with that as "schema" and the fields of `DLB_EXPORT`: {"add_one": {"schema":
            …, "vjp": "add_one_vjp"}}. None reads the file beside the library, if there is one.

    Raises:
        ArgumentError: it cannot be loaded, or is a pipe or device; or what it exports is described
            wrongly: the text names the function.
        FrameworkMissingError: it has functions for tvm-ffi, which is not installed.
        KernelError: the loaded file itself was written over, so that its code is not what was
            loaded.

    Example:
        >>> libm = load_library("libm.so.6")
        >>> "cos" in libm, "cosine" in libm
        (True, False)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"load_library: path must be text or a pathlib.Path, got {path!r}")
    if isinstance(path, str) and "/" not in path:
        return registry.load(_load, path, schemas=schemas)
    if "\0" in os.fspath(path):
        raise ArgumentError(
            f"load_library: {path!r} is not a valid path: it contains a NUL character"
        )
    file = Path(os.fspath(path)).resolve()
    if file.is_dir():
        file = find_built(file)
    if file.exists() and not file.is_file():  # the loader would wait for the writer of a pipe
        raise ArgumentError(f"load_library: {file} cannot be loaded: it is not a file")
    return registry.load(_load_file, file, schemas)


# What is loaded, by the loader's handle and what describes it; and for each path the files that
# were loaded from it, as (device and inode, size and time, the path as the loader was given it).
_LIBRARIES: dict[tuple[int, str], Library] = {}
_FILES: dict[Path, list[tuple[tuple[int, int], tuple[int, int], str]]] = {}
_LOADING = registry.lock()


def _load(path: str, spelled: str | None = None, schemas: Described | None = None) -> Library:
    with _LOADING:
        where, described = read_described(path, schemas)
        names = functions_of_tvm(path)
        module = open_tvm(spelled or path) if names else None  # with what the library needs
        library = Library(path, spelled)
        key = (library._library._handle, key_of(described))
        if key not in _LIBRARIES:
            library._make_kernels(where, described, module, names)
            _LIBRARIES[key] = library
        return _LIBRARIES[key]


def _load_file(file: Path, schemas: Described | None) -> Library:
    """Load what is at a path now: the loader itself would give what it has loaded from there."""
    with _LOADING:
        try:
            found = file.stat()
        except not_from_handler(OSError):
            return _load(str(file), None, schemas)  # which says why
        if (why := why_not_loaded(file)) is not None:
            raise ArgumentError(f"load_library: {file} cannot be loaded: {why}")
        which = (found.st_dev, found.st_ino)
        stamp = (found.st_size, found.st_mtime_ns)
        loaded = _FILES.setdefault(file, [])
        for its, its_stamp, spelled in loaded:
            if its == which and its_stamp != stamp:
                raise KernelError(
                    f"load_library: {file} was written over since this process loaded it, which "
                    "changes code that may run; write a new file and rename it, as linkers do, and "
                    "start the process anew"
                )
            if its == which:
                return _load(str(file), spelled, schemas)
        # Another way to write the path, or the loader would not look at the file.
        spelled = os.path.join(file.parent, *["."] * len(loaded), file.name)
        try:
            return _load(str(file), spelled, schemas)
        finally:  # also where a description is refused: the library is loaded
            if _is_loaded(spelled):
                loaded.append((which, stamp, spelled))


def _is_loaded(path: str) -> bool:
    try:
        ctypes.CDLL(path, os.RTLD_NOLOAD)
    except not_from_handler(OSError):
        return False
    return True


# ---- compile_c -----------------------------------------------------------------------------------


class _Language(NamedTuple):
    """What compiles one language.

    Attributes:
        call: the function that users call, for texts.
        name: as compilers call it.
        title: as people do.
        variable: of the environment, with a command.
        compilers: commands to look for.
        flags: options that come first.
        headers: what a source may include.
        linkage: what a declaration begins with.
    """

    call: str
    name: str
    title: str
    variable: str
    compilers: tuple[str, ...]
    flags: tuple[str, ...]
    headers: tuple[str, ...]
    linkage: str


# Mistakes that C compilers only warned of before GCC 14, and that compute garbage.
_MISTAKES = (
    "implicit-function-declaration", "implicit-int", "incompatible-pointer-types", "int-conversion"
)  # fmt: skip
# What computes garbage as well: a status that is not returned, numbers that nobody has set.
_DOUBTS = ("-Wreturn-type", "-Wuninitialized", "-Wformat")
_HEADERS = ("dlpack.h", "dlbridge_kernel.h", "dlbridge_onnxruntime.h")
_C = _Language(
    "compile_c",
    "c",
    "C",
    "CC",
    ("cc", "gcc", "clang"),
    (
        *("-std=gnu11", "-O3", "-fPIC", "-shared", *_DOUBTS),
        *[f"-Werror={mistake}" for mistake in _MISTAKES],
    ),
    _HEADERS,
    "",
)
_CPP = _Language(
    "compile_cpp",
    "c++",
    "C++",
    "CXX",
    ("c++", "g++", "clang++"),
    ("-std=gnu++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", *_DOUBTS),
    (*_HEADERS, "dlbridge_kernel.hpp"),
    'extern "C" ',
)
# What they declare, in the words of a compiler that misses it.
_DECLARED = re.compile(r"\W(dlb_\w+|DLB_\w+|DL(Tensor|DataType|Device)\w*)\W")


@public
def compile_c(
    source: str,
    name: str,
    schema: Any = None,
    abi: str = "dltensors",
    *,
    flags: Iterable[str] = (),
    compiler: str | None = None,
    **options: Unpack[FurtherOptions],
) -> Kernel:
    """Compile C text and return one of its functions as a Kernel.

    `#include "dlpack.h"` and `#include "dlbridge_kernel.h"` work. The text is compiled as GNU C11
    with -O3 and linked with libm. The same text with the same flags is compiled once and read from
    the cache afterwards, so several functions of one text are several calls. A changed file that it
    includes, from the current folder or by `-I`, is noticed; one of the system is not.

    What GCC 14 refuses is refused with any compiler: functions and types that are not declared,
    pointers of another type, integers for pointers. `flags=["-Wno-error=int-conversion"]` and the
    like turn an error into a warning again. Warnings of the compiler are warnings of Python; it is
    asked for those of a missing `return`, of variables that are not set and of formats.

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
    return _compiled(_C, source, name, schema, abi, flags, compiler, options)


@public
def compile_cpp(
    source: str,
    name: str,
    schema: Any = None,
    abi: str = "dltensors",
    *,
    flags: Iterable[str] = (),
    compiler: str | None = None,
    **options: Unpack[FurtherOptions],
) -> Kernel:
    """Compile C++ text and return one of its functions as a Kernel.

    `#include "dlbridge_kernel.hpp"` works as well, which has typed views, dtype dispatch, parallel
    loops and `DLB_KERNEL(name) { … }`, a function whose exceptions are errors of the call. The text
    is compiled as GNU C++17 with -O3 and -DNDEBUG; `flags=["-UNDEBUG"]` compares the indices of
    views with their extents. Else all is as for `compile_c`, and so is the cache.

    Args:
        source: the C++ text.
        name: of the function in it: of DLB_KERNEL, or `extern "C"` and not `static`.
        schema: as for `wrap`.
        abi: as for `compile_c`.
        flags: further options of the compiler and linker, as ("-march=native", "-fopenmp").
        compiler: the command; None is $CXX, else c++, g++ or clang++.
        **options: those of `wrap`.

    Raises:
        ArgumentError: the text cannot be compiled, the compiler says why; or it has no such
            function, or the function is none of this abi.
        KernelError: there is no compiler, or it cannot be run.
    """
    return _compiled(_CPP, source, name, schema, abi, flags, compiler, options)


def _compiled(
    language: _Language,
    source: str,
    name: str,
    schema: Any,
    abi: str,
    flags: Iterable[str],
    compiler: str | None,
    options: FurtherOptions,
) -> Kernel:
    call = language.call
    check_names(call, options, ("source", "name", "schema", "abi", "flags", "compiler"))
    check_text(f"{call}: source", source)
    check_text(f"{call}: name", name)
    check_text(f"{call}: abi", abi)
    if not name.isidentifier():
        raise ArgumentError(
            f"{call}: name must be that of a {language.title} function, got {name!r}"
        )
    flags = words(call, "flags", flags)
    if compiler is not None:
        check_text(f"{call}: compiler", compiler)
    command = _find_compiler(language, compiler)
    library = _load_compiled(language, _build(language, source, flags, command), source)
    if name not in library:
        hint = '; it needs DLB_KERNEL, or extern "C"' if language.linkage else ""
        raise ArgumentError(
            f"{call}: the source has no function {name!r} that others can call{hint}"
        )
    _check_definition(language, source, name, abi)
    if "(" in str(abi):
        _check_signature(language, source, name, abi, flags, command)
    return library.wrap(name, schema, abi=abi, **options)


def _load_compiled(language: _Language, path: Path, source: str) -> Library:
    """Load what was compiled; a function that nothing defines is named with its lines."""
    try:
        return Library(str(path.resolve()))
    except ArgumentError as error:
        found = re.search(r"undefined symbol: (\w+)", str(error))
        if found is None:
            raise
    where = lines_with(source, found[1]) or "the source, through a macro,"
    raise ArgumentError(
        f"{language.call}: {where} uses {found[1]!r}, which nothing defines: neither the source, "
        "nor libm, nor a library in flags="
    )


def include_directory() -> Path:
    """Return the directory of dlpack.h and dlbridge_kernel.h, for `cc -I`."""
    package = Path(__file__).resolve().parent.parent
    for directory in (package / "include", package.parent / "include"):
        if all((directory / header).is_file() for header in _CPP.headers):
            return directory
    raise KernelError(f"dlbridge was installed without its headers {_CPP.headers}")


def _advice(source: str, said: str) -> str:
    """Return what to do where a source uses what it does not include, or ""."""
    if re.fullmatch(r"\s*[\w./\\-]+\.(c|cc|cpp|cxx|cu|h)\s*", source):
        return f", which is a file's name: pass its text, Path({source.strip()!r}).read_text()"
    if "dlbridge_kernel.h" in source or not _DECLARED.search(said):
        return ""
    return ', which lacks #include "dlbridge_kernel.h"'


def _build(
    language: _Language, source: str, flags: tuple[str, ...], compiler: tuple[str, ...]
) -> Path:
    """Return the path of the library, compiled unless it is in the cache; show the warnings."""
    call, key, said = language.call, _key(language, source, flags, compiler), ""

    def make(folder: Path) -> bytes:
        nonlocal said
        made = folder / "library.so"
        done = _compile(language, source, flags, compiler, "-o", str(made), folder=folder)
        said = done.stderr.strip()
        if done.returncode != 0:
            source_is = f"the source{_advice(source, said)}"
            raise ArgumentError(f"{call}: {compiler[0]} cannot compile {source_is}:\n{said}")
        return made.read_bytes()

    path = cache.entry(key, ".so", make, call)
    if said:
        kept: Path | None = cache.entry(key, ".warnings", lambda _: said.encode(), call)
    else:
        kept = cache.find(key, ".warnings", call=call)
    if kept is not None:
        cache.warn_caller(f"{call}: {compiler[0]} warns:\n{kept.read_text()}")
    return path


def _key(
    language: _Language, source: str, flags: tuple[str, ...], compiler: tuple[str, ...]
) -> str:
    """Return the digest of all that decides what the compiler makes of this text."""
    directory = include_directory()
    headers = [(directory / header).read_text() for header in language.headers]
    made_by = (_version(language, compiler), _target(language, flags, compiler))
    own = included(source, flags, language.headers)
    parts = (source, *headers, *own, *language.flags, *flags, *compiler, *made_by)
    return cache.digest("\0".join(f"{len(part)}:{part}" for part in parts).encode())


def _compile(
    language: _Language,
    source: str,
    flags: tuple[str, ...],
    compiler: tuple[str, ...],
    *options: str,
    folder: Path,
) -> subprocess.CompletedProcess[str]:
    includes = f"-I{include_directory()}"
    command = [*compiler, *language.flags, includes, "-x", language.name, "-", *flags, "-lm"]
    suffix = language.name.replace("+", "p")
    return _run(
        language, [*command, *options], f'#line 1 "source.{suffix}"\n{source}\n', TMPDIR=str(folder)
    )


# ---- the function against its abi ----------------------------------------------------------------

_CONVENTIONS = {
    "dltensors": "int {name}(void *context, DLTensor *arguments, int count)",
    "pointers": "int {name}(DLTensor *first, DLTensor *second, …)",
}
_PLAIN_TYPE = re.compile(
    r"\b(const|restrict|__restrict__|__restrict|unsigned|signed|void|bool|_Bool|char|short|int|long"
    r"|float|double|_Complex|complex|_Float\d+x?|__fp16|__bf16|size_t|ssize_t|ptrdiff_t|u?intptr_t"
    r"|u?int\d+_t)\b"
)


def _check_definition(language: _Language, source: str, name: str, abi: object) -> None:
    """Refuse a function of plain pointers and numbers where the abi passes DLTensors.

    It would compile, and be called with other arguments than it takes. Only what the text says
    plainly is refused: types of its own may be anything.
    """
    if abi not in _CONVENTIONS:
        return
    text = COMMENT.sub(" ", source)
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
            f"{language.call}: abi={abi!r} calls {name!r} as `{wanted}`, and the source defines "
            f"`{name}({given})`; pass that as abi, with the names of the schema, as in "
            "abi='void(const float *x, float *out, int64_t n)'"
        )


def _is_plain(parameter: str) -> bool:
    """Return whether a parameter is a number of C, or a pointer to one, with a name."""
    words = re.findall(r"\w+", _PLAIN_TYPE.sub(" ", parameter))
    return _PLAIN_TYPE.search(parameter) is not None and len(words) <= 1


def _check_signature(
    language: _Language,
    source: str,
    name: str,
    abi: str,
    flags: tuple[str, ...],
    compiler: tuple[str, ...],
) -> None:
    """Have the compiler compare the function with the C signature, once for each text of both."""
    declared = re.sub(r"(\(\s*\*\s*\)\s*)?\(", f" {name}(", abi.strip().rstrip(";"), count=1)
    declared = (
        f'#line 1 "abi"\n#include <stdbool.h>\n#include <stdint.h>\n{language.linkage}{declared};'
    )

    def check(folder: Path) -> bytes:
        text = f"{source}\n{declared}"
        done = _compile(language, text, flags, compiler, "-fsyntax-only", folder=folder)
        if done.returncode != 0:
            raise ArgumentError(
                f"{language.call}: the source defines {name!r} otherwise than abi={abi!r} calls "
                f"it:\n{done.stderr.strip()}"
            )
        return b""

    key = _key(language, f"{source}\n{declared}", flags, compiler)
    cache.entry(key, ".checked", check, language.call)


def _run(
    language: _Language, command: list[str], text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
    except not_from_handler(OSError) as error:
        raise KernelError(f"{language.call}: {command[0]} cannot be run: {error}") from error


def _find_compiler(language: _Language, compiler: str | None) -> tuple[str, ...]:
    """Return the command of the compiler, with the options that $CC may have."""
    given = os.environ.get("CXX", "") if language is _CPP else os.environ.get("CC", "")
    command = shlex.split(compiler or given)
    if command:
        return tuple(command)
    found = next((name for name in language.compilers if shutil.which(name)), None)
    if found is None:
        raise KernelError(
            f"{language.call}: there is no {language.title} compiler here: none of "
            f"{', '.join(language.compilers)} is in PATH, and ${language.variable} is not set"
        )
    return (found,)


@functools.cache
def _version(language: _Language, compiler: tuple[str, ...]) -> str:
    return _run(language, [*compiler, "--version"]).stdout


@functools.cache
def _target(language: _Language, flags: tuple[str, ...], compiler: tuple[str, ...]) -> str:
    """Return the macros that a compiler defines: features of the processor, also of `native`."""
    command = [*compiler, *language.flags, "-x", language.name, "-", *flags, "-dM", "-E"]
    return _run(language, command).stdout
