"""Unique values and set differences."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import INDEX, Shapes


def _unique(c: Inference) -> Shapes:
    shapes: Shapes = [(None,), require_rank(c.dims(0), 1, c), (None,)]
    return shapes[: c.output_count]


def _difference(c: Inference) -> Shapes:
    for i in (0, 1):
        require_rank(c.dims(i), 1, c)
    return [(None,), (None,)]


define(
    f"UniqueWithCounts(x: T, *, T: type, out_idx: {INDEX} = int32) "
    "-> (y: T, idx: out_idx, count: out_idx)",
    shape=_unique,
)


define(
    f"ListDiff(x: T, y: T, *, T: type, out_idx: {INDEX} = int32) -> (out: T, idx: out_idx)",
    shape=_difference,
)


define(f"Unique(x: T, *, T: type, out_idx: {INDEX} = int32) -> (y: T, idx: out_idx)", shape=_unique)
