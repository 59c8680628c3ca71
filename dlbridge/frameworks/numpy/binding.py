"""NumPy: functional or in place; arrays in another byte order are refused, not copied."""

from __future__ import annotations

from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.kernels.binding import Binding, check_extent
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.schema import Arguments


class NumPy(Binding):
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

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        return self.call_bounded(kernel, arguments)

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        return check_extent(kernel, name, int(value), room)

    def first_rows(self, value: Any, extent: Any) -> Any:
        return value[:extent]


BINDING = NumPy()
