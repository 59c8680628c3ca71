"""Bindings of frameworks that need nothing but the direct route."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.device import CUDA_TYPES, Device
from dlbridge.dtype import DType
from dlbridge.exchange import adapter, protocol
from dlbridge.kernels.binding import Binding

Allocate = Callable[[tuple[int, ...], DType, Any], Any]


class Direct(Binding):
    """A framework on the direct route; results on a device are allocated by `allocate`."""

    def __init__(
        self, name: str, allocate: Allocate | None = None, *, is_immutable: bool = False
    ) -> None:
        self.name = name
        self.is_immutable = is_immutable
        self._allocate = allocate

    def new(
        self, shape: tuple[int, ...], dtype: DType, device: Device | None, like: Any
    ) -> native.TensorBase:
        if device is None or device.is_host_accessible or self._allocate is None:
            return super().new(shape, dtype, device, like)
        return self.take(self._allocate(shape, dtype, like), True)


class Streaming(Direct):
    """cupy.ndarray and tvm_ffi.Tensor: kernels run on their current stream, as their own work."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block on the framework's current stream of the device of `like`."""
        kind, index = (0, 0) if like is None else protocol.dlpack_device(like)
        if kind not in CUDA_TYPES:
            return nullcontext()
        return cuda.stream(adapter.adapter(self.name).stream(index), index)
