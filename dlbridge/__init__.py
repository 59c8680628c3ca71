"""The bridge between tensor frameworks: one tensor in every framework, without a copy."""

from dlbridge._core import ffi, lib, native
from dlbridge.conversions import (
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
from dlbridge.device import Device, DeviceType
from dlbridge.dtype import DType
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
    ViewError,
)
from dlbridge.exchange import as_tensor, explain, to_dlpack
from dlbridge.memory import (
    Allocator,
    CPUAllocator,
    ExchangeAllocator,
    TensorBuffer,
    empty,
    from_buffer,
    full,
    zeros,
)
from dlbridge.receipts import Receipt, receipts
from dlbridge.shape import TensorShape
from dlbridge.tensor import Tensor
from dlbridge.trees import convert_tree
from dlbridge.values import equal

from_dlpack = native.from_dlpack
convert = native.convert
__version__ = "0.1.0"

__all__ = [
    "AllocationError",
    "Allocator",
    "ArgumentError",
    "CPUAllocator",
    "DLBridgeError",
    "DType",
    "Device",
    "DeviceType",
    "ExchangeAllocator",
    "ExchangeError",
    "FrameworkMissingError",
    "Receipt",
    "Tensor",
    "TensorBuffer",
    "TensorShape",
    "UnsupportedTypeError",
    "ViewError",
    "as_tensor",
    "convert",
    "convert_tree",
    "empty",
    "equal",
    "explain",
    "ffi",
    "from_buffer",
    "from_dlpack",
    "full",
    "lib",
    "receipts",
    "to_cupy",
    "to_dlpack",
    "to_dpnp",
    "to_jax",
    "to_mlx",
    "to_mxnet",
    "to_numpy",
    "to_paddle",
    "to_pyarrow",
    "to_tensorflow",
    "to_torch",
    "to_tvm",
    "zeros",
]
