"""Unique values and set differences: kernels whose shapes depend on values."""

from __future__ import annotations

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function


@kernel("Unique", "UniqueWithCounts", only=("numpy",))
def unique(node: Node, context: Context) -> Function:
    """Elements in order of first occurrence, and for each element which of them it is."""
    index = node.output_types[1].numpy

    def find(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        order = np.argsort(first)
        rank = np.empty(len(order), index)
        rank[order] = np.arange(len(order))
        found = (x[first[order]], rank[inverse.reshape(-1)], counts[order].astype(index))
        return found[: len(node.output_types)]

    return find


@kernel("ListDiff", only=("numpy",))
def difference(node: Node, context: Context) -> Function:
    """The elements of the first list that are not in the second, with positions."""
    index = node.output_types[1].numpy

    def find(x: Array, y: Array) -> tuple[Array, Array]:
        kept = np.flatnonzero(~np.isin(x, y))
        return x[kept], kept.astype(index)

    return find
