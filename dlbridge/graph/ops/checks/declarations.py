"""Checks of values while a graph runs, and printing."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, nothing, require_rank, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes


def _assert(c: Inference) -> Shapes:
    require_rank(c.dims(0), 0, c)
    return nothing(c)


define(
    "Assert(condition: bool, data: list(T), *, T: list(type) >= 1, summarize: int = 3)",
    shape=_assert,
    stateful=True,
)
define(
    "CheckNumerics(tensor: T, *, T: {bfloat16, float16, float32, float64}, message: string) "
    "-> output: T",
    shape=unchanged,
    stateful=True,
)
define(
    "Print(input: T, data: list(U), *, T: type, U: list(type) >= 0, "
    'message: string = "", first_n: int = -1, summarize: int = 3) -> output: T',
    shape=unchanged,
    stateful=True,
)
