"""Pooling in JAX: XLA's windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.pooling import kernels
from dlbridge.graph.ops.windows import Axis


def _reduce(x: Any, axes: Sequence[Axis], start: Any, combine: Function) -> Any:
    return lax.reduce_window(
        x,
        start,
        combine,
        [axis.window for axis in axes],
        [axis.stride for axis in axes],
        [(axis.before, axis.after) for axis in axes],
    )


def _maximum(node: Node, context: Context) -> kernels.Reduce:
    bottom = kernels.lowest(context, node)
    return lambda x, axes: _reduce(x, axes, x.dtype.type(bottom), lax.max)


def _mean(context: Context) -> kernels.Reduce:
    def reduce(x: Any, axes: Sequence[Axis]) -> Any:
        out = _reduce(x, axes, x.dtype.type(0), lax.add)
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                shape = [-1 if i == dimension else 1 for i in range(len(axes))]
                out = out / kernels.counts(axis).reshape(shape).astype(x.dtype)
        return out

    return reduce


@kernel("MaxPool", "MaxPool3D", framework="jax")
def max_pool(node: Node, context: Context) -> Function:
    return kernels.pool(node, context, _maximum(node, context))


@kernel("MaxPoolV2", framework="jax", host=(1, 2))
def max_pool_v2(node: Node, context: Context) -> Function:
    return kernels.pool_of_inputs(node, context, _maximum(node, context))


@kernel("AvgPool", "AvgPool3D", framework="jax")
def avg_pool(node: Node, context: Context) -> Function:
    return kernels.pool(node, context, _mean(context))
