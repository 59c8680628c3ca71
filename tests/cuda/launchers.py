"""Kernels for tests: C launchers in Python clothes, which put work on the stream that they get."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import dlbridge


class DLTensor(ctypes.Structure):
    _fields_ = (
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
    )


class Context(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("kernel", ctypes.c_char_p),
        ("user", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Context), ctypes.POINTER(DLTensor), ctypes.c_int
)


class Launch(NamedTuple):
    """The arguments of a launcher."""

    stream: int
    device: tuple[int, int]
    addresses: list[int]
    shapes: list[tuple[int, ...]]


class Launcher:
    """A C launcher that notes its calls; `body`, with the same, puts the work on the stream."""

    def __init__(self, body: Callable[[Launch], Any] | None = None) -> None:
        self.launches: list[Launch] = []
        self._body = body
        self.function = PROTOTYPE(self._run)

    def _run(self, context: Any, tensors: Any, count: int) -> int:
        given = [tensors[i] for i in range(count)]
        launch = Launch(
            context[0].stream or 0,
            (given[0].device_type, given[0].device_id),
            [each.data or 0 for each in given],
            [tuple(each.shape[: each.ndim]) for each in given],
        )
        self.launches.append(launch)
        if self._body is not None:
            self._body(launch)
        return 0

    def wrap(self, schema: str, **options: Any) -> dlbridge.Kernel:
        """Return it as a kernel for CUDA."""
        return dlbridge.wrap(
            platforms={"cuda": self.function}, abi="dltensors", schema=schema, **options
        )
