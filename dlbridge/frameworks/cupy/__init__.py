"""CuPy: arrays on CUDA or ROCm devices, shared there, copied by CuPy from and to the host."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, ClassVar

import numpy as np

from dlbridge._core import native
from dlbridge.cuda.driver import LEGACY, NONE, PER_THREAD, as_stream, stream_of_cupy
from dlbridge.device import HOST_TYPES
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import ordering, protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.tensor.allocator import Allocator, FrameworkAllocator

_CUDA, _CUDA_MANAGED, _ROCM = 2, 13, 10
_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (5, 64, 1),
    (5, 128, 1),
    (6, 8, 1),
]


class CuPy(Framework):
    """cupy.ndarray."""

    name = "cupy"
    extra = "cupy"
    module = "cupy"
    roots = ("cupy",)
    way_in = "`__dlpack__`"
    way_out = "`__dlpack__`"
    zero_copy = "both ways on GPUs"
    notes = 'GPU memory; host memory is copied by CuPy, out with device="cpu"'
    quirks = (
        Quirk(
            16,
            "14",
            "ignores READ_ONLY",
            "refused: readonly, unless a policy says otherwise",
            "Write to such arrays only after a copy",
        ),
        Quirk(
            41,
            "14",
            "orders the current device's stream",
            "exported on its own device",
            "Enter cupy.cuda.Device(x.device) before from_dlpack",
        ),
        Quirk(
            38,
            "14",
            "refuses CPU memory with a TypeError",
            "copied by cupy, or refused: device",
            "Call cupy.asarray on host memory",
        ),
    )
    expressions = Expressions(
        {"cupy": "cupy"},
        make="cupy.asarray(a)",
        from_dlpack="cupy.from_dlpack({})",
        values="cupy.asnumpy(x)",
        address="x.data.ptr",
        copied="cupy.from_dlpack({}, copy=True)",
    )
    has_streams = True
    allocates = True
    device_names: ClassVar[dict[int, str]] = {_CUDA: "cuda", _ROCM: "cuda"}

    def recognises(self, cls: type) -> bool:
        cupy = sys.modules.get("cupy")
        return cupy is not None and issubclass(cls, cupy.ndarray)

    def array_type(self) -> type | None:
        kind: type = self.import_module().ndarray
        return kind

    def classify(self, cls: type) -> tuple[str, object] | None:
        return ("cupy", _lend) if cls is self.array_type() else None

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the device memory, or with device="cpu" a copy of it made by CuPy.

        CuPy is asked for no order, since it would make an event each time: its current stream on
        the array's device is known, and waited for where another one uses the memory.
        """
        to_host = policy.device is not None and policy.device.is_host_accessible
        if to_host or not ordering.has_streams(protocol.dlpack_device(x)):
            with x.device:  # CuPy copies on the current device's stream
                return protocol.take_dlpack(x, policy, context)
        context.route.append("__dlpack__")
        current = sys.modules["cupy"].cuda.get_current_stream(x.device.id)
        capsule = protocol.export(x, NONE)
        tensor = native.take_capsule(capsule)
        ordering.note_producer(tensor, as_stream(current), _kept(current))
        return tensor

    def stream(self, device: int) -> int:
        """Return CuPy's current stream on a device."""
        return as_stream(self.import_module().cuda.get_current_stream(device))

    def limits(self) -> native.Limits:
        return _limits((*_own_devices(self.import_module()), *HOST_TYPES))

    def start(self, converter: native.Converter) -> None:
        """Open the C path for memory that is shared; that of the host is copied by `give`."""
        cupy = self.import_module()
        if cupy.cuda.is_available():
            limits, kind = _limits(_own_devices(cupy)), self.array_type()
            converter.activate("object", limits, cupy.from_dlpack, kind, streams=_keeps_itself)

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`; of host memory a copy is made, so it is protected."""
        _refuse_without_gpu(self.import_module())
        reason = self.limits().refusal(tensor)
        return None if reason == "readonly" and self.import_copies(tensor) else reason

    def import_copies(self, tensor: native.TensorBase) -> str | None:
        own = _own_devices(self.import_module())
        return None if tensor._device_pair[0] in own else "device"

    def entry(self, tensor: native.TensorBase | None) -> str:
        shares = tensor is not None and self.import_copies(tensor) is None
        return "cupy.from_dlpack" if shares else "cupy.asarray"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return a cupy.ndarray: shared on the tensor's own device, else copied to a GPU."""
        cupy = self.import_module()
        if self.import_copies(tensor) is None:
            return cupy.from_dlpack(_exporter(cupy, tensor, policy, context))
        if policy.device is None:
            return cupy.asarray(native.give_numpy(tensor))
        if policy.device.pair[0] not in _own_devices(cupy):
            raise ExchangeError("device", f"to_cupy: cupy has no memory on {policy.device}")
        with cupy.cuda.Device(policy.device.pair[1]):
            return cupy.asarray(native.give_numpy(tensor))

    def allocate(self, shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
        with like.device:
            return self.import_module().empty(shape, dtype.numpy)

    def cuda_allocator(self) -> Allocator:
        return CuPyAllocator()

    # ---- names of dtypes and devices ----

    def make_dtype(self, name: str) -> Any:
        module = self.import_module("DType.to")
        return np.dtype(getattr(module, "bool_" if name == "bool" else name))

    def read_device(self, x: Any) -> tuple[int, int]:
        is_hip = sys.modules["cupy"].cuda.runtime.is_hip
        return _ROCM if is_hip else _CUDA, x.id

    def make_device(self, kind: str, number: int) -> Any:
        return self.import_module("Device.to").cuda.Device(number)


class CuPyAllocator(FrameworkAllocator):
    """CuPy's current allocator, by default its memory pool."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self._kept: dict[int, object] = {}

    def request(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of memory of CuPy's pool, of the arena of this stream."""
        cuda = self._framework.cuda
        with cuda.Device(device), stream_of_cupy(cuda, stream, device):
            memory = cuda.alloc(nbytes)
        self._kept[int(memory.ptr)] = memory
        return int(memory.ptr)

    def deallocate(self, address: int, nbytes: int) -> None:
        """Give the memory back to the pool."""
        del self._kept[address]


def _kept(stream: Any) -> Any:
    """Return a stream that would be destroyed with its last reference, or None."""
    return stream if stream.ptr > PER_THREAD else None


def _exporter(
    cupy: Any, tensor: native.TensorBase, policy: Policy, context: ExchangeContext
) -> Any:
    """Return what CuPy imports: its stream lives until it gives the memory back."""
    kind, index = tensor._device_pair
    if not ordering.has_streams((kind, index)):
        return tensor
    current = cupy.cuda.get_current_stream(index)
    return ordering.Exporter(tensor, policy, context, kept=policy.kept or _kept(current))


def _lend(x: Any) -> tuple[object, int, int, Any]:
    """Return what the C path takes of an array: see `CuPy.take`."""
    current = sys.modules["cupy"].cuda.get_current_stream(x.device.id)
    stream = int(current.ptr) or LEGACY
    capsule = x.__dlpack__(stream=NONE, max_version=protocol.VERSION)
    return capsule, stream, stream, _kept(current)


def _keeps_itself(device: int) -> tuple[()] | None:
    """Return () where nothing has to keep CuPy's current stream on a device, else None."""
    return () if _kept(sys.modules["cupy"].cuda.get_current_stream(device)) is None else None


@cache
def _limits(devices: tuple[int, ...]) -> native.Limits:
    return native.Limits("cupy", dtypes=_DTYPES, devices=devices, max_ndim=64)


def _own_devices(cupy: Any) -> tuple[int, ...]:
    return (_ROCM,) if cupy.cuda.runtime.is_hip else (_CUDA, _CUDA_MANAGED)


def _refuse_without_gpu(cupy: Any) -> None:
    if not cupy.cuda.is_available():
        raise ExchangeError(
            "device", "to_cupy: cupy finds no GPU with a driver here; use numpy for CPU memory"
        )


ADAPTER = CuPy()
