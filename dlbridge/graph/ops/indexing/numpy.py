"""Gathering by NumPy's own indexing."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.indexing import kernels
from dlbridge.graph.ops.kernels import Function


@kernel("GatherNd", framework="numpy")
def gather_nd(node: Node, context: Context) -> Function:
    """NumPy's own indexing refuses indices that are too large, but takes negative ones."""
    general = kernels.gather_nd(node, context)

    def gather(params: Any, indices: Any) -> Any:
        depth = indices.shape[-1] if indices.ndim else 0
        if 0 < depth <= params.ndim and indices.size and indices.min() >= 0:
            try:
                return params[tuple([indices[..., i] for i in range(depth)])]
            except IndexError:
                pass
        return general(params, indices)

    return gather
