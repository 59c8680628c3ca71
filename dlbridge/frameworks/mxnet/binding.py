"""Calls of kernels with mxnet.nd.NDArray and mxnet.np.ndarray."""

from __future__ import annotations

import sys
from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import exchange
from dlbridge.kernels.binding import Direct


class MXNet(Direct):
    """mxnet.nd.NDArray and mxnet.np.ndarray: results have the class of the first argument."""

    def take(self, value: Any, written: bool) -> native.TensorBase:
        """Take an array, but none while operations are recorded: kernels are not among them."""
        if sys.modules["mxnet"].autograd.is_recording():
            raise ExchangeError(
                "requires_grad",
                "the call would be missing in the gradient that mxnet.autograd records; call it "
                "under mxnet.autograd.pause()",
            )
        if value.stype == "default" and value.grad is not None:
            value = value.detach()  # the same memory; nothing that is not recorded has a gradient
        return super().take(value, written)

    def give(self, tensor: native.TensorBase, like: Any) -> Any:
        made = exchange.convert(tensor, self.name)
        is_numpy_like = isinstance(like, sys.modules["mxnet"].np.ndarray)
        return made.as_np_ndarray() if is_numpy_like else made


BINDING = MXNet("mxnet")
