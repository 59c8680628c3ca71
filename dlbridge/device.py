"""Device: a DLPack device as a value, and what every framework calls it.

A Device is a device type number and an id. There is one object for each, so `is` and `==` agree.
`Device(x)` reads what any framework uses as a device; `.to(name)` gives that framework's own
object. No framework is imported before `.to` asks for it.

Host memory is one device whatever its id: frameworks number "cpu:1" for their own bookkeeping.
The id is kept as given; ask `is_host_accessible` when only the memory matters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from operator import index
from typing import Any, NoReturn, final

from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)


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


_HOST_ACCESSIBLE = frozenset(
    (DeviceType.CPU, DeviceType.CUDA_HOST, DeviceType.ROCM_HOST, DeviceType.CUDA_MANAGED)
)
_TYPES: dict[str, DeviceType] = {
    **{kind.name.lower(): kind for kind in DeviceType},
    "gpu": DeviceType.CUDA,  # TensorFlow and Paddle; torch, JAX and CuPy are asked for ROCm
    "gpu_pinned": DeviceType.CUDA_HOST,
    "hip": DeviceType.ROCM,
    "mps": DeviceType.METAL,
    "xpu": DeviceType.ONEAPI,
}

_interned: dict[tuple[int, int], Device] = {}


@final
class Device:
    """One DLPack device: `type`, a DeviceType, and `id`, its index.

    Equality accepts everything that `Device(x)` accepts (`Device("cuda:0") == (2, 0)`) and is False
    for anything else. The hash is that of a Device: dicts do not mix Devices with other libraries'.

    Example:
        >>> Device("cuda"), str(Device((1, 0))), Device("/job:a/device:GPU:1") == "cuda:1"
        (Device('cuda:0'), 'cpu', True)
    """

    __slots__ = ("id", "type")

    type: DeviceType
    id: int

    def __new__(cls, x: object) -> Device:
        """Return the Device that `x` stands for; see `as_device`."""
        return as_device(x)

    @property
    def pair(self) -> tuple[int, int]:
        """(type number, id), as `__dlpack_device__` returns it."""
        return int(self.type), self.id

    @property
    def is_host_accessible(self) -> bool:
        """True when the CPU can read the memory: cpu, cuda_host, rocm_host, cuda_managed."""
        return self.type in _HOST_ACCESSIBLE

    def to(self, framework: str) -> Any:
        """Return the device object of `framework`, importing that framework if need be.

        Args:
            framework: "numpy" (gives "cpu"), "torch", "jax", "tensorflow" (gives a name), "tvm",
                "paddle", "mlx", "cupy". Pinned and managed memory is "cpu" where the framework
                has no better name.

        Raises:
            ExchangeError: reason "device"; the framework has no such device here.
            FrameworkMissingError: it is not installed.
        """
        return _export(self, framework)

    def __eq__(self, other: object) -> bool:
        if type(other) is Device:
            return self is other
        try:
            return as_device(other) is self
        except DLBridgeError:
            return NotImplemented

    __hash__ = object.__hash__

    def __str__(self) -> str:
        name = self.type.name.lower()
        return name if self.pair == (1, 0) else f"{name}:{self.id}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __reduce__(self) -> tuple[Callable[[int, int], Device], tuple[int, int]]:
        return make_device, self.pair

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Device is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Device is immutable: cannot delete {name}")


def make_device(type_number: int, id: int = 0) -> Device:
    """Return the one Device of these DLDevice fields.

    Raises:
        ExchangeError: reason "device"; DLPack 1.3 has no such type, or the id exceeds 32 bits.
    """
    try:
        return _interned[type_number, id]
    except KeyError:
        return _create(int(type_number), int(id))


def _create(number: int, id: int) -> Device:
    try:
        kind = DeviceType(number)
    except ValueError:
        raise ExchangeError("device", f"DLPack 1.3 has no device type {number}") from None
    if not -(2**31) <= id < 2**31:
        raise ExchangeError("device", f"a device id has 32 bits, got {id}")
    created = object.__new__(Device)
    object.__setattr__(created, "type", kind)
    object.__setattr__(created, "id", id)
    return _interned.setdefault((number, id), created)


def as_device(x: object) -> Device:
    """Return the Device that `x` stands for.

    Args:
        x: a Device; a name ("cpu", "cuda:1", "metal", "/job:a/device:GPU:0"), id 0 if it has none;
            a pair (type, id) as `__dlpack_device__` returns it, where None means id 0; a device
            of PyTorch, JAX, TensorFlow, CuPy, cuda.core, TVM, Paddle, MLX, dpctl or dpnp; a cffi
            `DLDevice`.

    Raises:
        ExchangeError: reason "device"; a device that DLPack cannot name.
        ArgumentError: an unknown name.
        UnsupportedTypeError: not a device at all.
    """
    if type(x) is Device:
        return x
    if isinstance(x, str):
        return _from_name(x)
    if isinstance(x, tuple) and len(x) == 2 and not hasattr(x, "_fields"):
        return _from_pair(x[0], x[1])
    reader = _READERS.get(type(x).__module__.partition(".")[0])
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


def _from_name(name: str) -> Device:
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
    return make_device(kind, int(number))


def _from_pair(kind: Any, id: Any) -> Device:
    try:
        return make_device(index(kind), 0 if id is None else index(id))
    except TypeError:
        raise _unsupported((kind, id)) from None


def _from_kind(x: object, name: str, id: int | None) -> Device:
    """Return the Device of a framework's own kind name; `meta` and its like have none."""
    if name not in _TYPES:
        raise ExchangeError("device", f"DLPack has no device for {x!r}")
    return make_device(_TYPES[name], id or 0)


def _from_torch(x: Any) -> Device:
    kind: str = x.type
    if kind == "cuda" and sys.modules["torch"].version.hip is not None:
        kind = "rocm"
    return _from_kind(x, kind, x.index)


def _from_jax(x: Any) -> Device:
    kind: str = x.platform.lower()
    if kind == "gpu" and "rocm" in x.client.platform_version.lower():
        kind = "rocm"
    local = x.id if kind == "cpu" else x.local_hardware_id
    return _from_kind(x, kind, x.id if local is None else local)


def _from_tensorflow(x: Any) -> Device:
    return _from_name(x.to_string() if hasattr(x, "to_string") else x.name)


def _from_cupy(x: Any) -> Device:
    is_hip = sys.modules["cupy"].cuda.runtime.is_hip
    return make_device(DeviceType.ROCM if is_hip else DeviceType.CUDA, x.id)


def _from_tvm(x: Any) -> Device:
    if hasattr(x, "dlpack_device_type"):
        return make_device(x.dlpack_device_type(), x.index)
    return make_device(x.device_type, x.device_id)


def _from_paddle(x: Any) -> Device:
    kind, _, id = str(x).removeprefix("Place(").removesuffix(")").partition(":")
    return _from_kind(x, kind, int(id or 0))


def _from_mlx(x: Any) -> Device:
    kind: str = getattr(x, "type", x).name  # mx.Device(mx.gpu, 1) or mx.gpu
    number = str(x).rpartition(",")[2].strip(" )")  # "Device(gpu, 1)": the only place that says
    if kind == "gpu" and not sys.modules["mlx.core"].cuda.is_available():
        kind = "metal"
    return _from_kind(x, kind, int(number) if number.isdecimal() else 0)


def _from_sycl(x: Any) -> Device:
    device = getattr(x, "sycl_device", x)
    return make_device(DeviceType.ONEAPI, device.get_device_id())


def _from_struct(x: Any) -> Device:
    return make_device(x.device_type, x.device_id)


# The first part of type(x).__module__.
_READERS: dict[str, Callable[[Any], Device]] = {
    "_cffi_backend": _from_struct,
    "cuda": lambda x: make_device(DeviceType.CUDA, x.device_id),
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


def _export(device: Device, framework: str) -> Any:
    if framework not in _WRITERS:
        raise ArgumentError(
            f"Device.to: unknown framework {framework!r}; known are {', '.join(_WRITERS)}"
        )
    module, kinds, write = _WRITERS[framework]
    own_kind = kinds.get(device.type)
    kind = own_kind or (kinds.get(DeviceType.CPU) if device.is_host_accessible else None)
    if kind is None:
        raise ExchangeError("device", f"{framework} has no device for {device}")
    try:
        found = write(import_module(module), kind, device.id if own_kind else 0)
        if own_kind and as_device(found).type != device.type:  # torch's cuda that is not ROCm
            raise ValueError(f"{kind} is {as_device(found)} here")
        return found
    except ImportError as error:
        raise FrameworkMissingError(f"Device.to: {framework} is not installed: {error}") from error
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ExchangeError("device", f"{framework} has no device {device}: {error}") from error


def _write_jax(module: Any, kind: str, id: int) -> Any:
    found = [x for x in module.local_devices(backend=kind) if as_device(x).id == id]
    if not found:
        raise ValueError(f"no local device with id {id}")
    return found[0]


def _write_paddle(module: Any, kind: str, id: int) -> Any:
    place = getattr(module, kind)
    return place() if kind in ("CPUPlace", "CUDAPinnedPlace") else place(id)


def _write_mlx(module: Any, kind: str, id: int) -> Any:
    return module.Device(getattr(module, kind), id)


# Framework -> module to import, its names of device types, and its object for name and id.
_WRITERS: dict[str, tuple[str, dict[int, str], Callable[[Any, str, int], Any]]] = {
    "numpy": ("numpy", {1: "cpu"}, lambda module, kind, id: kind),
    "torch": (
        "torch",
        {1: "cpu", 2: "cuda", 7: "vulkan", 8: "mps", 10: "cuda", 14: "xpu", 17: "maia"},
        lambda module, kind, id: module.device(kind) if kind == "cpu" else module.device(kind, id),
    ),
    "jax": ("jax", {1: "cpu", 2: "cuda", 10: "rocm", 8: "metal"}, _write_jax),
    "tensorflow": (
        "tensorflow",
        {1: "CPU", 2: "GPU"},
        lambda module, kind, id: f"/device:{kind}:{id}",
    ),
    "tvm": (
        "tvm_ffi",
        {int(kind): kind.name for kind in DeviceType},
        lambda module, kind, id: module.device(int(DeviceType[kind]), id),
    ),
    "paddle": (
        "paddle",
        {1: "CPUPlace", 2: "CUDAPlace", 3: "CUDAPinnedPlace", 10: "CUDAPlace", 14: "XPUPlace"},
        _write_paddle,
    ),
    "mlx": ("mlx.core", {1: "cpu", 2: "gpu", 8: "gpu"}, _write_mlx),
    "cupy": (
        "cupy",
        {2: "cuda", 10: "cuda", 13: "cuda"},
        lambda module, kind, id: module.cuda.Device(id),
    ),
}
