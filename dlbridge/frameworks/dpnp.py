"""dpnp: arrays on SYCL devices, shared there, copied by dpnp from and to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.device import HOST_TYPES
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Framework, Quirk
from dlbridge.exchange.context import ExchangeContext, Policy

_ONEAPI = 14
_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    (2, 32, 1),
    (5, 64, 1),
    (6, 8, 1),
]
_WIDE = [(2, 64, 1), (5, 128, 1)]
_HALF = [(2, 16, 1)]


class Dpnp(Framework):
    """dpnp.ndarray and dpnp.tensor.usm_ndarray, on kDLOneAPI devices."""

    name = "dpnp"
    module = "dpnp"
    roots = ("dpnp", "dpctl")
    way_in = "`__dlpack__`"
    way_out = "`__dlpack__`"
    zero_copy = "both ways on SYCL devices"
    notes = 'SYCL devices; host memory is copied by dpnp, out with device="cpu"'
    quirks = (
        Quirk(4, "0.20", "segfaults on a NULL deleter", "exports always carry one"),
        Quirk(9, "0.20", "ignores byte_offset of CPU memory", "exports carry none"),
        Quirk(9, "0.20", "exports views with byte_offset", "folded into the data pointer"),
        Quirk(
            16, "0.20", "a legacy capsule is not marked read-only", "a versioned one is asked for"
        ),
        Quirk(
            17, "0.20", "ignores copy and dl_device for a legacy capsule", "the device is checked"
        ),
        Quirk(22, "0.20", "no bfloat16", "refused: dtype"),
        Quirk(
            30,
            "0.20",
            "cannot import negative strides",
            "refused, a copy must be made on the device",
        ),
        Quirk(31, "0.20", "from_dlpack of CPU data gives a NumPy array", "dpnp.asarray is called"),
    )

    def array_type(self) -> type | None:
        kind: type = self.import_module().ndarray
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the device memory, or with device="cpu" a copy of it made by dpnp."""
        return protocol.take_dlpack(x, policy, context)

    def limits(self) -> native.Limits:
        device = self.import_module().empty(0).sycl_device
        wide = _WIDE if device.has_aspect_fp64 else []
        half = _HALF if device.has_aspect_fp16 else []
        return native.Limits(
            "dpnp",
            dtypes=_DTYPES + wide + half,
            devices=[_ONEAPI, *HOST_TYPES],
            max_ndim=64,
            layout="non_negative",
            protects_readonly=True,
        )

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`; only device memory is imported with its strides."""
        reason = self.limits().refusal(tensor)
        return None if reason == "strides" and self.import_copies(tensor) else reason

    def import_copies(self, tensor: native.TensorBase) -> str | None:
        return None if tensor._device_pair[0] == _ONEAPI else "device"

    def entry(self, tensor: native.TensorBase | None) -> str:
        shares = tensor is not None and self.import_copies(tensor) is None
        return "dpnp.from_dlpack" if shares else "dpnp.asarray"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return a dpnp.ndarray: shared on the tensor's own device, else copied to dpnp's."""
        dpnp = self.import_module()
        if tensor._device_pair[0] == _ONEAPI:
            return dpnp.from_dlpack(tensor)
        result = dpnp.asarray(native.give_numpy(tensor))
        _check_place(result, policy)
        return result

    def allocate(self, shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
        return self.import_module().empty(shape, dtype=dtype.numpy, sycl_queue=like.sycl_queue)

    # ---- names of dtypes and devices ----

    def make_dtype(self, name: str) -> Any:
        module = self.import_module("DType.to")
        return np.dtype(getattr(module, "bool_" if name == "bool" else name))

    def read_device(self, x: Any) -> tuple[int, int]:
        """Read a device of dpnp, or the SYCL queue or device of dpctl behind one."""
        return _ONEAPI, getattr(x, "sycl_device", x).get_device_id()


def _check_place(result: Any, policy: Policy) -> None:
    kind, index = protocol.dlpack_device(result)
    if policy.device is not None and policy.device.pair != (kind, index):
        raise ExchangeError(
            "device",
            f"to_dpnp: device {policy.device} asked for, dpnp's default is ({kind}, {index})",
        )


ADAPTER = Dpnp()
