"""A producer and a consumer that obey every rule, and the faults that can be planted in them.

Memory, struct and deleter of the producer are C's: a block of malloc, whose deleter is `free`, runs
without the GIL, on any thread and after Python.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from typing import Any

import numpy as np

from dlbridge.check import faults
from dlbridge.check.producer_rules import native_destructor

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
        name = faults.VERSIONED if versioned else faults.LEGACY
        return faults.make_capsule(block, name, native_destructor(versioned))


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


# ---- consumers -----------------------------------------------------------------------------------


class Array:
    """A tensor over the memory of a capsule, until it is dropped."""

    def __init__(self, found: faults.Consumer, *, ends: bool = True, **told: Any) -> None:
        self.found, self.ends = found, ends
        self.__array_interface__ = {"version": 3, **told}
        self.shape = told["shape"]

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing():  # deleters written in Python are gone
            return
        if self.ends and self.found.has_deleter and not self.found.released:
            self.found.release()

    def __setitem__(self, key: Any, value: Any) -> None:
        np.asarray(self)[key] = value

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __add__(self, other: Any) -> Any:
        return np.asarray(self) + np.asarray(other)


class Take:
    """A consumer with at most one fault, which is named after what it does wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, producer: Any, *, copy: bool | None = None) -> Any:
        found = self.consume(producer, copy)
        if found is None:
            return np.zeros(3)
        if self.fault == "reads through the producer":
            self.spoil_with(producer, found)
        try:
            return self.look(found, copy)
        except Exception:
            is_other = found.version is not None and found.version[0] != 1
            keeps = self.fault == "keeps what it refuses" or (
                self.fault == "keeps other major versions" and is_other
            )
            if found.has_deleter and not found.released and not keeps:
                found.release()
            raise

    def spoil_with(self, producer: Any, found: faults.Consumer) -> None:
        """Spoil the memory when the producer is gone, as if that were its only owner."""

        def spoil() -> None:
            if not found.released and found.dtype == (2, 32, 1) and found.shape == (2, 3):
                ctypes.memset(found.data, 0, 24)

        weakref.finalize(producer, spoil)

    def consume(self, producer: Any, copy: bool | None) -> faults.Consumer | None:
        keywords: dict[str, Any] = {}
        if copy is not None and self.fault != "ignores copy":
            keywords["copy"] = copy
        if self.fault != "asks for no version":
            keywords["max_version"] = (1, 3)
        if self.fault == "passes a stream":
            keywords["stream"] = 1
        try:
            capsule = producer.__dlpack__(**keywords)
            if self.fault == "asks twice":
                capsule = producer.__dlpack__(**keywords)
        except TypeError:
            if self.fault == "knows no old producers":
                raise
            capsule = producer.__dlpack__()
        except BufferError as error:
            if self.fault == "hides errors":
                raise ValueError(str(error)) from None
            if self.fault == "asks again":
                capsule = producer.__dlpack__()
            else:
                raise
        if capsule is None and self.fault == "takes None":
            return None
        name = faults._get_name(capsule)
        if (self.fault == "takes used ones" and name.startswith(b"used_")) or (
            self.fault == "takes any name" and name == b"arrow_array"
        ):
            faults._set_name(capsule, faults.VERSIONED)
        found = faults.Consumer(capsule)
        if self.fault == "renames nothing":
            faults._set_name(capsule, faults.VERSIONED if found.versioned else faults.LEGACY)
            found.has_deleter = False  # the capsule's destructor calls it
        return found

    def refuse(self, unless: str | None, condition: bool, text: str) -> None:
        if condition and self.fault != unless:
            raise BufferError(text)

    def look(self, found: faults.Consumer, copy: bool | None) -> Any:
        major, minor = found.version or (1, 0)
        self.refuse(None, self.fault == "refuses versioned" and found.versioned, "versioned")
        self.refuse(None, self.fault == "refuses legacy" and not found.versioned, "legacy")
        if self.fault == "leaks":
            _leaked.append(bytes(100))
        self.refuse("takes any major version", major != 1, "major version")
        self.refuse(
            None, self.fault == "refuses newer minor versions" and minor > 3, "minor version"
        )
        self.refuse("takes negative ndim", found.ndim < 0, "ndim")
        self.refuse("takes any device", found.device[0] not in (1, 3), "device")
        code, bits, lanes = found.dtype
        self.refuse("takes 0 lanes" if lanes == 0 else "ignores lanes", lanes != 1, "lanes")
        if self.fault == "takes any bits" and bits == 24:
            bits = 32
        if self.fault == "takes any dtype" and code == 99:
            code = 2
        kind = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}.get(code)
        known = kind and (bits // 8) in {"f": (2, 4, 8), "c": (8, 16), "b": (1,)}.get(
            kind, (1, 2, 4, 8)
        )
        self.refuse(None, not known or bits % 8 != 0, "dtype")
        size = bits // 8
        shape = found.shape
        if shape is None:
            self.refuse("takes NULL shapes", found.ndim != 0, "NULL shape")
            self.refuse(None, self.fault == "needs a shape", "NULL shape")
            shape = ()
        if min(shape, default=0) < 0:
            self.refuse("takes negative extents", True, "extent")
            shape = (0,)
        if math.prod(shape) * size > 2**62:
            self.refuse("takes huge shapes", True, "size")
            shape = (0,)
        steps = found.strides
        if steps is None:
            self.refuse(None, self.fault == "needs strides", "NULL strides")
            steps = faults.row_major(shape)
        if self.fault == "ignores strides":
            steps = faults.row_major(shape)
        if self.fault == "takes absolute strides":
            steps = tuple(map(abs, steps))
        offset = 0 if self.fault == "ignores byte_offset" else found.byte_offset
        data = found.data
        if data == 0 and math.prod(shape) > 0:
            self.refuse("takes NULL data", True, "NULL data")
            shape, steps = (0,), (1,)
        if self.fault == "believes strides of one" and steps[:1] == (12345,):
            return np.zeros(shape)
        if self.fault == "rounds addresses":
            data -= data % 64
        readonly = bool(found.flags & faults.READ_ONLY) and self.fault != "writes read-only memory"
        told = {
            "shape": shape,
            "strides": tuple(step * size for step in steps) if shape != (0,) else None,
            "typestr": f"{'|' if size == 1 else '<'}{kind}{size}",
            "data": (data + offset, readonly),
        }
        if self.fault == "releases early" and found.has_deleter:
            kept = Array(found, ends=False, **told)
            found.release()
            return kept
        result = Array(found, ends=self.fault != "never releases", **told)
        if self.fault == "narrows" and told["typestr"] == "<f8":
            return np.array(result).astype("float32")
        is_own = bool(found.flags & faults.IS_COPIED)
        wants = copy is True and not is_own and self.fault != "ignores copy"
        if wants or self.fault == "always copies":
            return np.array(result)
        return result


take = Take()
_leaked: list[bytes] = []


class Ends(Take):
    """A consumer with a fault that ends the process."""

    def look(self, found: faults.Consumer, copy: bool | None) -> Any:
        result = super().look(found, copy)
        if self.fault == "calls NULL deleters" and not found.has_deleter:
            faults.Deleter(0)(found.address)
        if self.fault == "must not be alive at exit":
            return Fragile(result)
        return result


class Fragile:
    """Crashes where it is dropped after Python."""

    def __init__(self, result: Any) -> None:
        self.result, self.is_over, self.string_at = result, sys.is_finalizing, ctypes.string_at

    def __del__(self) -> None:
        if self.is_over():
            self.string_at(0)


call_null = Ends("calls NULL deleters")
die_at_exit = Ends("must not be alive at exit")

ENDING_CONSUMERS = {"call_null": "null_deleter", "die_at_exit": "alive_at_exit"}

PLANTED_CONSUMERS = {
    "always copies": {"memory_is_shared", "copy_false_shares"},
    "asks again": {"refusals_are_final"},
    "asks for no version": {"asks_for_versions", "read_only_is_honoured"},
    "asks twice": {"asks_once"},
    "believes strides of one": {"ignores_strides_of_one"},
    "hides errors": {"errors_pass"},
    "ignores byte_offset": {"honours_byte_offset"},
    "ignores copy": {"copy_true_copies"},
    "ignores lanes": {"honours_lanes"},
    "ignores strides": {
        "honours_negative_strides",
        "honours_gaps",
        "honours_transposed",
        "honours_zero_strides",
    },
    "keeps other major versions": {"other_major_released"},
    "keeps what it refuses": {"deleter_after_refusal", "other_major_released"},
    "knows no old producers": {"takes_old_producers"},
    "leaks": {"imports_leak_nothing"},
    "narrows": {"dtype_is_kept"},
    "needs a shape": {"takes_no_dimension"},
    "needs strides": {"takes_null_strides", "takes_no_dimension"},
    "never releases": {
        "deleter_exactly_once",
        "deleter_may_be_slow",
        "dropped_on_another_thread",
        "imports_leak_nothing",
        "takes_null_data_of_nothing",
    },
    "passes a stream": {"passes_no_stream_on_cpu"},
    "reads through the producer": {
        "imports_leak_nothing",
        "memory_outlives_the_producer",
        "takes_legacy",
        "takes_null_strides",
        "takes_old_producers",
        "takes_versioned",
    },
    "refuses legacy": {"takes_legacy", "takes_old_producers"},
    "refuses newer minor versions": {"newer_minor_accepted"},
    "refuses versioned": {
        "newer_minor_accepted",
        "takes_no_dimension",
        "takes_null_strides",
        "takes_versioned",
    },
    "releases early": {"deleter_not_early"},
    "renames nothing": {"capsule_is_renamed", "deleter_not_early"},
    "rounds addresses": {"honours_negative_strides", "takes_any_alignment"},
    "takes 0 lanes": {"zero_lanes_refused"},
    "takes NULL data": {"null_data_refused"},
    "takes NULL shapes": {"null_shape_refused"},
    "takes None": {"none_is_refused"},
    "takes absolute strides": {"honours_negative_strides"},
    "takes any bits": {"odd_bits_refused"},
    "takes any device": {
        "unknown_device_refused",
        "missing_device_refused",
        "capsule_tells_the_device",
    },
    "takes any dtype": {"unknown_dtype_refused"},
    "takes any major version": {"other_major_refused"},
    "takes any name": {"unknown_name_refused"},
    "takes huge shapes": {"overflowing_shape_refused"},
    "takes negative ndim": {"negative_ndim_refused"},
    "takes negative extents": {"negative_extent_refused"},
    "takes used ones": {"used_capsule_refused"},
    "writes read-only memory": {"read_only_is_honoured"},
}
