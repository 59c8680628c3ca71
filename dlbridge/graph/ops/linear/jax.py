"""Linear algebra in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element, in_wider


@kernel("Cholesky", framework="jax")
def cholesky(node: Node, context: Context) -> Function:
    """NaN in the lower triangle where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        return jnp.tril(jnp.linalg.cholesky(x, symmetrize_input=False))

    return in_wider(context, element(node), decompose)
