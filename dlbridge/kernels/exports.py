"""The kernels that a library describes itself: read from its table, checked, made and named.

`DLB_EXPORT` of `include/dlbridge_kernel.h` leaves the table. What it looks like in memory stands
there and, for ctypes, in `_Table` and `_Description`: fields are only ever appended to them, so a
table that was compiled with an older header has less of them, and their values are 0.

All kernels of a library are made before the first of them gets its name, so that a mistake in one
leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple, Protocol

from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.kernels.kernel import Kernel, publish
from dlbridge.kernels.kinds import locate
from dlbridge.kernels.schema import Schema
from dlbridge.kernels.wrap import draft
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

TABLE = "dlb_kernels"  # its symbol
PREFIX = "dlb_export_"  # of the symbol of each entry

_MAGIC = int.from_bytes(b"dlbridge", "little")
_VERSION = 1
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_LARGEST = 4096  # bytes: far more than a description will ever need


class _Table(ctypes.Structure):
    """`dlb_library` of the header."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
    )


class _Description(ctypes.Structure):
    """`dlb_export` of the header."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("symbol", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("is_dltensors", ctypes.c_int64),
        ("schema", ctypes.c_void_p),
        ("abi", ctypes.c_void_p),
        ("vjp", ctypes.c_void_p),
        ("jvp", ctypes.c_void_p),
        ("batch", ctypes.c_void_p),
        ("layout", ctypes.c_void_p),
        ("overlap", ctypes.c_void_p),
        ("gil", ctypes.c_void_p),
        ("cost", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("platform", ctypes.c_void_p),
        ("doc", ctypes.c_void_p),
        ("align", ctypes.c_int64),
        ("autocast", ctypes.c_void_p),
        ("sharding", ctypes.c_void_p),
        ("version", ctypes.c_int64),
    )


_KNOWN = ctypes.sizeof(_Description)
_REQUIRED = _Description.abi.offset  # what every description has
DERIVATIVES = ("vjp", "jvp")
TEXTS = ("batch", "layout", "overlap", "gil", "cost", "stream", "autocast", "sharding")
INTEGERS = ("align", "version")
OPTIONS = (*TEXTS, *INTEGERS)


# A C function at an address, without a prototype: `wrap` is told its convention.
_Function: Any = ctypes.CDLL(None)._FuncPtr


class Export(NamedTuple):
    """One description: a function of the library and what its author says of it.

    Attributes:
        symbol: the function's name.
        address: of the function.
        schema: of its operator.
        abi: how it is called.
        platform: that it is for; "" is the CPU or, of functions that look themselves, any.
        doc: what the operator does, or "".
        options: the other fields that are given, by name.
        function: at the address, where it is an object already.
    """

    symbol: str
    address: int
    schema: Schema
    abi: str
    platform: str
    doc: str
    options: dict[str, Any]
    function: Any = None

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms that it serves: a function of tvm-ffi is given devices, and checks them."""
        if self.platform:
            return (self.platform,)
        return ("cpu", "cuda") if self.abi == "tvm_ffi" else ("cpu",)


class Memory(Protocol):
    """Where a table is: the memory of this process, or `elf.Image`, that of a file."""

    def copy(self, address: int, size: int) -> bytes:
        """Return a stretch of it."""

    def text(self, address: int) -> bytes:
        """Return the text that begins somewhere, up to its 0."""


class _Here:
    """The memory of this process."""

    def copy(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def text(self, address: int) -> bytes:
        return ctypes.string_at(address)


def read_exports(library: str, address: int, memory: Memory | None = None) -> list[Export]:
    """Return what the table at `address` describes.

    Args:
        library: its path, for messages.
        address: of the `dlb_kernels` of this library.
        memory: that it is in; None is this process.

    Raises:
        ArgumentError: the table is none, needs a newer dlbridge, or describes a function wrongly;
            the text names library, function and, in a schema, the place.
    """
    memory = memory or _Here()
    table = _Table.from_buffer_copy(memory.copy(address, ctypes.sizeof(_Table)))
    if table.magic != _MAGIC:
        raise ArgumentError(
            f"load_library: {library}: its symbol {TABLE!r} is not a table of DLB_EXPORT: the "
            f"magic number is {table.magic:#x}, not {_MAGIC:#x}; rename what the library calls so"
        )
    if table.version != _VERSION or table.size < ctypes.sizeof(_Table):
        raise ArgumentError(
            f"load_library: {library}: its table has version {table.version} ({table.size} bytes), "
            f"and this dlbridge reads version {_VERSION}; install the dlbridge whose "
            "dlbridge_kernel.h it was compiled with, or a newer one"
        )
    begin, end = table.begin or 0, table.end or 0
    if end < begin or begin % _POINTER or (end - begin) % _POINTER:
        raise ArgumentError(
            f"load_library: {library}: its table is not an array of pointers: it goes from "
            f"{begin:#x} to {end:#x}"
        )
    entries = memory.copy(begin, end - begin) if begin else b""
    return [
        _read(
            memory, library, place, int.from_bytes(entries[start : start + _POINTER], sys.byteorder)
        )
        for place, start in enumerate(range(0, len(entries), _POINTER))
    ]


class _LinkMap(ctypes.Structure):
    """The beginning of `struct link_map` of <link.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("path", ctypes.c_char_p))


_LINK_MAP = 2  # RTLD_DI_LINKMAP


def is_of(address: int, handle: int) -> bool:
    """Return whether an address is in a loaded library itself, not in one that it needs."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    found = ctypes.POINTER(_LinkMap)()
    if dlinfo(handle, _LINK_MAP, ctypes.byref(found)) != 0:
        return False
    return bool(locate(address) == found.contents.path)


def _read(memory: Memory, library: str, place: int, address: int) -> Export:
    described = _copy(memory, library, place, address)
    symbol = _text(memory, library, place, described, "symbol")
    if not symbol:
        raise ArgumentError(f"load_library: {library}: entry {place} of its table has no symbol")
    if not described.function:
        raise ArgumentError(
            f"load_library: {library}: {symbol}: the function is NULL: nothing that the library "
            "was linked with defines it"
        )
    texts = {
        field: _text(memory, library, symbol, described, field)
        for field in ("schema", "abi", "platform", "doc", *DERIVATIVES, *TEXTS)
    }
    schema, abi = texts.pop("schema"), texts.pop("abi")
    platform, doc = texts.pop("platform"), texts.pop("doc")
    options: dict[str, Any] = {field: text for field, text in texts.items() if text is not None}
    numbers = {field: getattr(described, field) for field in INTEGERS}
    options |= {field: number for field, number in numbers.items() if number}
    if not schema:
        raise ArgumentError(f"load_library: {library}: {symbol}: it has no schema")
    try:
        parsed = Schema.parse(schema)
    except DLBridgeError as error:
        raise refusal(library, symbol, error) from None
    settled = _settle(library, symbol, abi, bool(described.is_dltensors))
    return Export(
        symbol, described.function, parsed, settled, platform or "cpu", doc or "", options
    )


def _copy(memory: Memory, library: str, place: int, address: int) -> _Description:
    """Return a description as this dlbridge knows it; refuse one that says more."""
    size = int.from_bytes(memory.copy(address, _POINTER), sys.byteorder) if address else 0
    if not _REQUIRED <= size <= _LARGEST:
        raise ArgumentError(
            f"load_library: {library}: entry {place} of its table is not a description: it has "
            f"{size} bytes"
        )
    contents = memory.copy(address, size)
    described = _Description.from_buffer_copy(contents[:_KNOWN].ljust(_KNOWN, b"\0"))
    if any(contents[_KNOWN:]):
        symbol = _text(memory, library, place, described, "symbol")
        raise ArgumentError(
            f"load_library: {library}: {symbol}: it uses a field of DLB_EXPORT that this dlbridge "
            "does not know; install a newer one"
        )
    return described


def _text(memory: Memory, library: str, where: object, described: _Description, field: str) -> Any:
    address = getattr(described, field)
    if address is None:
        return None
    contents = memory.text(address)
    try:
        return contents.decode()
    except not_from_handler(UnicodeDecodeError):
        raise ArgumentError(
            f"load_library: {library}: {where}: .{field} must be UTF-8, got {contents!r}"
        ) from None


def _settle(library: str, symbol: str, abi: str | None, is_dltensors: bool) -> str:
    """Return the convention; refuse one that the function's type contradicts."""
    if is_dltensors == (abi in (None, "dltensors")):
        return abi or "dltensors"
    if is_dltensors:
        raise ArgumentError(
            f"load_library: {library}: {symbol}: .abi is {abi!r}, but the function is "
            "int(void *, DLTensor *, int), which is 'dltensors'"
        )
    raise ArgumentError(
        f"load_library: {library}: {symbol}: the function is not int(void *, DLTensor *, int), "
        "which 'dltensors' is; give .abi = \"pointers\", or its C signature with the names of the "
        'schema, as in .abi = "void(const float *x, float *out, int64_t n)"'
    )


def refusal(library: str, symbol: str, error: DLBridgeError) -> ArgumentError:
    """Return the refusal of a field by those who know what it means, in the words of the table."""
    said = str(error).removeprefix("wrap: ").removeprefix("Schema: ")
    return ArgumentError(f"load_library: {library}: {symbol}: {said}")


# ---- kernels -------------------------------------------------------------------------------------


def make_kernels(library: str, exports: list[Export]) -> dict[str, Kernel]:
    """Return the kernels of a library by their names, "namespace::name", known by them.

    Args:
        library: its path, for messages.
        exports: all that it exports.

    Raises:
        ArgumentError: a description does not make a kernel, alone or with the others; no kernel
            has got its name.
    """
    makers = _Operators(library, exports)
    kernels = {name: makers.make(name) for name in makers.groups}
    for kernel in kernels.values():
        publish(kernel)
    return kernels


class _Operators:
    """The operators of one library: exports that name one operator are its platforms."""

    def __init__(self, library: str, exports: list[Export]) -> None:
        self.library = library
        self.groups: dict[str, list[Export]] = {}
        self.by_symbol: dict[str, str] = {}  # -> name of the operator
        self.made: dict[str, Kernel] = {}
        self.under_way: list[str] = []
        for each in exports:
            name = each.schema.qualified
            if each.symbol in self.by_symbol:
                raise self._refuse(each, "two entries have this symbol")
            self.by_symbol[each.symbol] = name
            for other in self.groups.setdefault(name, []):
                self._compare(each, other)
            self.groups[name].append(each)

    def _compare(self, export: Export, other: Export) -> None:
        """Refuse a second function of an operator that is no other platform of the same."""
        both = [each for each in export.platforms if each in other.platforms]
        if both:
            raise self._refuse(
                export,
                f"{export.schema.qualified} has a function for {both[0]} already, "
                f"{other.symbol}; several of one operator need .platform",
            )
        if str(export.schema) != str(other.schema):
            raise self._refuse(
                export,
                f"its schema is\n    {export.schema}\nand that of {other.symbol}, the same "
                f"operator for {', '.join(other.platforms)},\n    {other.schema}",
            )

    def make(self, name: str) -> Kernel:
        """Return the kernel of an operator, made after its derivatives."""
        if name in self.made:
            return self.made[name]
        group = self.groups[name]
        if name in self.under_way:
            way = " -> ".join([*self.under_way[self.under_way.index(name) :], name])
            raise self._refuse(group[0], f"it would be its own derivative: {way}")
        self.under_way.append(name)
        options = {
            field: value
            for field in (*DERIVATIVES, *OPTIONS)
            if (value := self._agreed(group, field)) is not None
        }
        doc = next((each.doc for each in group if each.doc), "")
        functions, abis = {}, {}
        for each in group:
            function = each.function
            if function is None:
                function = _Function(each.address)
                function.__name__ = each.symbol
            for platform in each.platforms:
                functions[platform], abis[platform] = function, each.abi
        try:
            self.made[name] = draft(group[0].schema, abis, functions, doc, **options)
        except DLBridgeError as error:
            symbols = ", ".join(each.symbol for each in group)
            raise refusal(self.library, symbols, error) from error
        self.under_way.pop()
        return self.made[name]

    def _agreed(self, group: list[Export], field: str) -> Any:
        """Return what those functions of an operator say that say something."""
        found: list[tuple[Export, Any]] = []
        for each in group:
            if field in each.options:
                value = each.options[field]
                found.append((each, self._resolve(each, field) if field in DERIVATIVES else value))
        for each, value in found[1:]:
            if value != found[0][1]:
                raise self._refuse(
                    each,
                    f".{field} is {each.options[field]!r}, and of {found[0][0].symbol}, the same "
                    f"operator, {found[0][0].options[field]!r}",
                )
        return found[0][1] if found else None

    def _resolve(self, export: Export, field: str) -> Kernel:
        symbol = export.options[field]
        nearest = did_you_mean(symbol, self.by_symbol)
        if symbol not in self.by_symbol:
            raise self._refuse(
                export,
                f".{field} is {symbol!r}, which the library does not export; it must be "
                f"another function that is exported with a schema{nearest}",
            )
        return self.make(self.by_symbol[symbol])

    def _refuse(self, export: Export, why: str) -> ArgumentError:
        return ArgumentError(f"load_library: {self.library}: {export.symbol}: {why}")
