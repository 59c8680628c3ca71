"""Segment sums in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function


@kernel("UnsortedSegmentSum", framework="jax", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; those out of range are left out, as in XLA."""

    def reduce(data: Any, identifiers: Any, number: Any) -> Any:
        count, rank = int(number), identifiers.ndim
        rows = data.reshape(-1, *data.shape[rank:])
        flat = identifiers.reshape(-1)
        out = jnp.zeros((count, *data.shape[rank:]), data.dtype)
        return out.at[jnp.where(flat < 0, count, flat)].add(rows, mode="drop")

    return reduce
