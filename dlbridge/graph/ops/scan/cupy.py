"""Cumulative functions in CuPy, which accumulates sums only."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.scan.kernels import logsumexp_scan


@kernel("CumulativeLogsumexp", framework="cupy", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, partial(_by_doubling, context.xp))


def _by_doubling(xp: Any, x: Any, axis: int) -> Any:
    """Combine each element with those 1, 2, 4 … before it."""
    x, step = xp.moveaxis(x, axis, 0), 1
    while step < x.shape[0]:
        x = xp.concat([x[:step], xp.logaddexp(x[step:], x[:-step])], axis=0)
        step *= 2
    return xp.moveaxis(x, 0, axis)
