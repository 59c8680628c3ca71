"""Keras: a variable stands for its value, a tensor of the backend.

Over TensorFlow a variable is one of TensorFlow's row, which traces and records it.
"""

from __future__ import annotations

import sys
from typing import Any

from dlbridge.errors import ExchangeError
from dlbridge.exchange.adapter import Holder
from dlbridge.exchange.context import ExchangeContext, Policy


class Keras(Holder):
    """keras.Variable over PyTorch, JAX, NumPy or OpenVINO."""

    name = "keras"

    def recognises(self, cls: type) -> bool:
        kind = getattr(sys.modules.get("keras"), "Variable", None)
        return kind is not None and issubclass(cls, kind)

    def held(self, x: Any, policy: Policy, context: ExchangeContext) -> Any:
        """Return the value now, in the backend's own memory."""
        context.route.append("keras.Variable.value")
        value = x.value
        if type(value) is type(x):
            raise ExchangeError("lazy", f"from_dlpack: the keras.Variable {x.path!r} has no value")
        return value


HOLDER = Keras()
