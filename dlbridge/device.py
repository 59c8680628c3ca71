"""Device: a DLPack device as a value.

A Device is a device type number and an id. There is one object for each, so `is` and `==` agree.
`Device(x)` reads what any framework uses as a device; `.to(name)` gives that framework's own
object. The names of each framework are in its adapter, found by the module of the object's type. No
framework is imported before `.to` asks for it.

Host memory is one device whatever its id: frameworks number "cpu:1" for their own bookkeeping.
The id is kept as given; ask `is_host_accessible` when only the memory matters.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from operator import index
from typing import Any, NoReturn, final

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, UnsupportedTypeError
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

Fields = tuple[int, int]


class DeviceType(IntEnum):
    """The device types of DLPack 1.3.

    Newer ones are carried, and have their number for a name: `DeviceType(25).name` is "TYPE25".
    """

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
    TPU = 19
    TPU_HOST = 20
    ASCEND = 21

    @classmethod
    def _missing_(cls, value: object) -> DeviceType | None:
        if not isinstance(value, int) or not cls.ASCEND < value < 2**31:
            return None
        made = int.__new__(cls, value)
        made._name_, made._value_ = f"TYPE{value}", int(value)
        return made


# kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged, kDLTPUHost: the CPU can read the memory.
HOST_TYPES = frozenset((1, 3, 11, 13, 20))
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

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (type number, id), where tvm-ffi and others look for it."""
        return self.pair

    @property
    def is_host_accessible(self) -> bool:
        """True when the CPU can read it: cpu, cuda_host, rocm_host, tpu_host, cuda_managed."""
        return self.type in HOST_TYPES

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
        return _write(self.type, self.id, framework)

    def __eq__(self, other: object) -> bool:
        if type(other) is Device:
            return self is other
        try:
            return as_device(other) is self
        except not_from_handler(Exception):  # whatever cannot be read as one is none
            # An array would compare its elements with the Device.
            return False if hasattr(other, "__array__") else NotImplemented

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


def make_device(device_type: int, device_id: int = 0) -> Device:
    """Return the one Device of these DLDevice fields.

    Raises:
        ExchangeError: reason "device"; DLPack has no such type, or a number exceeds 32 bits.
    """
    found = _interned.get((device_type, device_id))
    return _create(int(device_type), int(device_id)) if found is None else found


def _create(number: int, device_id: int) -> Device:
    try:
        kind = DeviceType(number)
    except not_from_handler(ValueError):
        raise ExchangeError("device", f"DLPack 1.3 has no device type {number}") from None
    if not -(2**31) <= device_id < 2**31:
        raise ExchangeError("device", f"a device id has 32 bits, got {device_id}")
    created = object.__new__(Device)
    object.__setattr__(created, "type", kind)
    object.__setattr__(created, "id", device_id)
    one = _interned.setdefault((number, device_id), created)
    native.share(one)
    return one


def as_device(x: object) -> Device:
    """Return the Device that `x` stands for.

    Args:
        x: a Device; a name ("cpu", "cuda:1", "metal", "/job:a/device:GPU:0"), id 0 if it has none;
            a pair (type, id) as `__dlpack_device__` returns it, where None means id 0; a device
            of PyTorch, JAX, TensorFlow, CuPy, cuda.core, TVM, Paddle, MLX, dpctl, dpnp or
            array_api_strict; a cffi `DLDevice`; any object with `__dlpack_device__` that is no
            tensor.

    Raises:
        ExchangeError: reason "device"; a device that DLPack cannot name.
        ArgumentError: an unknown name.
        UnsupportedTypeError: not a device at all.
    """
    if type(x) is Device:
        return x
    return make_device(*_read(x))


# ---- reading and writing devices ----


def _read(x: Any) -> Fields:
    if isinstance(x, str):
        return read_name(x)
    if isinstance(x, tuple) and len(x) == 2 and not hasattr(x, "_fields"):
        return _from_pair(x[0], x[1])
    reader = _READERS.get(str(type(x).__module__).partition(".")[0])
    adapter = None if reader is not None else registry.adapter_of_object(x)
    try:
        if reader is not None:
            return reader(x)
        if adapter is not None:
            return adapter.read_device(x)
    except not_from_handler(AttributeError):
        pass
    if isinstance(x, type) or hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise unsupported(x)
    kind, number = x.__dlpack_device__()
    return _from_pair(kind, number)


def unsupported(x: object) -> UnsupportedTypeError:
    """Return the error of an object that is no device."""
    return UnsupportedTypeError(
        f"Device: cannot read {type(x).__name__} {x!r} as a device; pass a name such as 'cuda:0', "
        "a framework's device or a pair (type, id)"
    )


def read_name(name: str) -> Fields:
    """Return the fields of a device by its name.

    Raises:
        ArgumentError: an unknown name.
    """
    last = name.rpartition("/")[2].lower()
    parts = last.split(":")
    if parts[0] in ("device", "physical_device"):
        del parts[0]
    kind = (_TYPES.get(parts[0]) or _by_number(parts[0])) if parts else None
    number = parts[1] if len(parts) == 2 else "0"
    is_number = number.isascii() and number.isdecimal() and len(number) < 20
    if kind is None or len(parts) > 2 or not is_number:
        framework = registry.canonical_name(name)
        if framework in {row.name for row in registry.rows()}:
            raise ArgumentError(
                f"Device: {name!r} is a framework, not a device; dlbridge.to_{framework}(x), or "
                f"convert(x, {framework!r}), gives a tensor of it"
            )
        raise ArgumentError(
            f"Device: unknown name {name!r}; known are {', '.join(_TYPES)}, each with :N for id N"
            f"{did_you_mean(parts[0] if parts else name, _TYPES)}"
        )
    return kind, int(number)


def _by_number(name: str) -> DeviceType | None:
    """Return the device type, newer than DLPack 1.3, that is written by its number."""
    number = name.removeprefix("type")
    if number == name or not number.isdecimal() or not number.isascii() or len(number) > 10:
        return None
    try:
        kind = DeviceType(int(number))
    except not_from_handler(ValueError):
        return None
    return kind if kind.name.lower() == name else None


def _from_pair(kind: Any, number: Any) -> Fields:
    try:
        return index(kind), 0 if number is None else index(number)
    except not_from_handler(TypeError):
        raise unsupported((kind, number)) from None


def read_kind(x: object, name: str, number: int | None) -> Fields:
    """Return the fields of `x`, a framework's device number `number` of the type called `name`.

    Raises:
        ExchangeError: with reason "device", DLPack has no such type; torch's `meta` is one.
    """
    if name not in _TYPES:
        raise ExchangeError("device", f"DLPack has no device for {x!r}")
    return _TYPES[name], number or 0


def _read_strict(x: Any) -> Fields:
    """Read a device of array_api_strict, whose other devices are not those of any memory."""
    if x._device != "CPU_DEVICE":
        raise ExchangeError("device", f"DLPack has no device for {x!r}")
    return DeviceType.CPU, 0


# By the first part of type(x).__module__, where that is no framework's.
_READERS: dict[str, Callable[[Any], Fields]] = {
    "_cffi_backend": lambda x: (x.device_type, x.device_id),
    "array_api_strict": _read_strict,
    "cuda": lambda x: (DeviceType.CUDA, x.device_id),  # cuda.core
}


def _write(device_type: int, device_id: int, framework: str) -> Any:
    """Return the device object of `framework` for these fields; see `Device.to`."""
    registry.require_name(framework, "Device.to")
    adapter: registry.Adapter = registry.adapter(framework, "Device.to")
    names = adapter.device_names
    if not names:
        raise ArgumentError(f"Device.to: {framework} has no device objects")
    own = names.get(device_type)
    kind = own or (names.get(DeviceType.CPU) if device_type in HOST_TYPES else None)
    text = f"{framework} has no device for {DeviceType(device_type).name.lower()}:{device_id}"
    if kind is None:
        raise ExchangeError("device", text)
    try:
        found = adapter.make_device(kind, device_id if own else 0)
    except DLBridgeError:
        raise
    except not_from_handler(AttributeError, RuntimeError, ValueError) as error:
        raise ExchangeError("device", f"{text}: {error}") from error
    if own and _read(found)[0] != device_type:  # "cuda" where torch is built for ROCm
        raise ExchangeError("device", f"{text}: {found!r} is another device here")
    return found
