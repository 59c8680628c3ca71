"""Pooling in NumPy, results written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function
from dlbridge.graph.ops.pooling import kernels
from dlbridge.graph.ops.windows import Axis


def _along(x: Array, dimension: int, axis: Axis, combine: np.ufunc, start: Any) -> Array:
    """Return the windows along one dimension, combined tap by tap in place."""
    before = (slice(None),) * dimension
    shape = (*x.shape[:dimension], axis.output, *x.shape[dimension + 1 :])
    out = np.full(shape, start, x.dtype)
    for index in range(axis.window):
        seen, windows = axis.inner_tap(index)
        target = out[(*before, windows)]
        combine(target, x[(*before, seen)], out=target)
    return out


def _maximum(node: Node, context: Context) -> kernels.Reduce:
    bottom = kernels.lowest(context, node)

    def reduce(x: Array, axes: Sequence[Axis]) -> Array:
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                x = _along(x, dimension, axis, np.maximum, bottom)
        return x

    return reduce


def _mean(x: Array, axes: Sequence[Axis]) -> Array:
    for dimension, axis in enumerate(axes):
        if not axis.is_trivial:
            x = _along(x, dimension, axis, np.add, 0)
            shape = [-1 if i == dimension else 1 for i in range(len(axes))]
            x /= kernels.counts(axis).reshape(shape).astype(x.dtype)
    return x


@kernel("MaxPool", "MaxPool3D", framework="numpy")
def max_pool(node: Node, context: Context) -> Function:
    return kernels.pool(node, context, _maximum(node, context))


@kernel("MaxPoolV2", framework="numpy", host=(1, 2))
def max_pool_v2(node: Node, context: Context) -> Function:
    return kernels.pool_of_inputs(node, context, _maximum(node, context))


@kernel("AvgPool", "AvgPool3D", framework="numpy")
def avg_pool(node: Node, context: Context) -> Function:
    return kernels.pool(node, context, _mean)
