"""dlbridge itself as a target: `convert(x, "dlbridge")` gives a Tensor."""

from __future__ import annotations

from typing import Any

from dlbridge._core import native
from dlbridge.exchange.adapter import Framework
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.tensor.tensor import Tensor


class Own(Framework):
    """dlbridge.Tensor."""

    name = "dlbridge"
    module = "dlbridge"
    to_dtype = 'dlbridge.asarray({x}, "{dtype}")'
    roots = ("dlbridge",)
    taken_by = "Tensor"
    notes = "every dtype, device and layout of DLPack 1.3"

    def recognises(self, cls: type) -> bool:
        return issubclass(cls, native.TensorBase)

    def array_type(self) -> type | None:
        return Tensor

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        context.route.append("Tensor")
        tensor: native.TensorBase = x
        return tensor

    def limits(self) -> native.Limits:
        return _LIMITS

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return None: a Tensor holds whatever was taken."""
        return None

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        if type(tensor) is Tensor:
            return tensor
        return tensor._view(tensor.shape, tensor.strides, cls=Tensor)


_LIMITS = native.Limits("dlbridge", protects_readonly=True)
ADAPTER = Own()
