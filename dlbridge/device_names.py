"""What every framework calls a device: from its objects to DLDevice fields, and back.

Fields are (device type number, id). A reader is chosen by the module of the object's type, so
nothing is imported to read; `write_device` imports the framework that it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from operator import index
from typing import Any

from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)

Fields = tuple[int, int]


class DeviceType(IntEnum):
    """The device types of DLPack 1.3."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    OPENCL = 4
    VULKAN = 7
    METAL = 8
    VPI = 9
    ROCM = 10
    ROCM_HOST = 11
    EXT_DEV = 12
    CUDA_MANAGED = 13
    ONEAPI = 14
    WEBGPU = 15
    HEXAGON = 16
    MAIA = 17
    TRN = 18


# kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged: the CPU can read the memory.
HOST_TYPES = frozenset((1, 3, 11, 13))
# kDLCUDA, kDLCUDAManaged: work on the memory is ordered by streams.
CUDA_TYPES = frozenset((2, 13))
_TYPES: dict[str, DeviceType] = {
    **{kind.name.lower(): kind for kind in DeviceType},
    "gpu": DeviceType.CUDA,  # TensorFlow and Paddle; torch, JAX and CuPy are asked for ROCm
    "gpu_pinned": DeviceType.CUDA_HOST,
    "hip": DeviceType.ROCM,
    "mps": DeviceType.METAL,
    "xpu": DeviceType.ONEAPI,
}


def read_device(x: Any) -> Fields:
    """Return the fields of any framework's device, or of a name or pair; see `as_device`."""
    if isinstance(x, str):
        return _from_name(x)
    if isinstance(x, tuple) and len(x) == 2 and not hasattr(x, "_fields"):
        return _from_pair(x[0], x[1])
    reader = _READERS.get(str(type(x).__module__).partition(".")[0])
    if reader is None:
        raise _unsupported(x)
    try:
        return reader(x)
    except AttributeError:
        raise _unsupported(x) from None


def _unsupported(x: object) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"Device: cannot read {type(x).__name__} {x!r} as a device; pass a name such as 'cuda:0', "
        "a framework's device or a pair (type, id)"
    )


def _from_name(name: str) -> Fields:
    last = name.rpartition("/")[2].lower()
    parts = last.split(":")
    if parts[0] in ("device", "physical_device"):
        del parts[0]
    kind = _TYPES.get(parts[0]) if parts else None
    number = parts[1] if len(parts) == 2 else "0"
    if kind is None or len(parts) > 2 or not (number.isascii() and number.isdecimal()):
        raise ArgumentError(
            f"Device: unknown name {name!r}; known are {', '.join(_TYPES)}, each with :N for id N"
        )
    return kind, int(number)


def _from_pair(kind: Any, number: Any) -> Fields:
    try:
        return index(kind), 0 if number is None else index(number)
    except TypeError:
        raise _unsupported((kind, number)) from None


def _from_kind(x: object, name: str, number: int | None) -> Fields:
    """Return the fields of a framework's own kind name; `meta` and its like have none."""
    if name not in _TYPES:
        raise ExchangeError("device", f"DLPack has no device for {x!r}")
    return _TYPES[name], number or 0


def _from_torch(x: Any) -> Fields:
    kind = x.type
    if not isinstance(kind, str):  # a tensor's type() is a method
        raise _unsupported(x)
    if kind == "cuda" and sys.modules["torch"].version.hip is not None:
        kind = "rocm"
    return _from_kind(x, kind, x.index)


def _from_jax(x: Any) -> Fields:
    kind: str = x.platform.lower()
    if kind == "gpu" and "rocm" in x.client.platform_version.lower():
        kind = "rocm"
    local = x.id if kind == "cpu" else x.local_hardware_id
    return _from_kind(x, kind, x.id if local is None else local)


def _from_tensorflow(x: Any) -> Fields:
    return _from_name(x.to_string() if hasattr(x, "to_string") else x.name)


def _from_cupy(x: Any) -> Fields:
    is_hip = sys.modules["cupy"].cuda.runtime.is_hip
    return DeviceType.ROCM if is_hip else DeviceType.CUDA, x.id


def _from_tvm(x: Any) -> Fields:
    if hasattr(x, "dlpack_device_type"):
        return x.dlpack_device_type(), x.index
    return x.device_type, x.device_id


def _from_paddle(x: Any) -> Fields:
    if not type(x).__name__.endswith("Place"):
        raise _unsupported(x)
    kind, _, number = str(x).removeprefix("Place(").removesuffix(")").partition(":")
    return _from_kind(x, kind, int(number or 0))


def _from_mlx(x: Any) -> Fields:
    kind: str = getattr(x, "type", x).name  # mx.Device(mx.gpu, 1) or mx.gpu
    number = str(x).rpartition(",")[2].strip(" )")  # "Device(gpu, 1)": the only place that says
    if kind == "gpu" and not sys.modules["mlx.core"].cuda.is_available():
        kind = "metal"
    return _from_kind(x, kind, int(number) if number.isdecimal() else 0)


def _from_sycl(x: Any) -> Fields:
    device = getattr(x, "sycl_device", x)
    return DeviceType.ONEAPI, device.get_device_id()


def _from_struct(x: Any) -> Fields:
    return x.device_type, x.device_id


# The first part of type(x).__module__.
_READERS: dict[str, Callable[[Any], Fields]] = {
    "_cffi_backend": _from_struct,
    "cuda": lambda x: (DeviceType.CUDA, x.device_id),
    "cupy": _from_cupy,
    "dpctl": _from_sycl,
    "dpnp": _from_sycl,
    "jax": _from_jax,
    "jaxlib": _from_jax,
    "mlx": _from_mlx,
    "paddle": _from_paddle,
    "tensorflow": _from_tensorflow,
    "torch": _from_torch,
    "tvm": _from_tvm,
    "tvm_ffi": _from_tvm,
}


def write_device(device_type: int, device_id: int, framework: str) -> Any:
    """Return the device object of `framework` for these fields; see `Device.to`."""
    if framework not in _WRITERS:
        raise ArgumentError(
            f"Device.to: unknown framework {framework!r}; known are {', '.join(_WRITERS)}"
        )
    module_name, kinds, write = _WRITERS[framework]
    own = kinds.get(device_type)
    kind = own or (kinds.get(DeviceType.CPU) if device_type in HOST_TYPES else None)
    text = f"{framework} has no device for {DeviceType(device_type).name.lower()}:{device_id}"
    if kind is None:
        raise ExchangeError("device", text)
    module = _import(module_name)
    try:
        found = write(module, kind, device_id if own else 0)
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ExchangeError("device", f"{text}: {error}") from error
    if own and read_device(found)[0] != device_type:
        raise ExchangeError("device", f"{text}: {found!r} is another here")  # cuda that is not ROCm
    return found


def _import(module_name: str) -> Any:
    try:
        return import_module(module_name)
    except ImportError as error:
        raise FrameworkMissingError(f"Device.to: cannot import {module_name}: {error}") from error


def _write_cpu(_module: Any, kind: str, _number: int) -> Any:
    return kind


def _write_torch(module: Any, kind: str, number: int) -> Any:
    return module.device(kind) if kind == "cpu" else module.device(kind, number)


def _write_jax(module: Any, kind: str, number: int) -> Any:
    found = [x for x in module.local_devices(backend=kind) if read_device(x)[1] == number]
    if not found:
        raise ValueError(f"no local device with id {number}")
    return found[0]


def _write_tensorflow(_module: Any, kind: str, number: int) -> Any:
    return f"/device:{kind}:{number}"


def _write_tvm(module: Any, kind: str, number: int) -> Any:
    return module.device(int(DeviceType[kind]), number)


def _write_paddle(module: Any, kind: str, number: int) -> Any:
    place = getattr(module, kind)
    return place() if kind in ("CPUPlace", "CUDAPinnedPlace") else place(number)


def _write_mlx(module: Any, kind: str, number: int) -> Any:
    return module.Device(getattr(module, kind), number)


def _write_cupy(module: Any, _kind: str, number: int) -> Any:
    return module.cuda.Device(number)


# Framework -> module to import, its names of device types, and its object for name and id.
_WRITERS: dict[str, tuple[str, dict[int, str], Callable[[Any, str, int], Any]]] = {
    "numpy": ("numpy", {1: "cpu"}, _write_cpu),
    "torch": (
        "torch",
        {1: "cpu", 2: "cuda", 7: "vulkan", 8: "mps", 10: "cuda", 14: "xpu", 17: "maia"},
        _write_torch,
    ),
    "jax": ("jax", {1: "cpu", 2: "cuda", 8: "metal", 10: "rocm"}, _write_jax),
    "tensorflow": ("tensorflow", {1: "CPU", 2: "GPU"}, _write_tensorflow),
    "tvm": ("tvm_ffi", {int(kind): kind.name for kind in DeviceType}, _write_tvm),
    "paddle": (
        "paddle",
        {1: "CPUPlace", 2: "CUDAPlace", 3: "CUDAPinnedPlace", 14: "XPUPlace"},
        _write_paddle,
    ),
    "mlx": ("mlx.core", {1: "cpu", 2: "gpu", 8: "gpu"}, _write_mlx),
    "cupy": ("cupy", {2: "cuda", 10: "cuda"}, _write_cupy),
}
