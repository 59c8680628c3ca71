"""Linear algebra in NumPy."""

from __future__ import annotations

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, element, in_wider
from dlbridge.graph.ops.linear.kernels import batch_product, contraction, matrix_product
from dlbridge.proto.datatypes import DataType

_WORTH_PLANNING = 4096  # elements, above which NumPy's search for products of matrices pays


@kernel("MatMul", framework="numpy")
def matmul(node: Node, context: Context) -> Function:
    return matrix_product(node, _product(context, element(node)))


@kernel("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", framework="numpy")
def batch_matmul(node: Node, context: Context) -> Function:
    return batch_product(node, context, _product(context, node.output_types[0]))


def _product(context: Context, kind: DataType) -> Function:
    """Return matmul; NumPy's has no half precision, whose products are added up in float32."""
    return in_wider(context, kind, np.matmul)


@kernel("Einsum", framework="numpy")
def einsum(node: Node, context: Context) -> Function:
    return contraction(node, context, _planned)


def _planned(text: str, *arrays: Array) -> Array:
    size = sum([array.size for array in arrays])
    return np.einsum(text, *arrays, optimize=size > _WORTH_PLANNING)


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
