"""The bridge between tensor frameworks: one tensor in every framework, without a copy."""

from importlib import import_module
from typing import TYPE_CHECKING

from dlbridge import registry as _registry
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
from dlbridge.frameworks import conversions as _conversions
from dlbridge.frameworks.conversions import *  # noqa: F403  (has `__all__`)
from dlbridge.frameworks.conversions import register_framework
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
    from dlbridge.kernels.functions import *  # noqa: F403  (has `__all__`)
    from dlbridge.kernels.functions import convert_func
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.library import Library, load_library
    from dlbridge.kernels.schema.schema import Schema
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
    "register_framework",
    "set_allocator",
    "to_dlpack",
    "wrap",
    "zeros",
]

_FUNCTIONS = [row.func for row in _registry.rows() if row.name != "dlbridge"]
__all__ += _conversions.__all__
__all__ += _FUNCTIONS
__all__.sort()

# Kernels are imported when one of their names is first used: name -> module of dlbridge.kernels.
_KERNELS = {
    "Kernel": "kernel",
    "Library": "library",
    "Schema": "schema.schema",
    "compile_c": "compile",
    "convert_func": "functions",
    "load_library": "library",
    "wrap": "wrap",
    **dict.fromkeys(_FUNCTIONS, "functions"),
}


def __getattr__(name: str) -> object:
    """Import what belongs to kernels, and find what belongs to frameworks registered since."""
    module: object = _conversions
    is_function = any(row.func == name for row in _registry.rows())
    if is_function or name in _KERNELS:
        module = import_module(f"dlbridge.kernels.{_KERNELS.get(name, 'functions')}")
    elif not name.startswith("to_") or not hasattr(_conversions, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
