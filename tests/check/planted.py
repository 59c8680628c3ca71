"""A producer that shares its memory, with views and an exchange table, and faults planted in it.

The one in `faultless.py` copies, which says nothing of the rules for shared memory. Its deleter is
a Python function, so it is no example of what must work after Python: a rule finds just that.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any

import numpy as np

from dlbridge.check import faults

_libc = ctypes.CDLL(None)
_HARMLESS = ctypes.cast(_libc.labs, ctypes.c_void_p).value  # a deleter that does nothing
_ABORT = ctypes.cast(_libc.abort, ctypes.c_void_p).value
_ODD_NAME = b"tensor"
_kept: list[Any] = []


class Shared:
    """A tensor over a NumPy array, with at most one fault, which is named after what it does."""

    def __init__(self, array: np.ndarray[Any, Any], fault: str = "", base: Any = None) -> None:
        self.array, self.fault = array, fault
        self.base = array if base is None else base
        self.shape, self.dtype = array.shape, array.dtype
        self.exports = 0
        self.is_busy = False
        self.only: dict[tuple[bool, int], faults.Loan] = {}
        if fault == "a table on the object":
            vars(self)["__dlpack_c_exchange_api__"] = None

    def __del__(self) -> None:
        is_end = self.fault == "ends with the tensor" and self.array is self.base
        if is_end and self.array.flags.writeable:
            self.array[...] = 77

    def __getitem__(self, key: Any) -> Shared:
        return type(self)(self.array[key], self.fault, self.base)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value.array

    @property
    def T(self) -> Shared:
        return type(self)(self.array.T, self.fault, self.base)

    def __dlpack_device__(self) -> tuple[int, int]:
        moved = self.fault == "another device after an export" and self.exports > 0
        return (3 if moved else 1), 0

    def __dlpack__(self, *positional: Any, **keywords: Any) -> Any:
        self.check_call(positional, keywords)
        version, copy = keywords.get("max_version"), keywords.get("copy")
        device = keywords.get("dl_device")
        is_versioned = version is not None and version[0] >= 1
        if self.fault == "versioned by default" and version is None:
            is_versioned = True
        if self.fault == "versioned for old consumers" and version == (0, 8):
            is_versioned = True
        if device not in (None, (1, 0), (3, 0)):
            if self.fault == "keeps what it refuses":
                _kept.append(self)
            if not (self.fault == "claims another device" and device[0] == 8):
                raise BufferError("on the CPU only")
        if self.fault != "takes any byte order" and not self.dtype.isnative:
            raise BufferError("DLPack has no byte order")
        if self.dtype.name not in faults.DTYPES and self.fault != "exports text":
            raise BufferError("DLPack has no such dtype")
        what = self.describe(copy, is_versioned)
        is_read_only = what.flags & faults.READ_ONLY and self.fault != "read-only without a flag"
        if is_read_only and not is_versioned:
            raise BufferError("a legacy capsule cannot say that it is read-only")
        if device is not None and device[0] == 8:
            what = what.but(device=device)
        if self.fault == "a version that was not asked for" and version == (1, 0):
            what = what.but(version=(2, 0))
        return self.export(what, is_versioned)

    def check_call(self, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        known = {"stream", "max_version", "dl_device", "copy"}
        if positional and self.fault != "takes positional arguments":
            raise TypeError("keywords only")
        if set(keywords) - known and self.fault != "takes any keyword":
            raise TypeError("unknown keyword")
        if self.fault == "needs a keyword" and not keywords:
            raise TypeError("a keyword is missing")
        if any(self.fault == f"knows no {name}" for name in keywords):
            raise TypeError("unknown keyword")
        if keywords.get("stream") is not None:
            raise BufferError("the CPU has no streams")
        if self.fault == "afraid of the future" and (keywords.get("max_version") or (0,))[0] > 1:
            raise BufferError("unknown version")
        self.exports += 1
        if self.fault == "changes its values" and self.exports == 2:
            self.array += 1
        if self.fault == "not for threads" and threading.current_thread().name != "MainThread":
            if self.is_busy:
                raise RuntimeError("in use")
            self.is_busy = True
            time.sleep(0.001)
            self.is_busy = False

    def describe(self, copy: bool | None, versioned: bool) -> faults.Description:
        array, fault = self.array, self.fault
        if fault == "exports text" and array.dtype.kind == "U":
            array = array.view("uint8")
        ignores = {"legacy copies are shared": False, "versioned copies are shared": True}
        is_copy = bool(copy) and ignores.get(fault) is not versioned
        if is_copy or (fault == "copies where it may not" and copy is False):
            array = array.copy()
        if is_copy and fault == "copies nothing":
            array = np.zeros_like(array)
        if fault == "any address" and not is_copy:
            array = self.misaligned
        what = faults.describe(array.view(array.dtype.newbyteorder("=")), keeps=(self, array))
        what = what.but(flags=what.flags | (faults.IS_COPIED if is_copy else 0))
        if fault in ("ends with the tensor", "no deleter", "one struct for all"):
            what = what.but(keeps=array)
        return self.distort(what)

    @functools.cached_property
    def misaligned(self) -> np.ndarray[Any, Any]:
        memory = np.zeros(self.array.nbytes + 64, "uint8")
        first = -memory.ctypes.data % 64 + 1
        out = memory[first : first + self.array.nbytes].view(self.dtype).reshape(self.shape)
        out[...] = self.array
        return out

    def distort(self, what: faults.Description) -> faults.Description:
        fault, shape = self.fault, what.shape
        is_new, is_view = shape == (2, 3), self.array is not self.base
        start = self.base.ctypes.data
        changes: dict[str, Any] = {}
        if fault == "another shape" and is_new:
            changes = {"shape": (3, 2), "strides": (2, 1)}
        elif fault == "another order" and is_new:
            changes = {"strides": (1, 2)}
        elif fault == "no strides":
            changes = {"strides": None} if what.strides == faults.row_major(shape or ()) else {}
        elif fault == "another dtype" and what.dtype == (0, 32, 1):
            changes = {"dtype": (1, 32, 1)}
        elif fault == "lanes" and is_new:
            changes = {"dtype": (2, 16, 2)}
        elif fault == "byte_offset" and is_view:
            changes = {"data": start, "byte_offset": (what.data or 0) - start}
        elif fault == "no data" and is_new:
            changes = {"data": None}
        elif fault == "at least one dimension" and shape == ():
            changes = {"shape": (1,), "strides": (1,)}
        elif fault == "flat where empty" and shape is not None and 0 in shape:
            changes = {"shape": (0,), "strides": (1,)}
        elif (fault, shape) in (
            ("transposed without strides", (3, 2)),
            ("steps without strides", (2, 2)),
        ):
            changes = {"strides": (2, 1)}
        elif fault == "reversed without strides" and what.strides == (-1,):
            changes = {"strides": (1,), "data": start}
        elif fault == "slices of the base" and shape == (3,) and is_view:
            changes = {"data": start}
        elif fault == "no mark":
            changes = {"flags": what.flags & ~faults.READ_ONLY}
        elif fault == "marked as a copy":
            changes = {"flags": what.flags | faults.IS_COPIED}
        elif fault == "no deleter":
            changes = {"has_deleter": False}
        elif fault == "deletes on one thread":
            changes = {"on_delete": _delete_on_the_main_thread}
        return what.but(**changes)

    def export(self, what: faults.Description, versioned: bool) -> Any:
        fault = self.fault
        if fault == "one struct for all":
            loan = self.only.get((versioned, what.flags)) or faults.lend(what, versioned)
            self.only[versioned, what.flags] = loan
        else:
            loan = faults.lend(what, versioned)
        if fault in ("one struct for all", "releases nothing"):
            loan.struct.deleter = _HARMLESS
        if fault in ("releases nothing", "no deleter", "released with its capsule"):
            _kept.append(loan)
        if fault == "leaks":
            _kept.append(bytes(100))
        destructor = ctypes.cast(_DESTRUCTORS.get(fault, faults.destroy_capsule), ctypes.c_void_p)
        name = faults.VERSIONED if versioned else faults.LEGACY
        if fault == "another name":
            name = _ODD_NAME
        address = {"no destructor": None, "aborts": _ABORT}.get(fault, destructor.value)
        return faults.make_capsule(loan.address, name, address)


def _delete_on_the_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        ctypes.string_at(0)


def _used(capsule: int) -> int | None:
    """Return the address of a versioned managed tensor that was consumed."""
    if not faults._dying_is(capsule, faults.USED_VERSIONED):
        return None
    return int(faults._dying_pointer(capsule, faults.USED_VERSIONED))


def _release_always(capsule: int) -> None:
    address = _used(capsule)
    if address is None:
        faults._destroy(capsule)
    else:
        faults.call_deleter(address, faults.Versioned)


def _spoil(capsule: int) -> None:
    address = _used(capsule)
    if address is None:
        faults._destroy(capsule)
        return
    view = faults.Versioned.from_address(address).dl
    for i in range(view.ndim):
        view.shape[i] = 7


_DESTRUCTORS = {
    "keeps what nobody takes": faults.Deleter(lambda capsule: None),
    "released with its capsule": faults.Deleter(_release_always),
    "a struct in its capsule": faults.Deleter(_spoil),
}


# ---- exchange tables -----------------------------------------------------------------------------


class OwnTable(faults.Table):
    """A table for a type of tensors, with at most one fault."""

    type: Any

    def __init__(self, fault: str, **keywords: Any) -> None:
        self.fault = fault
        super().__init__(**keywords)

    def _from_py(self, x: Any, out: Any) -> int:
        what = faults.describe(x.array, keeps=x)
        if self.fault == "exports another shape by the table":
            what = what.but(shape=(3, 2), strides=(2, 1))
        out[0] = faults.lend(what, versioned=True).address
        return 0

    def _to_py(self, managed: int, out: Any) -> int:
        if self.fault == "makes other objects":
            return super()._to_py(managed, out)
        found = faults.Consumer(faults.make_capsule(managed, faults.VERSIONED))
        made = self.type(found.values())
        found.release()
        _kept.append(made)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        out[0] = id(made)
        return 0

    def _borrow(self, x: Any, out: Any) -> int:
        what = faults.describe(x.array)
        if self.fault == "lends other memory":
            what = what.but(data=(what.data or 0) + 4)
        struct, *arrays = faults.make_struct(what, versioned=True)
        _kept.append(arrays)
        out[0] = struct.dl
        return 0

    def _allocate(self, prototype: Any, out: Any, context: int, set_error: Any) -> int:
        if self.fault == "allocates another shape":
            out[0] = faults.lend(faults.describe(np.zeros(2, "f4")), versioned=True).address
            return 0
        if self.fault == "fails without a word" and prototype[0].code == 77:
            return -1
        return super()._allocate(prototype, out, context, set_error)

    def _stream(self, device_type: int, device_id: int, out: Any) -> int:
        if self.fault == "leaves the stream as it was":
            return 0
        return super()._stream(device_type, device_id, out)


def with_table(fault: str) -> type[Shared]:
    """Return a type of tensors with that table."""
    keywords: dict[str, Any] = {}
    if fault == "a table of version 2":
        keywords["version"] = (2, 0)
    if fault == "half a table":
        keywords["from_py"] = 0
    table = OwnTable(fault, **keywords)
    capsule = 42 if fault == "a table that is none" else table.capsule
    table.type = type("Tabled", (Shared,), {"__dlpack_c_exchange_api__": capsule})
    return table.type


TABLES: dict[str, set[str]] = {
    "a faultless table": set(),
    "a table of version 2": {"table_version"},
    "a table that is none": {"table_is_a_capsule"},
    "allocates another shape": {"table_allocates"},
    "exports another shape by the table": {"table_exports_the_same"},
    "fails without a word": {"table_reports_by_set_error"},
    "half a table": {"table_is_complete"},
    "leaves the stream as it was": {"table_writes_the_stream"},
    "lends other memory": {"table_borrows_the_same"},
    "makes other objects": {"table_returns_tensors"},
}

SHARED: dict[str, set[str]] = {
    "": set(),
    "a struct in its capsule": {"struct_survives_the_capsule"},
    "a table on the object": {"table_on_the_type"},
    "a version that was not asked for": {"version_not_above_request"},
    "afraid of the future": {"version_of_the_future"},
    "another device after an export": {"device_stays"},
    "another dtype": {"dtype_agrees"},
    "another name": {"capsule_name", "capsule_unused_is_released"},
    "another order": {"values_agree"},
    "another shape": {"shape_agrees"},
    "any address": {"elements_are_aligned"},
    "at least one dimension": {"layout_no_dimension"},
    "byte_offset": {"byte_offset_is_zero"},
    "changes its values": {"call_is_pure"},
    "claims another device": {"device_is_not_only_claimed"},
    "copies nothing": {"copy_keeps_values"},
    "copies where it may not": {"copy_false"},
    "ends with the tensor": {"export_keeps_the_data"},
    "exports text": {"text_refused"},
    "flat where empty": {"layout_no_elements"},
    "keeps what it refuses": {"refusals_leak_nothing"},
    "keeps what nobody takes": {"capsule_unused_is_released"},
    "knows no copy": {"keyword_copy"},
    "knows no dl_device": {"keyword_dl_device"},
    "knows no max_version": {"keyword_max_version"},
    "knows no stream": {"keyword_stream"},
    "lanes": {"lanes_are_one"},
    "leaks": {"exports_leak_nothing"},
    "legacy copies are shared": {"copy_true"},
    "marked as a copy": {"copied_mark_is_true"},
    "needs a keyword": {"call_without_keywords", "byte_order_refused"},
    "no data": {"data_present"},
    "no deleter": {"deleter_present"},
    "no destructor": {"capsule_destructor"},
    "no mark": {"flag_read_only"},
    "no strides": {"strides_present"},
    "not for threads": {"exports_on_many_threads"},
    "one struct for all": {"capsules_are_new"},
    "read-only without a flag": {"read_only_never_legacy"},
    "released with its capsule": {
        "capsule_used_is_not_released",
        "export_keeps_the_data",
        "exports_leak_nothing",
        "struct_survives_the_capsule",
    },
    "releases nothing": {
        "capsule_unused_is_released",
        "deleter_releases",
        "exports_leak_nothing",
    },
    "reversed without strides": {"layout_reversed"},
    "slices of the base": {"layout_slice"},
    "steps without strides": {"layout_steps"},
    "takes any byte order": {"byte_order_refused"},
    "takes any keyword": {"keyword_unknown"},
    "takes positional arguments": {"keywords_only"},
    "transposed without strides": {"layout_transposed"},
    "versioned by default": {"legacy_by_default"},
    "versioned copies are shared": {"copy_true_versioned"},
    "versioned for old consumers": {"legacy_for_old_versions"},
}


def share(array: np.ndarray[Any, Any]) -> Shared:
    """Fail after Python: deleters are functions in Python."""
    return Shared(array)


def delete_on_one_thread(array: np.ndarray[Any, Any]) -> Shared:
    """Crash where a deleter runs on another thread."""
    return Shared(array, "deletes on one thread")


def abort(array: np.ndarray[Any, Any]) -> Shared:
    """End the process where a capsule is dropped."""
    return Shared(array, "aborts")


ENDING = {
    "share": "deleter_after_python",
    "delete_on_one_thread": "deleter_on_any_thread",
    "abort": "capsule_alive_at_exit",
}
