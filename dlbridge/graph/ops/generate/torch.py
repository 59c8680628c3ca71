"""Tensors filled with one value in PyTorch."""

from __future__ import annotations

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.generate.kernels import extents
from dlbridge.graph.ops.kernels import Function


@kernel("Fill", framework="torch", host=(0,))
def fill(node: Node, context: Context) -> Function:
    """A scalar, repeated; in memory of its own."""
    return lambda dims, value: value.expand(extents(dims, node)).clone()
