"""Read DLPack capsules, exchange tables and producers without consuming anything."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

from dlbridge._core import ffi
from dlbridge.device import Device, DeviceType
from dlbridge.dtype import CODES, DType
from dlbridge.errors import DLBridgeError, UnsupportedTypeError
from dlbridge.exchange import adapter, protocol
from dlbridge.shape import row_major
from dlbridge.signals import not_from_handler
from dlbridge.tensor.picture import draw, read_layout
from dlbridge.text import escape_controls

_MOST_DIMENSIONS = 254  # more would be a pointer that went wrong; see DLB_MAX_NDIM
_FLAGS = {1: "READ_ONLY", 2: "IS_COPIED", 4: "IS_SUBBYTE_TYPE_PADDED"}
_STRUCTS = {
    "dltensor": "DLManagedTensor *",
    "used_dltensor": "DLManagedTensor *",
    "dltensor_versioned": "DLManagedTensorVersioned *",
    "used_dltensor_versioned": "DLManagedTensorVersioned *",
}
_TABLE = "dlpack_exchange_api"
_FUNCTIONS = (
    "managed_tensor_allocator",
    "managed_tensor_from_py_object_no_sync",
    "managed_tensor_to_py_object_no_sync",
    "dltensor_from_py_object_no_sync",
    "current_work_stream",
)
_KEYWORDS = ("stream", "max_version", "dl_device", "copy")  # in the order of the array API
# Whose data is an address, so that it has an alignment: the host's kinds, CUDA, ROCm, oneAPI.
_ADDRESSED = frozenset((1, 2, 3, 10, 11, 13, 14))
_INT64 = 2**63


@dataclass(frozen=True)
class CapsuleReport:
    """The fields of one DLPack capsule.

    Attributes:
        name: of the capsule; "used_…" once a consumer took it. None is a capsule without a name.
        kind: "legacy" (DLManagedTensor), "versioned" (DLManagedTensorVersioned), "exchange table"
            or "unknown".
        has_destructor: whether the capsule releases the tensor if nobody consumes it.
        version: (major, minor); None in a legacy capsule.
        flags: names of the bits that are set; those without a name as numbers.
        device: (type number, id), as `__dlpack_device__` returns it.
        dtype: (code, bits, lanes).
        shape: extents.
        strides: in elements; None where the pointer is NULL.
        byte_offset: in bytes, from `data` to the first element.
        data: the pointer; an opaque handle on some devices.
        alignment: the largest power of two up to 4096 that divides the address of the first
            element, in bytes; None where there is no address.
        layout: as `dlbridge.tensor.picture.Layout.kind` names it.
        nbytes: of the elements, without gaps, in bytes.
        reach: bytes from the first element to the lowest one, and to the end of the highest one.
        has_deleter: whether a consumer is told how to release the tensor.
        problems: what breaks a rule of the standard, or what a consumer may stumble over.
    """

    name: str | None
    kind: str
    has_destructor: bool
    version: tuple[int, int] | None = None
    flags: tuple[str, ...] = ()
    device: tuple[int, int] | None = None
    dtype: tuple[int, int, int] | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    byte_offset: int | None = None
    data: int | None = None
    alignment: int | None = None
    layout: str | None = None
    nbytes: int | None = None
    reach: tuple[int, int] | None = None
    has_deleter: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableReport:
    """The C exchange table of a type (DLPack 1.2).

    Attributes:
        version: (major, minor) of the table.
        functions: name -> whether it is there.
        older: versions of the tables that `prev_api` leads to.
        problems: as in `CapsuleReport`.
    """

    version: tuple[int, int]
    functions: dict[str, bool]
    older: tuple[tuple[int, int], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """The findings of `inspect`; `print` shows a table, a notebook also a picture.

    Attributes:
        type: the type of the object.
        device: what `__dlpack_device__` returned, or the text of its exception; None where the
            object has no such method.
        keywords: those that `__dlpack__` takes; None where the object has no `__dlpack__`.
        capsule: the object itself if it is a capsule, else what `__dlpack__` gave when it was asked
            for DLPack 1.3, or the text of its exception.
        legacy: what `__dlpack__()` gave, or the text of its exception; None for a capsule.
        table: that of the object's type, or of the capsule; None where there is none.
        problems: those of the object as a whole.
    """

    type: str
    device: tuple[int, int] | str | None = None
    keywords: tuple[str, ...] | None = None
    capsule: CapsuleReport | str | None = None
    legacy: CapsuleReport | str | None = None
    table: TableReport | None = None
    problems: tuple[str, ...] = ()

    @property
    def newest(self) -> CapsuleReport | None:
        """The report of the newest capsule that could be had; None without any."""
        found = (part for part in (self.capsule, self.legacy) if isinstance(part, CapsuleReport))
        return next(found, None)

    def all_problems(self) -> list[str]:
        """Return every problem, with the part that it concerns."""
        found = [f"{self.type}: {each}" for each in self.problems]
        for title, part in self._parts():
            if not isinstance(part, str):
                found += [f"{title}: {each}" for each in part.problems]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dicts, lists, numbers and text."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (part, field, value) as text, in the order in which a person reads them."""
        for part, field, value in self._rows():
            yield part, field, escape_controls(value, lines=True)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        yield "object", "type", self.type
        if self.device is not None:
            yield "object", "__dlpack_device__()", _text_of_device(self.device)
        if self.keywords is not None:
            yield "object", "keywords of __dlpack__", ", ".join(self.keywords) or "none"
        for title, part in self._parts():
            if isinstance(part, str):
                yield title, "refused", part
            elif isinstance(part, TableReport):
                yield from ((title, field, value) for field, value in _table_rows(part))
            else:
                seen = self.capsule if part is self.legacy else None
                yield from ((title, field, value) for field, value in _capsule_rows(part, seen))
        for problem in self.all_problems():
            yield "problem", "", problem

    def _parts(self) -> Iterator[tuple[str, CapsuleReport | TableReport | str]]:
        for title, part in (
            ("capsule", self.capsule),
            ("legacy capsule", self.legacy),
            ("exchange table", self.table),
        ):
            if part is not None:
                yield title, part

    def __str__(self) -> str:
        rows = [*self.rows()]
        left = max(len(part) for part, _, _ in rows)
        middle = max(len(field) for _, field, _ in rows)
        return "\n".join(f"{p:<{left}}  {f:<{middle}}  {v}".rstrip() for p, f, v in rows)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(part)}</th>"
            f"<td style='text-align:left'>{escape(field)}</td>"
            f"<td style='text-align:left'><code>{escape(value)}</code></td></tr>"
            for part, field, value in self.rows()
        )
        return f"<table>{cells}</table>{self.picture()}"

    def picture(self) -> str:
        """Return an SVG element that shows where the elements lie, or "" where that is unknown."""
        part = self.newest
        if part is None or part.shape is None or part.layout is None:
            return ""
        strides = row_major(part.shape) if part.strides is None else part.strides
        return draw(part.shape, strides, f"shape {part.shape}, strides {strides}")


def inspect(x: object, /) -> Inspection:
    """Return what `x` says by DLPack; nothing is consumed, copied or changed.

    A capsule is only read: a consumer may still take it. An object with `__dlpack__` is asked for
    capsules as consumers ask (for DLPack 1.3, and without any keyword), and once more for each
    keyword to see whether it is taken; each of these capsules is read and dropped, so that its
    destructor runs. The values of a tensor are never read.

    A capsule is trusted: where its pointer leads nowhere, reading it ends the process.

    Args:
        x: a capsule, a tensor of any framework, or a type with a C exchange table.

    Raises:
        UnsupportedTypeError: `x` has no DLPack interface.
        ExchangeError: the export of `x` would crash the process.

    Example:
        >>> import numpy, dlbridge
        >>> found = dlbridge.inspect(numpy.zeros((4, 6), "f4")[:, ::2])
        >>> found.capsule.strides, found.capsule.layout, found.all_problems()
        ((6, 2), 'strided', [])
    """
    if protocol.is_capsule(x):
        name = _name(x)
        if name == _TABLE:
            return Inspection("capsule", table=_read_table(x))
        return Inspection("capsule", capsule=_read_capsule(x))
    kind = x if isinstance(x, type) else type(x)
    capsule = protocol.table_of(kind)
    table = None if capsule is None else _read_table(capsule)
    title = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(x, type) and table is not None:
        return Inspection(title, table=table)
    export = getattr(x, "__dlpack__", None)
    if isinstance(x, type) or (export is None and table is None):
        raise UnsupportedTypeError(
            f"inspect: {protocol.describe(x)} has no DLPack interface: it is not a capsule and has "
            f"neither __dlpack__ nor {protocol.TABLE}{protocol.advise(x)}"
        )
    if (found := adapter.adapter_of_type(kind)) is not None:
        found.check_export(x, "inspect")
    if export is None:
        return Inspection(title, _ask_device(x), table=table, problems=_compare(x, None, None))
    newest = _ask(export, max_version=protocol.VERSION)
    device = _ask_device(x)
    # Some warn of legacy capsules, which are asked for once only.
    version = {"max_version": protocol.VERSION} if _is_taken(export, "max_version", {}) else {}
    return Inspection(
        title,
        device,
        tuple(name for name in _KEYWORDS if name in version or _is_taken(export, name, version)),
        newest,
        _ask(export),
        table,
        _compare(x, device, newest),
    )


# ---- asking an object ----------------------------------------------------------------------------


def _ask_device(x: Any) -> tuple[int, int] | str | None:
    method = getattr(x, "__dlpack_device__", None)
    if method is None:
        return None
    try:
        kind, index = method()
        return int(kind), int(index)
    except not_from_handler(Exception) as error:  # what it raises is what is asked for
        return _text(error)


def _ask(export: Callable[..., object], **keywords: Any) -> CapsuleReport | str:
    try:
        capsule = export(**keywords)
    except not_from_handler(Exception) as error:
        return _text(error)
    if not protocol.is_capsule(capsule):
        return f"returned {protocol.describe(capsule)}, which is not a capsule"
    return _read_capsule(capsule)


def _is_taken(export: Callable[..., object], keyword: str, others: dict[str, Any]) -> bool:
    """Return whether `__dlpack__` takes a keyword; None is the default of each in the standard."""
    value = protocol.VERSION if keyword == "max_version" else None
    try:
        export(**{**others, keyword: value})
    except not_from_handler(Exception) as error:  # others refuse for another reason
        return not protocol.unknown_keywords(error, {keyword})
    return True


def _compare(
    x: Any, device: tuple[int, int] | str | None, capsule: CapsuleReport | str | None
) -> tuple[str, ...]:
    """Return the problems of the object as a whole."""
    found = []
    if not hasattr(x, "__dlpack__"):
        found.append("it has no __dlpack__")
    if device is None:
        found.append("it has no __dlpack_device__, which the standard requires")
    elif isinstance(device, str):
        found.append(f"__dlpack_device__ raised {device}")
    elif isinstance(capsule, CapsuleReport) and capsule.device and capsule.device != device:
        said, is_in = _text_of_device(device), _text_of_device(capsule.device)
        found.append(f"__dlpack_device__ says {said}, the capsule {is_in}")
    if isinstance(capsule, CapsuleReport) and capsule.kind == "legacy":
        found.append("it answers max_version=(1, 3) with a legacy capsule")
    return tuple(found)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# ---- reading structs -----------------------------------------------------------------------------


def _name(capsule: object) -> str | None:
    name = _get_name(capsule)
    return None if name is None else name.decode("utf-8", "backslashreplace")


_get_name = ctypes.pythonapi["PyCapsule_GetName"]
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_destructor = ctypes.pythonapi["PyCapsule_GetDestructor"]
_get_destructor.restype, _get_destructor.argtypes = ctypes.c_void_p, [ctypes.py_object]


def _read_capsule(capsule: object) -> CapsuleReport:
    name = _name(capsule)
    has_destructor = bool(_get_destructor(capsule))
    struct = _STRUCTS.get(name or "")
    if name == _TABLE:
        return CapsuleReport(name, "exchange table", has_destructor)
    if struct is None:
        problem = f"a capsule named {name!r} is none of DLPack's"
        return CapsuleReport(name, "unknown", has_destructor, problems=(problem,))
    kind = "legacy" if struct == "DLManagedTensor *" else "versioned"
    if name is not None and name.startswith("used_"):
        # The consumer owns the struct, and may have released it.
        return CapsuleReport(name, kind, has_destructor, problems=("it was consumed",))
    managed = ffi.cast(struct, _get_pointer(capsule, _get_name(capsule)))
    return _read_managed(managed, name, kind, has_destructor)


def _read_managed(managed: Any, name: str | None, kind: str, has_destructor: bool) -> CapsuleReport:
    version, flags = None, 0
    problems = [] if has_destructor else ["no destructor: it leaks if nobody consumes it"]
    has_deleter = managed.deleter != ffi.NULL
    if not has_deleter:
        problems.append("the deleter is NULL: no consumer tells the producer that it is done")
    if kind == "versioned":
        version, flags = (managed.version.major, managed.version.minor), managed.flags
        if version[0] != 1:
            problems.append(f"major version {version[0]}: only the deleter may be used")
            return CapsuleReport(
                name, kind, has_destructor, version, has_deleter=has_deleter, problems=(*problems,)
            )
    if flags & ~sum(_FLAGS):
        problems.append(f"flags {flags:#x} have bits that the standard does not define")
    tensor = managed.dl_tensor
    ndim = tensor.ndim
    device = int(tensor.device.device_type), tensor.device.device_id
    dtype = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    data = int(ffi.cast("uintptr_t", tensor.data))
    shape, strides = _read_extents(tensor, ndim, version, problems)
    _check_fields(device, dtype, problems)
    layout, nbytes, reach = None, None, None
    if shape is not None and min(shape, default=0) >= 0:
        bits = dtype[1] * dtype[2] if not flags & 4 else -(-dtype[1] // 8) * 8 * dtype[2]
        layout, nbytes, reach = _measure(shape, strides, bits, problems)
        if 0 not in shape and not data:
            problems.append("data is NULL although the tensor has elements")
    address = data + tensor.byte_offset
    return CapsuleReport(
        name,
        kind,
        has_destructor,
        version,
        (*_flag_names(flags),),
        device,
        dtype,
        shape,
        strides,
        tensor.byte_offset,
        data,
        min(address & -address, 4096) if data and device[0] in _ADDRESSED else None,
        layout,
        nbytes,
        reach,
        has_deleter,
        (*problems,),
    )


def _read_extents(
    tensor: Any, ndim: int, version: tuple[int, int] | None, problems: list[str]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return shape and strides; None where they cannot be read."""
    if not 0 <= ndim <= _MOST_DIMENSIONS:
        problems.append(f"ndim is {ndim}, not between 0 and {_MOST_DIMENSIONS}")
        return None, None
    if ndim and tensor.shape == ffi.NULL:
        problems.append(f"shape is NULL although ndim is {ndim}")
        return None, None
    shape = tuple(tensor.shape[0:ndim]) if ndim else ()
    if min(shape, default=0) < 0:
        problems.append(f"shape {shape} has a negative extent")
    if tensor.strides != ffi.NULL:
        return shape, tuple(tensor.strides[0:ndim])
    if ndim and version is not None and version >= (1, 2):
        problems.append("strides are NULL, which DLPack 1.2 forbids")
    return shape, None if ndim else ()


def _check_fields(
    device: tuple[int, int], dtype: tuple[int, int, int], problems: list[str]
) -> None:
    if device[0] not in DeviceType.__members__.values():
        problems.append(f"device type {device[0]} is none of the standard's")
    if dtype[0] not in CODES:
        problems.append(f"dtype {dtype}: type code {dtype[0]} is none of the standard's")
        return
    try:
        DType(dtype)
    except DLBridgeError as error:
        problems.append(f"dtype {dtype}: {error}")


def _measure(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, bits: int, problems: list[str]
) -> tuple[str | None, int | None, tuple[int, int] | None]:
    """Return the layout, the bytes of all elements, and the reach in bytes."""
    size = 1
    for extent in shape:
        size *= extent
    if size * bits >= 8 * _INT64:
        problems.append(f"shape {shape} is more than 2**63 bytes")
        return None, None, None
    layout = read_layout(shape, row_major(shape) if strides is None else strides)
    if max(-layout.low, layout.high) * bits >= 8 * _INT64:
        problems.append(f"strides {strides} reach further than 2**63 bytes")
        return None, None, None
    end = (layout.high + 1) * bits if layout.kind != "empty" else 0
    return layout.kind, -(-size * bits // 8), (layout.low * bits // 8, -(-end // 8))


def _flag_names(flags: int) -> Iterator[str]:
    for bit in range(flags.bit_length()):
        if flags >> bit & 1:
            yield _FLAGS.get(1 << bit, f"{1 << bit:#x}")


def _read_table(capsule: object) -> TableReport:
    table = ffi.cast("DLPackExchangeAPI *", _get_pointer(capsule, _TABLE.encode()))
    version = table.header.version.major, table.header.version.minor
    older: list[tuple[int, int]] = []
    header = table.header.prev_api
    while header != ffi.NULL and len(older) < 16:
        older.append((header.version.major, header.version.minor))
        header = header.prev_api
    if version[0] != 1:
        problem = f"major version {version[0]}: the functions are not known"
        return TableReport(version, {}, (*older,), (problem,))
    functions = {name: getattr(table, name) != ffi.NULL for name in _FUNCTIONS}
    required = [name for name in _FUNCTIONS if name != "dltensor_from_py_object_no_sync"]
    problems = [f"{name} is NULL" for name in required if not functions[name]]
    return TableReport(version, functions, (*older,), (*problems,))


# ---- text ----------------------------------------------------------------------------------------


def _text_of_device(device: tuple[int, int] | str) -> str:
    if isinstance(device, str):
        return f"raised {device}"
    try:
        return f"{Device(device)} {device}"
    except DLBridgeError:
        return str(device)


def _text_of_dtype(dtype: tuple[int, int, int]) -> str:
    try:
        return f"{DType(dtype)} {dtype}"
    except DLBridgeError:
        return str(dtype)


_OWN = ("name", "kind", "has_destructor", "version", "flags", "has_deleter", "problems")


def _is_same_tensor(one: CapsuleReport, other: object) -> bool:
    return isinstance(other, CapsuleReport) and one == replace(
        other, **{name: getattr(one, name) for name in _OWN}
    )


def _capsule_rows(report: CapsuleReport, seen: object) -> Iterator[tuple[str, str]]:
    """Yield the fields; of one whose tensor was `seen` before, only those of the capsule."""
    yield "name", str(report.name)
    yield "kind", report.kind
    yield "destructor", "present" if report.has_destructor else "none"
    if report.version is not None:
        yield "version", "{}.{}".format(*report.version)
        yield "flags", ", ".join(report.flags) or "none"
    if report.has_deleter is not None:
        yield "deleter", "present" if report.has_deleter else "NULL"
    if report.device is None or report.dtype is None:
        return
    if _is_same_tensor(report, seen):
        yield "tensor", "as above"
        return
    yield "device", _text_of_device(report.device)
    yield "dtype", _text_of_dtype(report.dtype)
    yield "shape", str(report.shape)
    yield "strides", "NULL" if report.strides is None else f"{report.strides} elements"
    if report.layout is not None:
        yield "layout", report.layout
    if report.reach is not None:
        yield "bytes", f"{report.nbytes:,} in elements, from {report.reach[0]} to {report.reach[1]}"
    yield "data", f"{report.data:#x}, byte_offset {report.byte_offset}"
    if report.alignment is not None:
        yield "alignment", f"{report.alignment} bytes"


def _table_rows(report: TableReport) -> Iterator[tuple[str, str]]:
    yield "version", "{}.{}".format(*report.version)
    if report.older:
        yield "older tables", ", ".join("{}.{}".format(*each) for each in report.older)
    for name, is_there in report.functions.items():
        yield name, "present" if is_there else "NULL"
