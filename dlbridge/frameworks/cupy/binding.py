"""Calls of kernels with cupy.ndarray."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.kernels.binding import Streaming


class CuPy(Streaming):
    """cupy.ndarray: the core reads it by its attributes, once it has met one in CUDA memory."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        cupy = sys.modules["cupy"]
        if not cupy.cuda.runtime.is_hip:
            native.cupy_open(cupy.ndarray, cupy.cuda.get_current_stream)
        return super().working(like)


def _allocate(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    with like.device:
        return sys.modules["cupy"].empty(shape, dtype.numpy)


BINDING = CuPy("cupy", _allocate)
