"""The array interface of NumPy and that of CUDA: the dictionary that describes memory, checked.

The producer of the dictionary may be wrong. A malformed field is refused here, by name, before an
address of it is used.
"""

from __future__ import annotations

import re
import sys
from operator import index
from typing import Any, NoReturn

from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.shape import row_major

_FOREIGN = ">" if sys.byteorder == "little" else "<"
_TYPESTR = re.compile(r"[<>|=][A-Za-z]\d*(\[\w+\])?")


class Interface:
    """One such dictionary, read and checked.

    Attributes:
        name: of the object's type, for error texts.
        dtype, shape: of the elements.
        strides: in elements, or None for row-major memory.
        data: (address, read-only), or the object whose buffer holds the elements, or None.
        offset: bytes in front of the first element, where `data` is no address.
    """

    __slots__ = ("data", "dtype", "name", "offset", "shape", "strides")

    def __init__(self, fields: Any, name: str) -> None:
        self.name = name
        if not isinstance(fields, dict):
            self.refuse(f"the interface must be a dict, got {fields!r}")
        if fields.get("mask") is not None:
            self.refuse("its mask would be lost", "masked")
        self.dtype = self._read_dtype(fields.get("typestr"))
        self.shape = self._read_integers(fields.get("shape"), "shape")
        if any(extent < 0 for extent in self.shape):
            self.refuse(f"shape {self.shape} has a negative dimension", "shape")
        self.strides = self._read_strides(fields.get("strides"))
        self.data: Any = self._read_data(fields.get("data"))
        (self.offset,) = self._read_integers((fields.get("offset", 0),), "offset")

    def refuse(self, what: str, reason: str = "producer") -> NoReturn:
        """Raise the refusal that says what is wrong with the dictionary."""
        raise ExchangeError(reason, f"from_dlpack: {self.name}: {what}")

    def read_stream(self, stream: object) -> int:
        """Return the stream of the CUDA array interface, 1 where it names none."""
        if stream is None:
            return 1
        if isinstance(stream, bool) or not isinstance(stream, int) or stream <= 0:
            self.refuse(
                f"its stream must be None, 1, 2 or the address of a CUDA stream, got {stream!r}",
                "stream",
            )
        return stream

    def reach(self) -> tuple[int, int]:
        """Return the first byte of the elements and the byte after the last, from the first one."""
        if 0 in self.shape:
            return 0, 0
        strides = self.strides if self.strides is not None else row_major(self.shape)
        steps = [(extent - 1) * step for extent, step in zip(self.shape, strides, strict=True)]
        low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
        return low * self.dtype.itemsize, (high + 1) * self.dtype.itemsize

    def _read_dtype(self, typestr: object) -> DType:
        if not isinstance(typestr, str) or _TYPESTR.fullmatch(typestr) is None:
            self.refuse(f"typestr must be as '<f4' is, got {typestr!r}")
        if typestr[0] == _FOREIGN and typestr[2:] != "1":
            self.refuse(f"typestr {typestr!r} is not in native order", "byte_order")
        import numpy

        try:
            dtype = numpy.dtype(typestr)
        except (TypeError, ValueError):
            self.refuse(f"typestr {typestr!r} names no dtype")
        return DType(dtype)

    def _read_integers(self, values: object, field: str) -> tuple[int, ...]:
        if not isinstance(values, (tuple, list)):
            self.refuse(f"{field} must be a tuple, got {values!r}")
        try:
            found = tuple(map(index, values))
        except TypeError:
            self.refuse(f"{field} must be of integers, got {values!r}")
        if any(not -(2**63) <= value < 2**63 for value in found):
            self.refuse(f"{field} must fit 64 bits, got {values!r}", "overflow")
        return found

    def _read_strides(self, steps: object) -> list[int] | None:
        if steps is None:
            return None
        steps = self._read_integers(steps, "strides")
        if len(steps) != len(self.shape):
            self.refuse(f"{len(steps)} strides for {len(self.shape)} dimensions")
        size = self.dtype.itemsize
        if any(step % size for step in steps):
            self.refuse(f"strides {steps} bytes are no multiple of {self.dtype}", "strides")
        return [step // size for step in steps]

    def _read_data(self, data: object) -> object:
        if not isinstance(data, tuple):
            return data
        if len(data) != 2:
            self.refuse(f"data must be (address, read-only), got {data!r}")
        return self._read_address(data[0]), bool(data[1])

    def _read_address(self, address: Any) -> int:
        try:
            found = 0 if address is None else index(address)
        except TypeError:
            self.refuse(f"an address must be an integer, got {address!r}")
        if not 0 <= found < 2**64:
            self.refuse(f"an address has 64 bits, got {found}")
        return found
