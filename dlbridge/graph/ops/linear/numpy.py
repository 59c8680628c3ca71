"""Linear algebra in NumPy."""

from __future__ import annotations

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.kernels import Array, Function, element, in_wider


@kernel("Cholesky", framework="numpy")
def cholesky(node: Node, context: Context) -> Function:
    """The lower triangle; NaN where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Array) -> Array:
        try:
            return np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            if x.ndim == 2:
                return np.where(np.tri(x.shape[-1], dtype=bool), np.nan, 0).astype(x.dtype)
            return np.stack([decompose(each) for each in x])

    return in_wider(context, element(node), decompose)
