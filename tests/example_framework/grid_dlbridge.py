"""Grids: row-major float32 matrices in CPU memory, through the buffer protocol both ways."""

from __future__ import annotations

import sys
from typing import Any

from dlbridge import dtype
from dlbridge._core import native
from dlbridge.exchange.adapter import Framework, Quirk
from dlbridge.exchange.context import ExchangeContext, Policy

_FLOAT = (2, 32, 1)


class Grids(Framework):
    """grid.Grid."""

    name = "grid"
    module = "grid"
    roots = ("grid",)
    way_in = "buffer protocol"
    way_out = "buffer protocol"
    zero_copy = "both ways, row-major"
    notes = "float32 matrices"
    quirks = (Quirk(16, "all", "ignores READ_ONLY", "refused: readonly"),)

    def recognises(self, cls: type) -> bool:
        return issubclass(cls, sys.modules["grid"].Grid)

    def array_type(self) -> type | None:
        kind: type = self.import_module().Grid
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the memory of a grid."""
        context.route.append("buffer protocol")
        memory = native.take_buffer(x.cells)
        return memory._view((x.rows, x.columns), (x.columns, 1))

    def limits(self) -> native.Limits:
        return native.Limits("grid", dtypes=[_FLOAT], devices=[1], max_ndim=2, layout="row_major")

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`: a grid has two dimensions, neither more nor less."""
        return "ndim" if tensor.ndim != 2 else super().refusal(tensor)

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "grid.Grid"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        rows, columns = tensor.shape
        return self.import_module().Grid(rows, columns, memory=tensor)

    # ---- names of dtypes ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        kinds = self.import_module("DType").kinds
        if x is not kinds["float"]:
            raise dtype.unsupported(x)
        return _FLOAT

    def make_dtype(self, name: str) -> Any:
        kinds = self.import_module("DType.to").kinds
        if name != "float32":
            raise ValueError(name)
        return kinds["float"]


ADAPTER = Grids()
