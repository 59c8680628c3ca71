"""The bridge between tensor frameworks: one tensor in every framework, without a copy."""

from importlib import import_module
from typing import TYPE_CHECKING

from dlbridge._core import ffi, lib, native
from dlbridge.device import Device, DeviceType
from dlbridge.dtype import DType
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    CUDAError,
    DLBridgeError,
    ExchangeError,
    FrameworkMissingError,
    KernelError,
    UnsupportedTypeError,
    ViewError,
)
from dlbridge.exchange.exchange import as_tensor, explain, to_dlpack
from dlbridge.exchange.receipts import Receipt, receipts
from dlbridge.exchange.trees import convert_tree
from dlbridge.frameworks.conversions import (
    to_cupy,
    to_dpnp,
    to_jax,
    to_mlx,
    to_mxnet,
    to_numpy,
    to_paddle,
    to_pyarrow,
    to_tensorflow,
    to_torch,
    to_tvm,
)
from dlbridge.shape import TensorShape
from dlbridge.tensor.memory import (
    Allocator,
    CPUAllocator,
    ExchangeAllocator,
    TensorBuffer,
    empty,
    from_buffer,
    full,
    set_allocator,
    zeros,
)
from dlbridge.tensor.tensor import Tensor
from dlbridge.tensor.values import equal

if TYPE_CHECKING:
    from dlbridge.kernels.compile import compile_c
    from dlbridge.kernels.functions import (
        convert_func,
        to_cupy_func,
        to_jax_func,
        to_mxnet_func,
        to_numpy_func,
        to_paddle_func,
        to_pytorch_func,
        to_tensorflow_func,
        to_tvm_func,
    )
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.library import Library, load_library
    from dlbridge.kernels.schema import Schema
    from dlbridge.kernels.wrap import wrap

from_dlpack = native.from_dlpack
convert = native.convert
__version__ = "0.1.0"

__all__ = [
    "AllocationError",
    "Allocator",
    "ArgumentError",
    "CPUAllocator",
    "CUDAError",
    "DLBridgeError",
    "DType",
    "Device",
    "DeviceType",
    "ExchangeAllocator",
    "ExchangeError",
    "FrameworkMissingError",
    "Kernel",
    "KernelError",
    "Library",
    "Receipt",
    "Schema",
    "Tensor",
    "TensorBuffer",
    "TensorShape",
    "UnsupportedTypeError",
    "ViewError",
    "as_tensor",
    "compile_c",
    "convert",
    "convert_func",
    "convert_tree",
    "empty",
    "equal",
    "explain",
    "ffi",
    "from_buffer",
    "from_dlpack",
    "full",
    "lib",
    "load_library",
    "receipts",
    "set_allocator",
    "to_cupy",
    "to_cupy_func",
    "to_dlpack",
    "to_dpnp",
    "to_jax",
    "to_jax_func",
    "to_mlx",
    "to_mxnet",
    "to_mxnet_func",
    "to_numpy",
    "to_numpy_func",
    "to_paddle",
    "to_paddle_func",
    "to_pyarrow",
    "to_pytorch_func",
    "to_tensorflow",
    "to_tensorflow_func",
    "to_torch",
    "to_tvm",
    "to_tvm_func",
    "wrap",
    "zeros",
]

# Kernels are imported when one of their names is first used: name -> module of dlbridge.kernels.
_KERNELS = {
    "Kernel": "kernel",
    "Library": "library",
    "Schema": "schema",
    "compile_c": "compile",
    "load_library": "library",
    "wrap": "wrap",
    **{name: "functions" for name in __all__ if name.endswith("_func")},
}


def __getattr__(name: str) -> object:
    """Import what belongs to kernels."""
    if name not in _KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"dlbridge.kernels.{_KERNELS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
