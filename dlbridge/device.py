"""Device: a DLPack device as a value.

A Device is a device type number and an id. There is one object for each, so `is` and `==` agree.
`Device(x)` reads what any framework uses as a device; `.to(name)` gives that framework's own
object. No framework is imported before `.to` asks for it.

Host memory is one device whatever its id: frameworks number "cpu:1" for their own bookkeeping.
The id is kept as given; ask `is_host_accessible` when only the memory matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

from dlbridge.device_names import CUDA_TYPES as CUDA_TYPES
from dlbridge.device_names import HOST_TYPES as HOST_TYPES
from dlbridge.device_names import DeviceType as DeviceType
from dlbridge.device_names import read_device, write_device
from dlbridge.errors import ExchangeError

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
        return write_device(self.type, self.id, framework)

    def __eq__(self, other: object) -> bool:
        if type(other) is Device:
            return self is other
        try:
            return as_device(other) is self
        except Exception:  # noqa: BLE001  (whatever cannot be read as one is none)
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


def make_device(device_type: int, device_id: int = 0) -> Device:
    """Return the one Device of these DLDevice fields.

    Raises:
        ExchangeError: reason "device"; DLPack 1.3 has no such type, or the id exceeds 32 bits.
    """
    found = _interned.get((device_type, device_id))
    return _create(int(device_type), int(device_id)) if found is None else found


def _create(number: int, device_id: int) -> Device:
    try:
        kind = DeviceType(number)
    except ValueError:
        raise ExchangeError("device", f"DLPack 1.3 has no device type {number}") from None
    if not -(2**31) <= device_id < 2**31:
        raise ExchangeError("device", f"a device id has 32 bits, got {device_id}")
    created = object.__new__(Device)
    object.__setattr__(created, "type", kind)
    object.__setattr__(created, "id", device_id)
    return _interned.setdefault((number, device_id), created)


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
    return make_device(*read_device(x))
