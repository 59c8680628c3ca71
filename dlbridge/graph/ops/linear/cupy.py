"""Linear algebra in CuPy."""

from __future__ import annotations

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element, in_wider


@kernel("Cholesky", framework="cupy")
def cholesky(node: Node, context: Context) -> Function:
    """The lower triangle; of no meaning where a matrix is not positive definite."""
    return in_wider(context, element(node), context.xp.linalg.cholesky)
