"""Linear algebra in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function, element, in_wider

lacks(
    "torch",
    WIDE_UNSIGNED,
    [
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "Einsum",
        "Cross",
        "MatrixDiag",
        "MatrixDiagPart",
        "MatrixSetDiag",
        "MatrixBandPart",
    ],
)


@kernel("Cholesky", framework="torch")
def cholesky(node: Node, context: Context) -> Function:
    """NaN where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        lower, information = torch.linalg.cholesky_ex(x)
        failed = (information != 0)[..., None, None]
        return torch.where(failed, torch.full_like(lower, torch.nan).tril(), lower)

    return in_wider(context, element(node), decompose)
