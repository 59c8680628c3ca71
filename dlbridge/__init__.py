"""The bridge between tensor frameworks: one tensor in every framework, without a copy.

`ffi` and `lib` are the low-level door: the C structs of DLPack and the core's cold functions, by
cffi, for code that reads or writes them itself (`ffi.new("DLTensor *")`, `Tensor.dltensor`). Other
code does not need them.
"""

from importlib import import_module
from os import environ as _environ
from sys import modules as _modules
from typing import TYPE_CHECKING

from dlbridge import checkout as _checkout  # noqa: F401  (first of all)
from dlbridge import registry as _registry
from dlbridge._core import ffi, lib, native
from dlbridge.device import Device, DeviceType
from dlbridge.dtype import (
    DType,
    bcomplex32,
    bfloat16,
    bool_,
    complex32,
    complex64,
    complex128,
    float4_e2m1fn,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e3m4,
    float8_e4m3,
    float8_e4m3b11fnuz,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    CUDAError,
    DLBridgeError,
    ExchangeError,
    FrameworkMissingError,
    KernelDefectError,
    KernelError,
    UnsupportedTypeError,
    ViewError,
)
from dlbridge.exchange.context import Receipt, receipts
from dlbridge.exchange.exchange import as_tensor, asarray, explain, to_dlpack
from dlbridge.exchange.stream import Stream, StreamReport, stream
from dlbridge.exchange.trees import convert_tree
from dlbridge.frameworks import conversions as _conversions
from dlbridge.frameworks.conversions import *  # noqa: F403  (has `__all__`)
from dlbridge.frameworks.conversions import register_framework
from dlbridge.shape import TensorShape
from dlbridge.tensor.allocator import (
    Allocator,
    CPUAllocator,
    CUDAAllocator,
    ExchangeAllocator,
    set_allocator,
)
from dlbridge.tensor.memory import (
    aligned_numpy,
    arange,
    empty,
    empty_like,
    from_buffer,
    full,
    full_like,
    ones,
    ones_like,
    set_aligned_numpy,
    trim,
    zeros,
    zeros_like,
)
from dlbridge.tensor.tensor import Tensor
from dlbridge.tensor.values import equal

if TYPE_CHECKING:
    from dlbridge.check import check_consumer, check_producer, doctor, faults, inspect, ledger
    from dlbridge.frameworks.bridging import bridge
    from dlbridge.frameworks.conversions import convert, from_dlpack
    from dlbridge.frameworks.onnxruntime.binding import register_onnxruntime
    from dlbridge.frameworks.torch.exporting import onnx_translations
    from dlbridge.kernels.cuda_source import compile_cuda
    from dlbridge.kernels.debugging import debug_kernels
    from dlbridge.kernels.functions import *  # noqa: F403  (has `__all__`)
    from dlbridge.kernels.functions import convert_func
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.library import Library, compile_c, compile_cpp, load_library
    from dlbridge.kernels.packages import load_package
    from dlbridge.kernels.schema import Schema
    from dlbridge.kernels.wrap import wrap

bool = bool_  # noqa: A001  (not among what `*` imports)
if not TYPE_CHECKING:
    from_dlpack = native.from_dlpack
    convert = native.convert
TensorBuffer = native.TensorBuffer
__version__ = "0.1.0"

__all__ = [
    "AllocationError",
    "Allocator",
    "ArgumentError",
    "CPUAllocator",
    "CUDAAllocator",
    "CUDAError",
    "DLBridgeError",
    "DType",
    "Device",
    "DeviceType",
    "ExchangeAllocator",
    "ExchangeError",
    "FrameworkMissingError",
    "Kernel",
    "KernelDefectError",
    "KernelError",
    "Library",
    "Receipt",
    "Schema",
    "Stream",
    "StreamReport",
    "Tensor",
    "TensorBuffer",
    "TensorShape",
    "UnsupportedTypeError",
    "ViewError",
    "aligned_numpy",
    "arange",
    "as_tensor",
    "asarray",
    "bcomplex32",
    "bfloat16",
    "bool_",
    "bridge",
    "check_consumer",
    "check_producer",
    "compile_c",
    "compile_cpp",
    "compile_cuda",
    "complex128",
    "complex32",
    "complex64",
    "convert",
    "convert_func",
    "convert_tree",
    "debug_kernels",
    "empty",
    "empty_like",
    "equal",
    "explain",
    "ffi",
    "float16",
    "float32",
    "float4_e2m1fn",
    "float64",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "faults",
    "from_buffer",
    "from_dlpack",
    "full",
    "full_like",
    "doctor",
    "inspect",
    "ledger",
    "int16",
    "int2",
    "int32",
    "int4",
    "int64",
    "int8",
    "lib",
    "load_library",
    "load_package",
    "ones",
    "onnx_translations",
    "ones_like",
    "receipts",
    "register_framework",
    "register_onnxruntime",
    "set_aligned_numpy",
    "set_allocator",
    "stream",
    "to_dlpack",
    "trim",
    "uint16",
    "uint2",
    "uint32",
    "uint4",
    "uint64",
    "uint8",
    "wrap",
    "zeros",
    "zeros_like",
]

_FUNCTIONS = [row.func for row in _registry.rows() if row.name != "dlbridge"]
__all__ += _conversions.__all__
__all__ += _FUNCTIONS
__all__.sort()

# Kernels and checks are imported when one of their names is first used: name -> module.
_LATER = {
    "Kernel": "kernels.kernel",
    "Library": "kernels.library",
    "Schema": "kernels.schema",
    "bridge": "frameworks.bridging",
    "compile_c": "kernels.library",
    "compile_cpp": "kernels.library",
    "compile_cuda": "kernels.cuda_source",
    "convert_func": "kernels.functions",
    "check_consumer": "check",
    "check_producer": "check",
    "debug_kernels": "kernels.debugging",
    "doctor": "check",
    "faults": "check",
    "inspect": "check",
    "ledger": "check",
    "load_library": "kernels.library",
    "load_package": "kernels.packages",
    "onnx_translations": "frameworks.torch.exporting",
    "register_onnxruntime": "frameworks.onnxruntime.binding",
    "wrap": "kernels.wrap",
    **dict.fromkeys(_FUNCTIONS, "kernels.functions"),
}


if not TYPE_CHECKING:  # a name that is not there is an error for type checkers

    def __getattr__(name: str) -> object:
        """Import what is left for later, and find what belongs to frameworks registered since."""
        module: object = _conversions
        is_function = any(row.func == name for row in _registry.rows())
        if is_function or name in _LATER:
            part = _LATER.get(name, "kernels.functions")
            module = _registry.load(import_module, f"dlbridge.{part}")
        elif not name.startswith("to_") or not hasattr(_conversions, name):
            from dlbridge.text import did_you_mean

            named = f"to_{_registry.canonical_name(name[3:])}" if name.startswith("to_") else name
            known = named != name and hasattr(_conversions, named)
            nearest = did_you_mean(named if known else name, __dir__())
            if name in ("cuda", "graph", "mpi", "proto", "testing"):
                nearest = f"; import dlbridge.{name} first"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest}")
        value = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_is_replaced = _modules[__name__].__dict__ is not globals()  # by `checkout`
if _environ.get("DLBRIDGE_LEDGER", "0") != "0" and not _is_replaced:
    from dlbridge.check.lifetimes import watch_process as _watch_process

    _watch_process()
