"""Calls of kernels with dpnp arrays."""

from __future__ import annotations

import sys
from typing import Any

from dlbridge.dtype import DType
from dlbridge.kernels.binding import Direct


def _allocate(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    return sys.modules["dpnp"].empty(shape, dtype=dtype.numpy, sycl_queue=like.sycl_queue)


BINDING = Direct("dpnp", _allocate)
