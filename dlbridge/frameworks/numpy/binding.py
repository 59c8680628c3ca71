"""NumPy: functional or in place; arrays in another byte order are refused, not copied."""

from __future__ import annotations

from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.kernels.binding import Sliced


class NumPy(Sliced):
    """numpy.ndarray; scalars of NumPy count as arrays without dimensions."""

    name = "numpy"

    def take(self, value: Any, written: bool) -> native.TensorBase:
        if not value.dtype.isnative:
            raise ExchangeError(
                "byte_order",
                "from_dlpack: the array is not in the machine's byte order; pass "
                "x.astype(x.dtype.newbyteorder('='))",
            )
        return super().take(value, written)


BINDING = NumPy()
