"""Calls of kernels with cupy.ndarray, and kernels that are Python functions of CuPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from dlbridge._core import native
from dlbridge.cuda.driver import stream_of_cupy
from dlbridge.exchange import exchange
from dlbridge.kernels.binding import Direct, check_extent
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.kinds.python_kernel import Support
from dlbridge.kernels.schema import Arguments


class CuPy(Direct):
    """cupy.ndarray: the core reads it by its attributes, once it has met one in CUDA memory."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        cupy = sys.modules["cupy"]
        if not cupy.cuda.runtime.is_hip:
            native.cupy_open(cupy.ndarray, cupy.cuda.get_current_stream)
        return super().working(like)

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        return self.call_bounded(kernel, arguments)

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        return check_extent(kernel, name, int(value), room)

    def first_rows(self, value: Any, extent: Any) -> Any:
        return value[:extent]


class CuPySupport(Support):
    """Arrays of CuPy, which does not know whether one is written."""

    protects = False

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        yield from super().contexts(kind, index, stream)
        module: Any = sys.modules["cupy"].cuda
        yield module.Device(index)
        yield stream_of_cupy(module, stream, index)

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        if isinstance(value, sys.modules["cupy"].ndarray):
            exchange.convert(destination, "cupy")[...] = value
        else:
            super().copy(destination, value, stream)


BINDING = CuPy("cupy")
SUPPORT = CuPySupport
