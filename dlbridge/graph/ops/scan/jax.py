"""Cumulative functions in JAX."""

from __future__ import annotations

import jax

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.scan.kernels import logsumexp_scan


@kernel("CumulativeLogsumexp", framework="jax", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, jax.lax.cumlogsumexp)
