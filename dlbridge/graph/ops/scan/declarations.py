"""Cumulative sums, products and log-sum-exps."""

from __future__ import annotations

from dlbridge.graph.core.inference import unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import FLOAT, INDEX, NUMBER

for _name, _types in (("Cumsum", NUMBER), ("Cumprod", NUMBER), ("CumulativeLogsumexp", FLOAT)):
    define(
        f"{_name}(x: T, axis: Tidx, *, exclusive: bool = false, reverse: bool = false, "
        f"T: {_types}, Tidx: {INDEX} = int32) -> out: T",
        shape=unchanged,
    )
