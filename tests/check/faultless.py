"""A producer and a consumer that obey every rule, and the faults that can be planted in them.

Memory, struct and deleter of the producer are C's: a block of malloc, whose deleter is `free`, runs
without the GIL, on any thread and after Python.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dlbridge.check import faults
from dlbridge.check.producer_rules import destructor_of

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value


class Producer:
    """Exports a copy of the values in each call; it is read-only unless a copy was asked for."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        if stream is not None or copy is False or dl_device not in (None, (1, 0)):
            raise BufferError("refused")
        versioned = max_version is not None and max_version[0] >= 1
        if self.dtype.name not in faults.DTYPES or not self.dtype.isnative:
            raise BufferError("no such dtype in DLPack")
        what = faults.describe(np.ascontiguousarray(self.array).reshape(self.shape))
        what = what.but(flags=faults.IS_COPIED if copy else 0)
        return self.export(what, versioned)

    def export(self, what: faults.Description, versioned: bool) -> Any:
        struct, _, _ = faults.make_struct(what, versioned)
        size, ndim, nbytes = ctypes.sizeof(struct), len(what.shape or ()), self.array.nbytes
        block = _libc.malloc(size + 16 * ndim + nbytes + 64)
        dims = (ctypes.c_int64 * (2 * ndim)).from_address(block + size)
        dims[:] = [*(what.shape or ()), *(what.strides or ())]
        data = -(-(block + size + 16 * ndim) // 64) * 64
        ctypes.memmove(data, what.data or 0, nbytes)
        pointer = ctypes.POINTER(ctypes.c_int64)
        struct.dl.shape = ctypes.cast(block + size, pointer)
        struct.dl.strides = ctypes.cast(block + size + 8 * ndim, pointer)
        struct.dl.data, struct.deleter = data, _FREE
        ctypes.memmove(block, ctypes.addressof(struct), size)
        own = np.zeros(1).__dlpack__(**({"max_version": (1, 0)} if versioned else {}))
        name = faults.VERSIONED if versioned else faults.LEGACY
        return faults.make_capsule(block, name, destructor_of(own))  # NumPy's, which is C


def make(array: np.ndarray[Any, Any]) -> Producer:
    return Producer(array)


class NoDevice(Producer):
    def __dlpack_device__(self) -> Any:
        return 1, None


class UnknownDevice(Producer):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 99, 0

    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        kept = None if dl_device == (99, 0) else dl_device
        return super().__dlpack__(dl_device=kept, **keywords)

    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(device=(99, 0)), versioned)


class OtherDevice(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(device=(3, 0)), versioned)


class AlwaysLegacy(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what, False)


class AlwaysVersioned(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what, True)


class UnknownFlag(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(flags=what.flags | 8), versioned)


class Padded(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(flags=what.flags | 4), versioned)


class NoMark(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(flags=0), versioned)


class Lanes(Producer):
    def export(self, what: faults.Description, versioned: bool) -> Any:
        return super().export(what.but(dtype=(2, 16, 2)), versioned)


class WrongRefusal(Producer):
    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        if dl_device not in (None, (1, 0)):
            raise NotImplementedError("no such device")
        return super().__dlpack__(dl_device=dl_device, **keywords)


class OwnDeviceRefused(Producer):
    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        if dl_device is not None:
            raise BufferError("no device")
        return super().__dlpack__(dl_device=dl_device, **keywords)


class DeviceIgnored(Producer):
    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        if dl_device is not None and dl_device[0] == 8:
            raise BufferError("no Metal")
        kept = None if dl_device is not None and dl_device[0] == 2 else dl_device
        return super().__dlpack__(dl_device=kept, **keywords)


class NumberIgnored(Producer):
    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        kept = None if dl_device is not None and dl_device[0] == 1 else dl_device
        return super().__dlpack__(dl_device=kept, **keywords)


class AnyStream(Producer):
    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        return super().__dlpack__(**keywords)


class Crashing(Producer):
    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        if stream is not None:
            ctypes.string_at(0)
        return super().__dlpack__(**keywords)


PLANTED = {
    "NoDevice": "device_pair",
    "UnknownDevice": "device_known",
    "OtherDevice": "device_agrees",
    "AlwaysLegacy": "versioned_on_request",
    "UnknownFlag": "flags_known",
    "Padded": "flag_padded_only_below_bytes",
    "NoMark": "copy_true_is_marked",
    "WrongRefusal": "refusals_are_buffer_errors",
    "OwnDeviceRefused": "own_device_accepted",
    "DeviceIgnored": "other_device_is_not_ignored",
    "NumberIgnored": "device_number_is_not_ignored",
    "AnyStream": "stream_on_cpu_refused",
    "Crashing": "stream_on_cpu_refused",
}
