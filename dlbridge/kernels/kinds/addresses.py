"""Addresses and prototypes of functions that ctypes, cffi and Numba hold.

A prototype is known as far as conventions need it: which parameters are plain pointers (`void *`,
`DLTensor *`), which are C ints, and its text for messages.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple

_GIL_FLAG = 4  # FUNCFLAG_PYTHONAPI of ctypes: PyDLL and PYFUNCTYPE
_POINTER, _INT, _OTHER = "pointer", "int", "other"


class Prototype(NamedTuple):
    """What a function takes and gives: the class of each type, and the C text of the whole."""

    result: str
    parameters: tuple[str, ...]
    text: str


def convention(prototype: Prototype | None) -> str | None:
    """Return the convention of dlbridge that a prototype is, or None for another one."""
    if prototype is None or prototype.result != _INT:
        return None
    if prototype.parameters == (_POINTER, _POINTER, _INT):
        return "dltensors"
    is_pointers = prototype.parameters and set(prototype.parameters) == {_POINTER}
    return "pointers" if is_pointers else None


def of_ctypes(fn: Any) -> tuple[int, Prototype | None, bool]:
    """Return address, prototype if it was declared, and whether the function needs the GIL."""
    address = ctypes.cast(fn, ctypes.c_void_p).value or 0
    needs_gil = bool(type(fn)._flags_ & _GIL_FLAG)
    if fn.argtypes is None:
        return address, None, needs_gil
    result = _ctypes_class(fn.restype)
    parameters = tuple(_ctypes_class(kind) for kind in fn.argtypes)
    names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in fn.argtypes)
    text = f"{getattr(fn.restype, '__name__', fn.restype)}({names})"
    return address, Prototype(result, parameters, text), needs_gil


def _ctypes_class(kind: Any) -> str:
    if kind is ctypes.c_int:
        return _INT
    target = getattr(kind, "_type_", None)
    is_struct = isinstance(target, type) and issubclass(target, ctypes.Structure)
    return _POINTER if kind is ctypes.c_void_p or is_struct else _OTHER


def of_cffi(pointer: Any) -> tuple[int, Prototype | None]:
    """Return address and prototype of a cffi function pointer; None for a pointer to data."""
    from dlbridge._core import ffi

    kind = ffi.typeof(pointer)
    address = int(ffi.cast("intptr_t", pointer)) if kind.kind in ("function", "pointer") else 0
    if kind.kind != "function":
        return address, Prototype(_OTHER, (), kind.cname)
    parameters = tuple(_cffi_class(each.cname) for each in kind.args)
    return address, Prototype(_cffi_class(kind.result.cname), parameters, kind.cname)


def is_cuda_function(pointer: Any) -> bool:
    """Return whether a cffi pointer is a handle of the CUDA driver, `CUfunction`."""
    from dlbridge._core import ffi

    return bool(ffi.typeof(pointer).cname == "struct CUfunc_st *")


def _cffi_class(name: str) -> str:
    classes = {"int": _INT, "int32_t": _INT, "void *": _POINTER}
    is_tensor = name.replace("struct ", "").replace(" ", "") == "DLTensor*"
    return _POINTER if is_tensor else classes.get(name, _OTHER)


def cffi_pointer(builtin: Any) -> Any:
    """Return the pointer of a function of a compiled cffi library, `lib.f`."""
    from dlbridge._core import ffi

    return ffi.addressof(builtin.__self__, builtin.__name__)


def of_numba(fn: Any) -> tuple[int, Prototype]:
    """Return address and prototype of a Numba CFunc."""
    signature = fn._sig
    classes = {"void*": _POINTER, "none*": _POINTER, "int32": _INT}
    parameters = tuple(classes.get(str(kind), _OTHER) for kind in signature.args)
    result = classes.get(str(signature.return_type), _OTHER)
    return fn.address, Prototype(result, parameters, str(signature))


class _Location(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def pin(address: int) -> None:
    """Keep the library at `address` loaded for good: compiled graphs may call it until the end.

    cffi unloads a library together with its `lib` object, whatever pointers are left of it.
    """
    if not sys.platform.startswith("linux"):
        return
    location = _Location()
    process = ctypes.CDLL(None)
    found = process.dladdr(ctypes.c_void_p(address), ctypes.byref(location))
    if not found or not location.path:
        return
    flags = os.RTLD_NOLOAD | os.RTLD_NODELETE | os.RTLD_LAZY
    process.dlopen.restype = ctypes.c_void_p
    process.dlopen(location.path, flags)  # NULL for the program itself, which stays anyway
