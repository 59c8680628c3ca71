"""Managed tensors whose fields are made up, in capsules; what is taken is read and passed on."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dlbridge
from dlbridge._core import native
from dlbridge.errors import REASONS, CUDAError, ExchangeError
from tests.fuzz import drawing
from tests.fuzz.compiling import compile_library
from tests.fuzz.memory import Guarded

TENSOR = "PiiiBBHPPQ"
LEGACY = struct.Struct(f"{TENSOR}PP")
VERSIONED = struct.Struct(f"IIPPQ{TENSOR}")
MOST_DIMENSIONS = 254
DTYPES = (
    *((2, 32, 1), (2, 64, 1), (0, 64, 1), (0, 32, 1), (1, 8, 1), (6, 8, 1), (4, 16, 1), (5, 64, 1)),
    *((0, 4, 1), (17, 4, 1), (15, 6, 1), (6, 1, 1), (2, 32, 4), (1, 8, 65535), (10, 8, 1)),
)
DEVICES = (2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
HOSTS = (1, 3, 11)
ROOM = 1 << 12
MOST_READ = 512
USED = ("used_dltensor", "used_dltensor_versioned")


class Plan(ctypes.Structure):
    """What the stand-in lends next, and what the functions of its tables do."""

    _fields_ = (
        ("image", ctypes.c_uint64 * (VERSIONED.size // 8)),
        ("length", ctypes.c_int64),
        ("is_versioned", ctypes.c_int32),
        ("without_deleter", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("is_given", ctypes.c_int32),
        ("raises", ctypes.c_int32),
        ("deletes", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 256),
        ("strides", ctypes.c_int64 * 256),
    )


class Stand:
    """The producer in C, and what it was told to lend."""

    def __init__(self, folder: Path) -> None:
        path = Path(__file__).with_name("dlpack_stand_in.c")
        self.library = ctypes.PyDLL(compile_library(path, folder)._name)
        self.plan = Plan.in_dll(self.library, "dlpack_plan")
        self.lent, self.deleted = (
            ctypes.c_int64.in_dll(self.library, f"dlpack_{name}") for name in ("lent", "deleted")
        )
        self.forget = self.library.dlpack_forget
        self.capsule = self.library.dlpack_capsule
        self.capsule.restype = ctypes.py_object
        self.room = Guarded(ROOM)
        self.room.place(bytes(range(256)) * (ROOM // 256))
        self.image = memoryview(self.plan).cast("B")  # type: ignore[arg-type]
        self.arrays = tuple(
            ctypes.addressof(self.plan) + getattr(Plan, name).offset
            for name in ("shape", "strides")
        )

    def draw(self, source: random.Random, *, is_versioned: bool) -> None:
        """Draw the fields of a managed tensor, most of them right."""
        random_ = source.random
        shape: tuple[int, ...] = drawing.shape(source)
        if random_() < 0.05:
            shape = tuple([drawing.number(source) for _ in shape])
        shape = tuple([(n + 2**63) % 2**64 - 2**63 for n in shape])
        ndim = len(shape)
        strides = _strides(source, shape)
        self.ndim = ndim if random_() < 0.95 else source.choice((-1, -(2**31), 255, 2**31 - 1))
        self.has_shape = random_() < 0.97
        self.has_strides = random_() < 0.85
        self.shape, self.strides = shape, strides
        self.dtype = source.choice(DTYPES)
        if random_() < 0.1:
            lanes = source.choice((0, 1, 1, 2, 65535))
            self.dtype = (source.randrange(256), source.choice((0, 1, 6, 8, 32, 255)), lanes)
        self.device = (1, 0)
        if random_() < 0.15:
            kind = source.choice(DEVICES) if random_() < 0.7 else drawing.number(source)
            self.device = (_signed(kind), source.choice((0, 0, 1, -1, 2**31 - 1, -(2**31))))
        self.data = self.room.end - source.choice((0, 1, 8, 64, 256, 1024, ROOM))
        if random_() < 0.1:
            self.data = source.choice((0, 0, 2**63 - 1, 2**63, 2**64 - 1))
        self.byte_offset = (
            0 if random_() < 0.7 else source.choice((1, 8, 64, drawing.number(source)))
        )
        self.byte_offset %= 2**64
        self.version = (1, 3)
        self.flags = 0
        if is_versioned and random_() < 0.2:
            self.version = (source.choice((1, 0, 2, 2**32 - 1)), source.choice((0, 1, 9)))
        if is_versioned and random_() < 0.3:
            self.flags = source.choice((1, 2, 3, 4, 7, 8, 2**63, 2**64 - 1))
        self.has_deleter = random_() < 0.9
        self.is_shown = random_() < 0.05  # NumPy's text of the elements takes as long as the rest
        self.write(is_versioned)

    def write(self, is_versioned: bool) -> None:
        """Put what was drawn where the stand-in finds it."""
        plan, shape, strides = self.plan, *self.arrays
        plan.length = ndim = len(self.shape)
        plan.shape[:ndim], plan.strides[:ndim] = self.shape, self.strides
        plan.is_versioned, plan.without_deleter = is_versioned, not self.has_deleter
        tensor = (
            *(self.data, *self.device, self.ndim, *self.dtype),
            *(shape * self.has_shape, strides * self.has_strides, self.byte_offset),
        )
        if is_versioned:
            VERSIONED.pack_into(self.image, 0, *self.version, 0, 0, self.flags, *tensor)
        else:
            LEGACY.pack_into(self.image, 0, *tensor, 0, 0)
        self.lent.value = self.deleted.value = 0

    # ---- what must hold ----

    def check_released(self) -> None:
        """The deleter was called once for each loan, or there is none."""
        assert self.deleted.value == self.lent.value * self.has_deleter, self.deleted.value
        assert self.forget() == (self.lent.value > 0 and not self.has_deleter)

    def check_taken(self, tensor: Any) -> None:
        """It says what the struct says, and may be read and passed on."""
        assert self.deleted.value == 0
        assert self.ndim == len(self.shape)
        assert tensor.shape == self.shape
        assert tensor._dtype_triple == self.dtype
        kind, index = self.device
        assert tensor._device_pair == (kind, 0 if kind == 1 else index)
        assert self.version[0] == 1
        assert tensor.flags == self.flags <= 7
        if self.has_strides or not self.shape:
            assert tensor.strides == self.strides
        elif 0 not in self.shape:
            assert tensor.strides == _row_major(self.shape)
        assert self.data or 0 in self.shape
        assert self.data + self.byte_offset < 2**63
        if kind in HOSTS:
            assert tensor.data_ptr == (self.data + self.byte_offset if self.data else 0)
        self.pass_on(tensor)
        if self.is_readable(tensor):
            self.read(tensor)

    def read(self, tensor: Any) -> None:
        """Read every element; a copy of integers equals them."""
        copy = tensor.copy()
        if self.is_shown:
            repr(tensor)
        try:
            is_equal = dlbridge.equal(copy, tensor)
        except ExchangeError as error:
            check_reason(error)
        else:
            assert is_equal or self.dtype[0] not in (0, 1)

    def pass_on(self, tensor: Any) -> None:
        """Export it and take it again, as far as it goes out."""
        for versions in ({}, {"max_version": (1, 3)}):
            try:
                again = native.take_capsule(tensor.__dlpack__(**versions))
            except CUDAError:  # without a driver, where a table named a stream
                assert self.device[0] in (2, 3, 13)
            except ExchangeError as error:
                check_reason(error)
            else:
                assert (again.shape, again.strides) == (tensor.shape, tensor.strides)
                assert again.data_ptr == tensor.data_ptr

    def is_readable(self, tensor: Any) -> bool:
        """Return whether all elements are in the room, and few."""
        if self.device[0] not in HOSTS:
            return False
        if 0 in self.shape:
            return True
        low = high = 0
        count = 1
        for extent, stride in zip(self.shape, tensor.strides, strict=True):
            count *= extent
            low += min(0, (extent - 1) * stride)
            high += max(0, (extent - 1) * stride)
        _, bits, lanes = self.dtype
        bits = (-(-bits // 8) * 8 if self.flags & 4 else bits) * lanes
        start = self.data + self.byte_offset
        first, behind = start + low * bits // 8, start - (-(high + 1) * bits // 8)
        is_inside = first >= self.room.end - ROOM and behind <= self.room.end
        return is_inside and count * lanes <= MOST_READ


def _signed(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _strides(source: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides: row-major ones, small ones, or any."""
    kind = source.random()
    if kind < 0.6:
        return tuple([_wrapped(stride) for stride in _row_major(shape)])
    if kind < 0.85:
        return tuple([source.choice((0, 1, 1, -1, 2, 3, -2, 8)) for _ in shape])
    return tuple([_wrapped(drawing.number(source)) for _ in shape])


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def check_reason(error: ExchangeError) -> None:
    """A refusal has a reason that programs know."""
    assert error.reason in REASONS, error.reason


class Fuzzer:
    """The reader of capsules."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.live = native.live()
        name = ctypes.pythonapi.PyCapsule_GetName
        name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        self.name = lambda capsule: name(capsule).decode()

    def __call__(self, source: random.Random) -> str:
        self.stand.draw(source, is_versioned=source.random() < 0.6)
        said = self.take(source.choice((native.take_capsule, dlbridge.from_dlpack)))
        self.stand.check_released()
        assert native.live() == self.live
        return said

    def take(self, take: Callable[[Any], Any]) -> str:
        capsule = self.stand.capsule()
        try:
            tensor = take(capsule)
        except ExchangeError as error:
            check_reason(error)
            said = f"refused: {error.reason}"
        else:
            self.stand.check_taken(tensor)
            said = "taken"
        assert self.name(capsule) in USED
        try:
            take(capsule)
        except ExchangeError as error:
            is_refused = error.reason == "consumed"
        else:
            is_refused = False
        assert is_refused, "a capsule was consumed twice"
        return said


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer(Stand(folder))
