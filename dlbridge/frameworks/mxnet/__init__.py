"""MXNet: NDArrays through its capsule functions; it knows no other part of the protocol."""

from __future__ import annotations

import math
import sys
from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Framework, Quirk
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler

_BOOL, _MXNET_BOOL = (6, 8, 1), (1, 1, 1)
_DTYPES = [
    *((0, bits, 1) for bits in (8, 32, 64)),
    (1, 8, 1),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (4, 16, 1),
    _BOOL,
]
_LIMITS = native.Limits("mxnet", dtypes=_DTYPES, devices=[1], max_ndim=32, layout="row_major")


class MXNet(Framework):
    """mxnet.nd.NDArray and mxnet.np.ndarray."""

    name = "mxnet"
    module = "mxnet"
    roots = ("mxnet",)
    way_in = "capsule"
    way_out = "capsule"
    zero_copy = "both ways"
    to_host = "x.as_in_context(mxnet.cpu())"
    notes = "row-major, else copied; no zero-size or 0-d arrays unless mxnet.npx.set_np()"
    quirks = (
        Quirk(
            9,
            "1.9",
            "ignores byte_offset",
            "exports carry none",
            "Copy views before MXNet imports them",
        ),
        Quirk(
            20,
            "1.9",
            "never asks for a versioned capsule",
            "gets a legacy one",
            "Pass a copy of read-only arrays",
        ),
        Quirk(
            28,
            "1.9",
            "no __dlpack__; its capsule destructor fails",
            "consumed at once",
            "Consume each capsule of MXNet at once",
        ),
        Quirk(
            28,
            "1.9",
            "bool is (1, 1, 1), one byte each",
            "translated both ways",
            "Cast bool to uint8 before direct exchange",
        ),
        Quirk(
            29,
            "1.9",
            "exports NULL strides",
            "row-major strides are filled in",
            "Consumers must treat NULL strides as row-major",
        ),
        Quirk(
            30,
            "1.9",
            "refuses unusual strides of size-1 dimensions",
            "they are rewritten",
            "Reshape, or copy, arrays with dimensions of size 1 first",
        ),
        Quirk(
            33,
            "1.9",
            "takes CUDA memory without a GPU",
            "refused: device",
            "Do not hand MXNet CUDA memory without a GPU",
        ),
        Quirk(
            16,
            "1.9",
            "a sparse array exports its values alone",
            "refused: sparse",
            "Convert to dense with tostype('default') first",
        ),
    )

    def recognises(self, cls: type) -> bool:
        mxnet = sys.modules.get("mxnet")
        return mxnet is not None and issubclass(cls, mxnet.nd.NDArray)

    def array_type(self) -> type | None:
        kind: type = self.import_module().nd.NDArray
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take an array after the work queued on it; the capsule is consumed where it is made."""
        if x.stype != "default":
            raise ExchangeError("sparse", f"from_dlpack: the mxnet array has stype {x.stype!r}")
        if x.grad is not None:
            if policy.grad != "detach":
                raise ExchangeError(
                    "requires_grad",
                    "from_dlpack: a gradient is attached to the mxnet array; pass x.detach() or "
                    'grad="detach"',
                )
            x = x.detach()
        context.route.append("MXNet capsule")
        try:
            tensor = native.take_capsule(x.to_dlpack_for_write())
        except not_from_handler(Exception) as error:
            raise protocol.refused(x, error) from error
        self.require_order(tensor, x)
        if tensor._dtype_triple == _MXNET_BOOL:
            return tensor._view(tensor.shape, tensor.strides, dtype=_BOOL)
        return tensor

    def orders_cuda(self) -> bool:
        """Return False: its engine chooses the streams, and its capsules say nothing of them."""
        return False

    def limits(self) -> native.Limits:
        return _LIMITS

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`; without np_shape () and 0 mean an unknown shape."""
        unknown = tensor.ndim == 0 or tensor.size == 0
        if unknown and not self.import_module().util.is_np_shape():
            raise ExchangeError(
                "shape",
                f"to_mxnet: MXNet reads the shape {tensor.shape} as unknown; call "
                "mxnet.npx.set_np() to make it a shape like any other",
            )
        return self.limits().refusal(tensor)

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "MXNet capsule"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        dtype = _MXNET_BOOL if tensor._dtype_triple == _BOOL else tensor._dtype_triple
        plain = tensor._view(tensor.shape, _compact(tensor.shape), dtype=dtype)
        return self.import_module().nd.from_dlpack(plain._capsule(False, 0, True))


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides that MXNet calls compact: an extent of 0 makes those before it 0."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


ADAPTER = MXNet()
