"""Producers as the author of an array class writes them, each with one mistake.

Those in `faultless.py` and `planted.py` are made of `dlbridge.faults`; these know nothing of it.
Their structs and deleters are ctypes, so each of them breaks `deleter_after_python` as well.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class Lending:
    """Lends the memory of a NumPy array by NumPy's own capsules; without a mistake."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._hold(np.array(array))

    def _hold(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def _view(self, array: np.ndarray[Any, Any]) -> Any:
        made = object.__new__(type(self))
        made._hold(array)
        return made

    def __getitem__(self, key: Any) -> Any:
        return self._view(self.array[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value.array

    @property
    def T(self) -> Any:
        return self._view(self.array.T)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class WrongDevice(Lending):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class IgnoresTheVersion(Lending):
    def __dlpack__(self, *, max_version: Any = None, **keywords: Any) -> Any:
        return super().__dlpack__(max_version=(1, 0), **keywords)


class IgnoresCopy(Lending):
    def __dlpack__(self, *, copy: Any = None, **keywords: Any) -> Any:
        return super().__dlpack__(**keywords)


class RefusesWithTypeErrors(Lending):
    def __dlpack__(self, **keywords: Any) -> Any:
        try:
            return super().__dlpack__(**keywords)
        except BufferError as error:
            raise TypeError(str(error)) from None


class KeepsItsCapsules(Lending):
    def __dlpack__(self, **keywords: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        key = repr(keywords)
        if key not in kept:
            kept[key] = super().__dlpack__(**keywords)
        return kept[key]


# ---- structs of their own ------------------------------------------------------------------------

_INT64S = ctypes.POINTER(ctypes.c_int64)


class _View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", _INT64S),
        ("strides", _INT64S),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Legacy(ctypes.Structure):
    _fields_ = [("view", _View), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("view", _View),
    ]


_KINDS = {b"dltensor": _Legacy, b"dltensor_versioned": _Versioned}
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_lent: dict[int, Any] = {}


def _delete(address: int) -> None:
    _lent.pop(address, None)


def _destroy(capsule: int, prefix: bytes = b"") -> None:
    for name, kind in _KINDS.items():
        if _named(capsule, prefix + name):
            struct = kind.from_address(_pointer(capsule, prefix + name))
            _Deleter(struct.deleter)(ctypes.addressof(struct))


def _destroy_always(capsule: int) -> None:
    _destroy(capsule)
    _destroy(capsule, b"used_")


_DELETE, _KEEP = _Deleter(_delete), _Deleter(lambda address: None)
_DESTROY, _DESTROY_ALWAYS = _Destructor(_destroy), _Destructor(_destroy_always)


class Exporting(Lending):
    """Fills structs of its own; but for its deleter in Python, without a mistake."""

    deleter: Any = _DELETE
    destructor: Any = _DESTROY

    def strides_of(self, array: np.ndarray[Any, Any]) -> list[int]:
        return [step // array.itemsize for step in array.strides]

    def address_of(self, array: np.ndarray[Any, Any]) -> int:
        return array.ctypes.data

    def kept(self, array: np.ndarray[Any, Any]) -> object:
        return self, array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        array = self.array.copy() if copy else self.array
        if stream is not None or dl_device not in (None, (1, 0)):
            raise BufferError("on the CPU only")
        if array.dtype.kind not in _CODES or not array.dtype.isnative:
            raise BufferError(f"DLPack has no {array.dtype}")
        is_versioned = max_version is not None and max_version[0] >= 1
        if not is_versioned and not array.flags.writeable:
            raise BufferError("a legacy capsule cannot say that it is read-only")
        name = b"dltensor_versioned" if is_versioned else b"dltensor"
        struct = _KINDS[name]()
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*self.strides_of(array))
        view = struct.view
        view.data, view.device_type, view.ndim = self.address_of(array), 1, array.ndim
        view.code, view.bits, view.lanes = _CODES[array.dtype.kind], 8 * array.itemsize, 1
        view.shape, view.strides = ctypes.cast(shape, _INT64S), ctypes.cast(strides, _INT64S)
        if is_versioned:
            struct.major = 1
            struct.flags = (0 if array.flags.writeable else 1) | (2 if copy else 0)
        struct.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        address = ctypes.addressof(struct)
        _lent[address] = struct, shape, strides, self.kept(array)
        return _new(address, name, ctypes.cast(self.destructor, ctypes.c_void_p))


class StridesInBytes(Exporting):
    def strides_of(self, array: np.ndarray[Any, Any]) -> list[int]:
        return [*array.strides]


class ForgetsWhereAViewBegins(Exporting):
    def address_of(self, array: np.ndarray[Any, Any]) -> int:
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array.ctypes.data


class ExportsATemporary(Exporting):
    def address_of(self, array: np.ndarray[Any, Any]) -> int:
        return array.copy().ctypes.data


class KeepsNothing(Exporting):
    def kept(self, array: np.ndarray[Any, Any]) -> object:
        return None


class NeverDeletes(Exporting):
    deleter = _KEEP


class HasNoDestructor(Exporting):
    destructor = None


class DeletesWhatIsConsumed(Exporting):
    destructor = _DESTROY_ALWAYS


_AT_EXIT = "deleter_after_python capsule_alive_at_exit"  # deleters in Python are gone by then
_LAYOUTS = " ".join(
    f"layout_{each}"
    for each in ("transposed", "steps", "reversed", "slice", "no_elements", "no_dimension")
)

# The rules that name the mistake, and those that break as well because of it.
MISTAKES: dict[str, tuple[str, str]] = {
    "Lending": ("", ""),
    "WrongDevice": ("device_agrees", ""),
    "IgnoresTheVersion": ("legacy_by_default legacy_for_old_versions", ""),
    "IgnoresCopy": ("copy_true copy_true_versioned", ""),
    "RefusesWithTypeErrors": ("refusals_are_buffer_errors byte_order_refused", ""),
    "KeepsItsCapsules": ("capsules_are_new", ""),
    "Exporting": ("deleter_after_python", _AT_EXIT),
    "StridesInBytes": (
        "values_agree layout_transposed layout_steps layout_reversed layout_slice",
        _AT_EXIT,
    ),
    "ForgetsWhereAViewBegins": ("layout_slice layout_reversed", _AT_EXIT),
    "ExportsATemporary": (
        "export_keeps_the_data",
        f"{_AT_EXIT} {_LAYOUTS} values_agree call_is_pure copy_keeps_values",
    ),
    "KeepsNothing": ("export_keeps_the_data", _AT_EXIT),
    "NeverDeletes": (
        "deleter_releases exports_leak_nothing capsule_unused_is_released",
        _AT_EXIT,
    ),
    "HasNoDestructor": ("capsule_destructor", _AT_EXIT),
    "DeletesWhatIsConsumed": ("capsule_used_is_not_released", "!"),  # crashes wherever one is read
}


# ---- factories that do other things than make a tensor ------------------------------------------


def forks(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Come back in two processes."""
    import os

    os.fork()
    return np.array(array)


def prints(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Write to the standard output, by Python and past it."""
    import os

    print("made one " * 100)
    os.write(1, b"made one\n")
    return np.array(array)


def leaves_a_process(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Leave a process behind that has everything open which this one has."""
    import os
    import time

    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    with open(os.environ["DLBRIDGE_TEST_LEFT"], "a") as file:  # for who ends it
        print(child, file=file)
    return np.array(array)


def ends_well(array: np.ndarray[Any, Any]) -> None:
    """End the process with the status 0."""
    import os

    os._exit(0)


def makes_nothing(array: np.ndarray[Any, Any]) -> None:
    """Forget the return."""


def hangs(array: Any) -> None:
    """Never come back."""
    import time

    time.sleep(1000)
