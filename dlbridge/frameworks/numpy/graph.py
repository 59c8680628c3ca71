"""How NumPy runs the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.backend import Backend, to_numpy
from dlbridge.execution.quiet import without_warnings
from dlbridge.proto.datatypes import DataType


class _NumPy(Backend):
    name = "numpy"
    namespace = "array_api_compat.numpy"
    twin = "cupy"  # NumPy has no devices

    def dtype(self, data_type: DataType) -> Any:
        return data_type.numpy

    def asarray(self, host: Any, device: Any) -> Any:
        return host

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        return to_numpy

    def is_exact(self, ufunc: str, dtype: DataType) -> bool:
        return True

    guard = staticmethod(without_warnings)


BACKEND = _NumPy()
