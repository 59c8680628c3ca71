"""Kernels on dlbridge's own Tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.exchange import exchange
from dlbridge.kernels.binding import Direct


class Tensors(Direct):
    """The direct route, with writes that go through the exchange."""

    def write(self, room: Any, value: Any) -> None:
        if not isinstance(value, native.TensorBase):
            value = exchange.convert(np.array(value, room.dtype.to("numpy")), self.name)
        native.copy_into(room, value)


BINDING = Tensors("dlbridge")
