"""Cumulative sums, products and log-sum-exps."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, axis_of, caster, element, number, wider


@kernel("Cumsum", "Cumprod", host=(1,))
def cumulative(node: Node, context: Context) -> Function:
    """Sums, or products, of all elements so far; halves in float32."""
    kind, xp = element(node), context.xp
    function: Function = xp.cumsum if node.type == "Cumsum" else xp.cumprod
    dtype, narrow = context.dtype(wider(kind)), caster(context, kind)
    start = number(context, 0 if node.type == "Cumsum" else 1, kind)
    return scan(node, context, lambda x, axis: narrow(function(x, axis, dtype=dtype)), start)


def scan(node: Node, context: Context, function: Function, start: Array) -> Function:
    """Return the kernel of a scan, reversed or without the element itself where asked."""
    xp, exclusive, reverse = context.xp, node.attrs["exclusive"], node.attrs["reverse"]

    def accumulate(x: Array, axis: Any) -> Array:
        where = axis_of(axis, x.ndim, node, "ScanOp")
        x = xp.flip(x, axis=where) if reverse else x
        y = function(x, where)
        if exclusive and x.shape[where]:
            y = _shifted(xp, y, where, start)
        return xp.flip(y, axis=where) if reverse else y

    return accumulate


def _shifted(xp: Any, y: Array, axis: int, start: Array) -> Array:
    """Put `start` in front and drop the last one."""
    before = (slice(None),) * axis
    first = xp.broadcast_to(start, (*y.shape[:axis], 1, *y.shape[axis + 1 :]))
    return xp.concat([first, y[(*before, slice(None, -1))]], axis=axis)


@kernel("CumulativeLogsumexp", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, context.xp.logaddexp.accumulate)


def logsumexp_scan(node: Node, context: Context, function: Function) -> Function:
    """Return the kernel for `function` of an array and an axis; nothing has -infinity."""
    kind, start = element(node), number(context, -np.inf, element(node))
    widen, narrow = caster(context, wider(kind)), caster(context, kind)
    return scan(node, context, lambda x, axis: narrow(function(widen(x), axis)), start)
