"""dpnp: arrays on SYCL devices, shared there, copied by dpnp from and to the host.

dpnp also copies and orders what Tensors there are on SYCL devices. Work of dlbridge on one is
enqueued on the queue that dpnp keeps for its device, which is that of any array it imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.device import HOST_TYPES
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError, UnsupportedTypeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler

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
    extra = "dpnp"
    module = "dpnp"
    roots = ("dpnp", "dpctl")
    way_in = "`__dlpack__`"
    way_out = "`__dlpack__`"
    zero_copy = "both ways on SYCL devices"
    notes = 'SYCL devices; host memory is copied by dpnp, out with device="cpu"'
    quirks = (
        Quirk(
            4,
            "0.20",
            "segfaults on a NULL deleter",
            "exports always carry one",
            "Let producers set a deleter",
        ),
        Quirk(
            9,
            "0.20",
            "ignores byte_offset of CPU memory",
            "exports carry none",
            "Import host arrays without an offset: copy views first",
            sign=Sign("wrong", traits=("byte_offset",)),
        ),
        Quirk(
            9,
            "0.20",
            "exports views with byte_offset",
            "folded into the data pointer",
            "Consumers must add byte_offset to data",
        ),
        Quirk(
            16,
            "0.20",
            "a legacy capsule is not marked read-only",
            "a versioned one is asked for",
            "Ask for max_version=(1, 0) or later",
        ),
        Quirk(
            17,
            "0.20",
            "ignores copy and dl_device for a legacy capsule",
            "the device is checked",
            "Ask for max_version=(1, 0), or copy first",
        ),
        Quirk(
            22,
            "0.20",
            "no bfloat16",
            "refused: dtype",
            "Cast to float32 first",
            sign=Sign("refused", traits=("bfloat16",)),
        ),
        Quirk(
            30,
            "0.20",
            "a negative stride goes below the memory without a byte_offset",
            "the lowest address is exported with one",
            "Copy views with negative strides before they are exported",
        ),
        Quirk(
            31,
            "0.20",
            "from_dlpack of CPU data gives a NumPy array",
            "dpnp.asarray is called",
            "Call dpnp.asarray on the result",
        ),
    )
    expressions = Expressions(
        {"dpnp": "dpnp"},
        make="dpnp.asarray(a)",
        from_dlpack="dpnp.from_dlpack({})",
        values="dpnp.asnumpy(x)",
        address="address(x)",
    )

    moves = frozenset((_ONEAPI,))

    def array_type(self) -> type | None:
        kind: type = self.import_module().ndarray
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the device memory, or with device="cpu" a copy of it made by dpnp.

        The device's queue waits for that of the array, if it is another one. A class of dpnp's
        package that is no array, but has `__dlpack__`, is a producer like any other.
        """
        if not hasattr(x, "sycl_queue"):
            return protocol.take_dlpack(x, policy, context)
        queue = _queue_of(x.sycl_device)
        return protocol.take_dlpack(x, policy, context, None if x.sycl_queue == queue else queue)

    def copied(
        self, tensor: native.TensorBase, device: tuple[int, int], order: str
    ) -> native.TensorBase:
        tensors = self.import_module().tensor
        if tensor._device_pair[0] != _ONEAPI:
            made = tensors.asarray(
                native.give_numpy(tensor),
                device=tensors.dldevice_to_sycl_device(device),
                order=order,
                copy=True,
            )
        else:
            array = tensors.from_dlpack(tensor)
            if device[0] != _ONEAPI:
                return native.copied(native.take_buffer(tensors.asnumpy(array)), device, order, 0)
            made = tensors.copy(array, order=order)
            if device != tensor._device_pair:
                made = made.to_device(tensors.dldevice_to_sycl_device(device))
        made.sycl_queue.wait()
        return native.take_capsule(made.__dlpack__(max_version=protocol.VERSION))

    def order(self, tensor: native.TensorBase, stream: Any) -> None:
        array = self.import_module().tensor.from_dlpack(tensor)
        try:
            array.__dlpack__(stream=stream)
        except not_from_handler(TypeError) as error:
            raise UnsupportedTypeError(
                f"__dlpack__: stream must be None or a dpctl.SyclQueue, got {stream!r}"
            ) from error

    def limits(self) -> native.Limits:
        device = self.import_module().empty(0).sycl_device
        wide = _WIDE if device.has_aspect_fp64 else []
        half = _HALF if device.has_aspect_fp16 else []
        return native.Limits(
            "dpnp",
            dtypes=_DTYPES + wide + half,
            devices=[_ONEAPI, *HOST_TYPES],
            max_ndim=64,
            protects_readonly=True,
        )

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


def _queue_of(device: Any) -> Any:
    """Return the queue that dpctl keeps for a device, in the default context of its platform."""
    return import_module("dpctl").get_device_cached_queue(
        (device.sycl_platform.default_context, device)
    )


def _check_place(result: Any, policy: Policy) -> None:
    kind, index = protocol.dlpack_device(result)
    if policy.device is not None and policy.device.pair != (kind, index):
        raise ExchangeError(
            "device",
            f"to_dpnp: device {policy.device} asked for, dpnp's default is ({kind}, {index})",
        )


ADAPTER = Dpnp()
