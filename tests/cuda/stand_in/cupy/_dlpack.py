"""DLPack in and out, with CuPy 14's own behaviour: `_core/dlpack.pyx` and `ndarray.__dlpack__`.

It is kept where it differs from the standard or from other frameworks: no READ_ONLY, stream 0 is
taken with a warning, the current stream is that of the current device, a legacy capsule where
`max_version` is missing, and no memory of its own for empty arrays.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy as np

from cupy import _driver
from cupy.cuda.memory import MemoryPointer
from cupy.cuda.stream import _BaseStream, get_current_stream

CPU, CUDA, CUDA_MANAGED = 1, 2, 13
_IS_COPIED = 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Legacy(ctypes.Structure):
    _fields_ = [
        ("tensor", _DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_api = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, ctypes.py_object)
_DestructorOfPointer = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _DestructorOfPointer)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
# In a destructor the capsule has no reference any more, and must not get one.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)

# name of a capsule -> (its name once it is taken, what it points to)
_NAMES: dict[bytes, tuple[bytes, Any]] = {
    b"dltensor_versioned": (b"used_dltensor_versioned", _Versioned),
    b"dltensor": (b"used_dltensor", _Legacy),
}

_EXPORTED: dict[int, tuple[Any, ...]] = {}  # address of a struct -> what it needs


@_Deleter
def _delete(address: int) -> None:
    _EXPORTED.pop(address, None)


@_DestructorOfPointer
def _destroy(capsule: int) -> None:
    """Delete what nobody took."""
    for name in _NAMES:
        if _is_valid(capsule, name):
            _EXPORTED.pop(_pointer_of(capsule, name), None)


def device_of(array: Any) -> tuple[int, int]:
    """Return what `__dlpack_device__` says."""
    kind = CUDA_MANAGED if _driver.is_managed(array.data.ptr) else CUDA
    return kind, array.data.device_id


def export(
    array: Any,
    stream: Any = None,
    max_version: tuple[int, ...] | None = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> Any:
    """Do what `ndarray.__dlpack__` does."""
    is_versioned = max_version is not None and max_version[0] >= 1
    if dl_device is None or tuple(dl_device) == device_of(array):
        if copy is True:
            raise BufferError("copy=True only supported for copy to CPU.")
        _order(stream)
        return _capsule(array, device_of(array), array.data.ptr, is_versioned, 0)
    if tuple(dl_device) != (CPU, 0):
        raise BufferError("unsupported device requested.")
    if copy is False and device_of(array)[0] != CUDA_MANAGED:
        raise ValueError("GPU memory cannot be exported to CPU without copy.")
    host = array.get(order="A")
    return _capsule(host, (CPU, 0), host.ctypes.data, is_versioned, _IS_COPIED)


def _order(stream: Any) -> None:
    """Let the consumer's stream wait for CuPy's current one."""
    consumer = -2
    if stream is None:
        consumer = _driver.STREAM_LEGACY
    elif isinstance(stream, int):
        consumer = stream
    if consumer < -1:
        raise ValueError(
            "On CUDA, the valid stream for the DLPack protocol is -1, 1, 2, or any larger value, "
            f"but {stream} was provided"
        )
    if consumer == 0:
        warnings.warn("Stream 0 is passed from a library that you are converting to", stacklevel=3)
        consumer = _driver.STREAM_LEGACY
    current = get_current_stream()
    if consumer >= 0 and consumer != (current.ptr or _driver.STREAM_LEGACY):
        _BaseStream(consumer, -1).wait_event(current.record())


def _capsule(
    owner: Any, device: tuple[int, int], address: int, is_versioned: bool, flags: int
) -> Any:
    ndim, itemsize = owner.ndim, owner.dtype.itemsize
    if owner.dtype.kind not in _CODES:
        raise BufferError("dtype is not supported for dlpack export")
    extents = ctypes.c_int64 * max(ndim, 1)
    shape = extents(*owner.shape)
    strides = extents(*[each // itemsize for each in owner.strides])
    made = _Versioned(1, 0) if is_versioned else _Legacy()
    made.deleter = _delete
    tensor = made.tensor
    tensor.data = address
    tensor.device_type, tensor.device_id = device
    tensor.ndim, tensor.lanes, tensor.byte_offset = ndim, 1, 0
    tensor.code, tensor.bits = _CODES[owner.dtype.kind], 8 * itemsize
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    if is_versioned:
        made.flags = flags
    place = ctypes.addressof(made)
    _EXPORTED[place] = made, shape, strides, owner
    return _api.PyCapsule_New(
        place, b"dltensor_versioned" if is_versioned else b"dltensor", _destroy
    )


class DLPackMemory:
    """Memory that a capsule stood for; its producer has it back when this object is gone."""

    def __init__(self, capsule: Any) -> None:
        name = next((each for each in _NAMES if _api.PyCapsule_IsValid(capsule, each)), None)
        if name is None:
            raise ValueError(
                "A DLPack tensor object cannot be consumed multiple times (or object was not a "
                f"DLPack capsule). Got: {capsule!r}"
            )
        used, kind = _NAMES[name]
        self._managed = kind.from_address(_api.PyCapsule_GetPointer(capsule, name))
        _api.PyCapsule_SetName(capsule, used)
        self.tensor = self._managed.tensor
        if self.tensor.device_type not in (CUDA, CUDA_MANAGED):
            raise RuntimeError(
                "CuPy is built against CUDA, different from the backend that backs the incoming "
                "DLPack tensor"
            )
        self.ptr = self.tensor.data or 0
        managed = self.tensor.device_type == CUDA_MANAGED
        self.device_id = _driver.device_of(self.ptr) if managed else self.tensor.device_id
        self.size = 0

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.addressof(managed))


def take(kind: Any, capsule: Any) -> Any:
    """Return an array over what a capsule stands for."""
    memory = DLPackMemory(capsule)
    tensor = memory.tensor
    if tensor.lanes != 1:
        raise ValueError(f"vector dtypes (lanes={tensor.lanes}) is not supported")
    if tensor.code not in _KINDS:
        raise TypeError(f"Unsupported dtype. dtype code: {tensor.code}")
    letter = _KINDS[tensor.code]
    dtype = np.dtype(bool) if letter == "b" else np.dtype(f"{letter}{tensor.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple([each * dtype.itemsize for each in tensor.strides[: tensor.ndim]])
    return kind(shape, dtype, MemoryPointer(memory, tensor.byte_offset), strides)


def from_dlpack(kind: Any, array: Any, device: Any = None, copy: bool | None = None) -> Any:
    """Do what `cupy.from_dlpack` does: ask for the array on CuPy's current stream there."""
    if not hasattr(array, "__dlpack_device__"):
        return take(kind, array)
    if device is not None:
        raise NotImplementedError("from_dlpack() does not support device yet.")
    type_, index = array.__dlpack_device__()
    if type_ == CPU:
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. "
            "Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    if type_ not in (CUDA, CUDA_MANAGED):
        raise TypeError(f"Unsupported array type: {type_}")
    before = _driver.current_device()
    try:
        _driver.set_device(index)
        stream = get_current_stream().ptr or _driver.STREAM_LEGACY
        try:
            capsule = array.__dlpack__(stream=stream, max_version=(1, 0), copy=copy)
        except TypeError:
            if copy is not None:
                raise
            capsule = array.__dlpack__(stream=stream)
    finally:
        _driver.set_device(before)
    return take(kind, capsule)
