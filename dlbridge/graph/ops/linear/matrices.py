"""Matrices: their diagonals, bands, inverses and factors: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array.functions import rank, transpose
from dlbridge.graph.ops.functions import as_tensor, result, scope
from dlbridge.graph.ops.joining.functions import concat
from dlbridge.graph.ops.reduce.functions import reduce_sum
from dlbridge.proto.datatypes import int64

__all__ = [
    "cholesky",
    "cross",
    "matrix_band_part",
    "matrix_determinant",
    "matrix_diag",
    "matrix_diag_part",
    "matrix_inverse",
    "matrix_set_diag",
    "matrix_solve",
    "matrix_transpose",
    "trace",
]


def matrix_determinant(x: Any, name: str | None = None) -> Tensor:
    """Return the determinants of square matrices: [..., n, n] gives [...].

    Of float16 (computed in float32), float32, float64 and complex numbers.

    Raises:
        ValueError: matrices that are not square.
        TypeError: another dtype.
    """
    return result("MatrixDeterminant", (x,), name)


def cholesky(x: Any, name: str | None = None) -> Tensor:
    """Return the lower triangular factors L of positive definite matrices: L times its adjoint.

    Args:
        x: [..., n, n] of float16 (computed in float32), float32, float64 or complex numbers;
            only the lower triangle is read.
        name: of the operation, "Cholesky" by default.

    Returns:
        Tensor: of that shape and dtype, 0 above the diagonal. A matrix that is not positive
        definite gives NaN in the lower triangle, and no error.

    Raises:
        ValueError: matrices that are not square.
        TypeError: another dtype.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.cholesky([[4.0, 2.0], [2.0, 10.0]]))
        array([[2., 0.],
               [1., 3.]], dtype=float32)
    """
    return result("Cholesky", (x,), name)


def matrix_diag(diagonal: Any, name: str = "diag") -> Tensor:
    """Return square matrices of zeros with vectors as their diagonals: [..., n] gives [..., n, n].

    Of any dtype of numbers, or bool. ValueError: a scalar.
    """
    return result("MatrixDiag", (diagonal,), name)


def matrix_diag_part(input: Any, name: str = "diag_part") -> Tensor:
    """Return the diagonals of matrices: [..., m, n] gives [..., min(m, n)].

    Of any dtype; ValueError for fewer than two dimensions.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.matrix_diag_part([[1, 2, 3], [4, 5, 6]]))
        array([1, 5], dtype=int32)
    """
    return result("MatrixDiagPart", (input,), name)


def matrix_set_diag(input: Any, diagonal: Any, name: str = "set_diag") -> Tensor:
    """Return matrices with other diagonals.

    Args:
        input: a Tensor [..., m, n], or what becomes one.
        diagonal: [..., min(m, n)] of its dtype; nothing is broadcast.
        name: of the operation, "set_diag" by default.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: dtypes that differ.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.matrix_set_diag([[1, 2, 3], [4, 5, 6]], [0, 0]))
        array([[0, 2, 3],
               [4, 0, 6]], dtype=int32)
    """
    return result("MatrixSetDiag", (input, diagonal), name)


def matrix_band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Tensor:
    """Return matrices with zeros outside of a band around the diagonal.

    Args:
        input: a Tensor [..., m, n], or what becomes one.
        num_lower, num_upper: how many diagonals are kept below and above the main one, int64 or
            Tensors of int32 or int64; a negative number keeps them all.
        name: of the operation, "MatrixBandPart" by default.

    A width that is more than m, or n, ends a run with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.matrix_band_part([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 0, -1))
        array([[1, 2, 3],
               [0, 5, 6],
               [0, 0, 9]], dtype=int32)
    """
    widths = [
        each if isinstance(each, Tensor) else as_tensor_of_int64(each)
        for each in (num_lower, num_upper)
    ]
    return result("MatrixBandPart", (input, *widths), name)


def as_tensor_of_int64(value: Any) -> Any:
    """Return a number as an array of int64, which becomes a constant under the operation."""
    return np.asarray(value, int64.numpy)


def matrix_inverse(input: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the inverses of square matrices, [..., n, n].

    Args:
        input: of float16 (computed in float32), float32, float64 or complex numbers.
        adjoint: whether the conjugate transpose is inverted.
        name: of the operation, "MatrixInverse" by default.

    Raises:
        ValueError: matrices that are not square.
        TypeError: another dtype.

    A singular matrix ends a run with InvalidArgumentError; in JAX, which cannot look at traced
    values, it gives infinity or NaN.
    """
    return result("MatrixInverse", (input,), name, adjoint=adjoint)


def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the solutions X of matrix @ X = rhs: [..., n, n] and [..., n, k] give [..., n, k].

    Leading dimensions are equal, not broadcast; a vector as `rhs` is refused. With `adjoint` the
    conjugate transpose of the matrix is taken. Dtypes and errors, also those of singular matrices,
    as of `matrix_inverse`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.matrix_solve([[2.0, 0.0], [0.0, 4.0]], [[2.0], [8.0]]))
        array([[1.],
               [2.]], dtype=float32)
    """
    return result("MatrixSolve", (matrix, rhs), name, adjoint=adjoint)


def cross(a: Any, b: Any, name: str | None = None) -> Tensor:
    """Return vector products along the last dimension, of extent 3.

    Args:
        a, b: Tensors of one shape and dtype, floating numbers or integers, or what becomes one;
            nothing is broadcast.
        name: of the operation, "Cross" by default.

    Raises:
        ValueError: shapes that differ, or another extent; InvalidArgumentError when only a run
            shows it.
        TypeError: dtypes that differ, or are others.
    """
    return result("Cross", (a, b), name)


def trace(x: Any, name: str | None = None) -> Tensor:
    """Return the sums of the diagonals of matrices: [..., m, n] gives [...].

    Of all numbers, in their dtype. ValueError: fewer than two dimensions; TypeError: bool or
    strings.
    """
    with scope(name, "Trace", (x,)) as full:
        diagonal = matrix_diag_part(as_tensor(x, None, "x"))
        return reduce_sum(diagonal, [-1], name=full)  # type: ignore[no-any-return]


def matrix_transpose(
    a: Any, name: str | None = "matrix_transpose", conjugate: bool = False
) -> Tensor:
    """Return each of a batch of matrices, shape [..., m, n], transposed.

    Raises:
        ValueError: fewer than two axes.
    """
    graph = graph_of((a,))
    with graph.as_default(), graph.name_scope(name or "matrix_transpose"):
        tensor = as_tensor(a, None, "a")
        dims = tensor._dims
        if dims is None:
            count = rank(tensor)
            two, one, again = [apply("Sub", (count, i), None, "sub").outputs[0] for i in (2, 1, 2)]
            head = apply("Range", (0, two, 1)).outputs[0]
            return transpose(tensor, concat((head, [one, again]), 0), conjugate=conjugate)
        if len(dims) < 2:
            raise ValueError(
                "Argument `a` should be a (batch) matrix with rank >= 2. "
                f"Received `a` = {tensor.name} with shape: {tensor.shape}"
            )
        perm = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        return transpose(tensor, perm, conjugate=conjugate)
