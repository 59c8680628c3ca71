"""Linear algebra: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution import einsum as equations
from dlbridge.graph.functions.math_reduce import reduce_max, reduce_sum
from dlbridge.graph.functions.math_support import as_tensor, result, scope, unary
from dlbridge.graph.functions.math_unary import abs as absolute
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import int64

__all__ = [
    "cholesky", "cross", "einsum", "matmul", "matrix_band_part", "matrix_determinant",
    "matrix_diag", "matrix_diag_part", "matrix_inverse", "matrix_set_diag", "matrix_solve",
    "matvec", "norm", "tensordot", "trace",
]  # fmt: skip

cholesky = unary("Cholesky", "Return the lower triangular factor of positive definite matrices.")
matrix_determinant = unary("MatrixDeterminant", "Return determinants.", "matrix_determinant")


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,  # noqa: ARG001
    b_is_sparse: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Tensor:
    """Return the product of matrices, the last two dimensions; the others are broadcast.

    Args:
        a, b: Tensors, or what becomes one.
        transpose_a, transpose_b: whether rows and columns are swapped first.
        adjoint_a, adjoint_b: the same, and complex numbers conjugated.
        a_is_sparse, b_is_sparse: accepted, and of no effect.
        name: of the operation, "MatMul" by default.

    Raises:
        ValueError: an operand both transposed and adjoint; shapes that do not fit.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of `transpose` and `adjoint` can be True for an operand.")
    with scope(name, "MatMul", (a, b)) as full:
        other = b.dtype.base_dtype if isinstance(b, Tensor) and not isinstance(a, Tensor) else None
        a = as_tensor(a, other, "a")
        b = as_tensor(b, a.dtype.base_dtype, "b")
        if all(each._dims is not None and len(each._dims) <= 2 for each in (a, b)):
            a, b = _conjugated(a, adjoint_a), _conjugated(b, adjoint_b)
            flips = {
                "transpose_a": transpose_a or adjoint_a,
                "transpose_b": transpose_b or adjoint_b,
            }
            return result("MatMul", (a, b), flips, full)
        # Adjoint and transposed are one attribute here, so a mere transpose is conjugated twice.
        a, b = _conjugated(a, transpose_a), _conjugated(b, transpose_b)
        adjoints = {"adj_x": transpose_a or adjoint_a, "adj_y": transpose_b or adjoint_b}
        return result("BatchMatMulV2", (a, b), adjoints, full)


def _conjugated(x: Tensor, wanted: bool) -> Tensor:
    return result("Conj", (x,)) if wanted and x.dtype.is_complex else x


def matvec(
    a: Any, b: Any, transpose_a: bool = False, adjoint_a: bool = False, name: str | None = None
) -> Tensor:
    """Return the product of matrices and vectors, the last dimension of b."""
    with scope(name, "MatVec", (a, b)):
        column = result("ExpandDims", (as_tensor(b, None, "b"), -1))
        product = matmul(a, column, transpose_a=transpose_a, adjoint_a=adjoint_a)
        return result("Squeeze", (product,), {"squeeze_dims": [-1]})


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Tensor:
    """Return the sum that an equation such as "ij,jk->ik" describes.

    Args:
        equation: a label for each dimension of each input, commas between inputs; after an arrow
            those of the result (without an arrow, labels met once, sorted). `...` stands for any
            number of dimensions, which are broadcast.
        *inputs: as many Tensors as the equation names.
        name: of the scope.

    Raises:
        ValueError: the equation is wrong, or does not fit the inputs.
    """
    with scope(name, "einsum", inputs):
        text = equations.write(equations.parse(equation, len(inputs)))
        return result("Einsum", (inputs,), {"equation": text.encode()})


# ---- contractions and norms ----------------------------------------------------------------------


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """Return the sum of products over axes of a and axes of b.

    Args:
        a, b: Tensors, or what becomes one, of known rank.
        axes: a number n: the last n axes of a with the first n of b; or two lists of axes.
        name: of the scope.

    Raises:
        ValueError: a rank that is not known; axes that do not fit.
    """
    with scope(name, "Tensordot", (a, b)) as full:
        a, b = as_tensor(a, None, "a"), as_tensor(b, None, "b")
        if a._dims is None or b._dims is None:
            raise ValueError(
                f"tensordot: the ranks of both tensors must be known, got {a.shape} and {b.shape}; "
                "use set_shape"
            )
        pairs = _contracted(axes, len(a._dims), len(b._dims))
        letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        first = [next(letters) for _ in a._dims]
        second = [next(letters) for _ in b._dims]
        for i, j in pairs:
            second[j] = first[i]
        shared = {first[i] for i, _ in pairs}
        kept = [label for label in (*first, *second) if label not in shared]
        text = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
        return result("Einsum", ([a, b],), {"equation": text.encode()}, full)


def _contracted(axes: Any, rank_a: int, rank_b: int) -> list[tuple[int, int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(rank_a, rank_b):
            raise ValueError(f"`axes` must not be larger than the number of dimensions, got {axes}")
        return [(rank_a - axes + i, i) for i in range(axes)]
    of_a, of_b = (np.atleast_1d(np.asarray(each, np.int64)).tolist() for each in axes)
    if len(of_a) != len(of_b):
        raise ValueError(f"tensordot: different numbers of axes, {of_a} and {of_b}")
    for each, rank in ((of_a, rank_a), (of_b, rank_b)):
        if any(not -rank <= axis < rank for axis in each):
            raise ValueError(f"tensordot: axes {each} do not fit {rank} dimensions")
    return [(i % rank_a, j % rank_b) for i, j in zip(of_a, of_b, strict=True)]


def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the norm of vectors, or of matrices; the Euclidean one of complex numbers is complex.

    Args:
        tensor: a Tensor, or what becomes one.
        ord: "euclidean", 1, 2, infinity or any positive number; of matrices "euclidean", "fro", 1
            or infinity.
        axis: one for vectors, two for matrices; None is all elements as one vector.
        keepdims, keep_dims: whether the axes stay, with an extent of 1.
        name: of the scope.

    Raises:
        ValueError: a norm that is not defined.
    """
    keep = bool(keep_dims if keepdims is None else keepdims)
    is_matrix = isinstance(axis, list | tuple) and len(axis) == 2
    with scope(name, "norm", (tensor,)):
        x = as_tensor(tensor, None, "tensor")
        if ord in ("euclidean", "fro") or (ord == 2 and not is_matrix):
            if ord == "fro" and not is_matrix:
                raise ValueError("norm: 'fro' is for matrices; name two axes")
            squares = _squares(x)
            return result("Sqrt", (reduce_sum(squares, axis, keepdims=keep),))
        if is_matrix:
            return _matrix_norm(absolute(x), ord, axis, keep)
        return _vector_norm(absolute(x), ord, axis, keep)


def _squares(x: Tensor) -> Tensor:
    if not x.dtype.is_complex:
        return result("Mul", (x, x), None, "mul")
    return result("Mul", (x, result("Conj", (x,))), None, "mul")


def _vector_norm(x: Tensor, order: Any, axis: Any, keep: bool) -> Tensor:
    if order == np.inf:
        return reduce_max(x, axis, keepdims=keep)  # type: ignore[no-any-return]
    if order == 1:
        return reduce_sum(x, axis, keepdims=keep)  # type: ignore[no-any-return]
    if isinstance(order, str) or order <= 0:
        raise ValueError(f"'ord' must be a supported vector norm, got {order!r}")
    total = reduce_sum(result("Pow", (x, float(order))), axis, keepdims=keep)
    return result("Pow", (total, 1.0 / order))


def _matrix_norm(x: Tensor, order: Any, axis: Any, keep: bool) -> Tensor:
    rows, columns = axis
    if order not in (1, np.inf):
        raise ValueError(
            "'ord' must be a supported matrix norm ('euclidean', 'fro', 1, infinity), got "
            f"{order!r}"
        )
    added, compared = (rows, columns) if order == 1 else (columns, rows)
    extreme = reduce_max(reduce_sum(x, added, keepdims=True), compared, keepdims=True)
    if keep:
        return extreme  # type: ignore[no-any-return]
    return result("Squeeze", (extreme,), {"squeeze_dims": list(axis)})


# ---- matrices ------------------------------------------------------------------------------------


def matrix_diag(diagonal: Any, name: str = "diag") -> Tensor:
    """Return square matrices of zeros with the last dimension as their diagonals."""
    return result("MatrixDiag", (diagonal,), None, name)


def matrix_diag_part(input: Any, name: str = "diag_part") -> Tensor:
    """Return the diagonals of matrices, the last two dimensions."""
    return result("MatrixDiagPart", (input,), None, name)


def matrix_set_diag(input: Any, diagonal: Any, name: str = "set_diag") -> Tensor:
    """Return matrices with other diagonals."""
    return result("MatrixSetDiag", (input, diagonal), None, name)


def matrix_band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Tensor:
    """Return matrices with zeros outside of a band; a negative width keeps that whole side."""
    widths = [
        each if isinstance(each, Tensor) else as_tensor_of_int64(each)
        for each in (num_lower, num_upper)
    ]
    return result("MatrixBandPart", (input, *widths), None, name)


def as_tensor_of_int64(value: Any) -> Any:
    """Return a number as an array of int64, which becomes a constant under the operation."""
    return np.asarray(value, int64.numpy)


def matrix_inverse(input: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return inverses; InvalidArgumentError for a singular matrix."""
    return result("MatrixInverse", (input,), {"adjoint": adjoint}, name)


def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the solutions X of matrix @ X = rhs; InvalidArgumentError for a singular matrix."""
    return result("MatrixSolve", (matrix, rhs), {"adjoint": adjoint}, name)


def cross(a: Any, b: Any, name: str | None = None) -> Tensor:
    """Return vector products along the last dimension, of extent 3."""
    return result("Cross", (a, b), None, name)


def trace(x: Any, name: str | None = None) -> Tensor:
    """Return the sums of the diagonals of matrices, the last two dimensions."""
    with scope(name, "Trace", (x,)) as full:
        diagonal = matrix_diag_part(as_tensor(x, None, "x"))
        return reduce_sum(diagonal, [-1], name=full)  # type: ignore[no-any-return]
