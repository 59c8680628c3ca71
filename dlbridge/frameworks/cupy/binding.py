"""Calls of kernels with cupy.ndarray, and kernels that are Python functions of CuPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from dlbridge._core import native
from dlbridge.cuda.driver import stream_of_cupy
from dlbridge.exchange import exchange
from dlbridge.kernels.binding import Direct, Sliced
from dlbridge.kernels.kinds.python_kernel import Support


class CuPy(Sliced, Direct):
    """cupy.ndarray: the core reads it by its attributes, once it has met one in CUDA memory."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        cupy = sys.modules["cupy"]
        if not cupy.cuda.runtime.is_hip:
            native.cupy_open(cupy.ndarray, cupy.cuda.get_current_stream)
        return super().working(like)


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
