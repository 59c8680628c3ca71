"""Python functions of CuPy arrays as kernels: what the calls need of CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from dlbridge._core import native
from dlbridge.cuda.driver import stream_of_cupy
from dlbridge.exchange import exchange
from dlbridge.kernels.kinds.python_kernel import Support


class CuPySupport(Support):
    """Arrays of CuPy, which cannot tell whether one is written."""

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


SUPPORT = CuPySupport
