"""The frameworks that need nothing but the direct route, and what sets each of them apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dlbridge import adapter, cuda, exchange, protocol
from dlbridge._core import native
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.kernels.binding import Binding

_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
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
        if kind not in _CUDA:
            return nullcontext()
        return cuda.stream(adapter.adapter(self.name).stream(index), index)


class CuPy(Streaming):
    """cupy.ndarray: the core reads it by its attributes, once it has met one in CUDA memory."""

    def working(self, like: Any) -> AbstractContextManager[Any]:
        cupy = sys.modules["cupy"]
        if not cupy.cuda.runtime.is_hip:
            native.cupy_open(cupy.ndarray, cupy.cuda.get_current_stream)
        return super().working(like)


class MXNet(Direct):
    """mxnet.nd.NDArray and mxnet.np.ndarray: results have the class of the first argument."""

    def take(self, value: Any, written: bool) -> native.TensorBase:
        """Take an array, but none while operations are recorded: kernels are not among them."""
        if sys.modules["mxnet"].autograd.is_recording():
            raise ExchangeError(
                "requires_grad",
                "the call would be missing in the gradient that mxnet.autograd records; call it "
                "under mxnet.autograd.pause()",
            )
        if value.stype == "default" and value.grad is not None:
            value = value.detach()  # the same memory; nothing that is not recorded has a gradient
        return super().take(value, written)

    def give(self, tensor: native.TensorBase, like: Any) -> Any:
        made = exchange.convert(tensor, self.name)
        is_numpy_like = isinstance(like, sys.modules["mxnet"].np.ndarray)
        return made.as_np_ndarray() if is_numpy_like else made


# ---- memory on devices ---------------------------------------------------------------------------


def _allocate_cupy(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    with like.device:
        return sys.modules["cupy"].empty(shape, dtype.numpy)


def _allocate_dpnp(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    return sys.modules["dpnp"].empty(shape, dtype=dtype.numpy, sycl_queue=like.sycl_queue)


BINDINGS: dict[str, Binding] = {
    "cupy": CuPy("cupy", _allocate_cupy),
    "dpnp": Direct("dpnp", _allocate_dpnp),
    "tvm": Streaming("tvm"),
    "mxnet": MXNet("mxnet"),
    "mlx": Direct("mlx", is_immutable=True),
    "pyarrow": Direct("pyarrow"),
    "dlbridge": Direct("dlbridge"),
}
