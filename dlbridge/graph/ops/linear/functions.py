"""Products of matrices, contractions and norms: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_tensor, result, scope
from dlbridge.graph.ops.linear import einsum as equations
from dlbridge.graph.ops.reduce.functions import reduce_max, reduce_sum
from dlbridge.graph.ops.unary.functions import abs as absolute

__all__ = ["einsum", "matmul", "matvec", "norm", "tensordot"]


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
        a, b: Tensors of one dtype, or what becomes one, [..., m, k] and [..., k, n]: floating
            numbers, complex numbers, int32, int64 and unsigned integers; int16 only with more than
            two dimensions. NumPy adds up products of halves in float32.
        transpose_a, transpose_b: whether rows and columns are swapped first.
        adjoint_a, adjoint_b: the same, and complex numbers conjugated.
        a_is_sparse, b_is_sparse: accepted, and of no effect.
        name: of the operation, "MatMul" by default; its type is BatchMatMulV2 unless both are known
            to have two dimensions.

    Returns:
        Tensor: [..., m, n] of that dtype.

    Raises:
        ValueError: an operand both transposed and adjoint, or a vector (see `matvec`); shapes that
            do not fit. Where they get known only in a run, that ends with InvalidArgumentError.
        TypeError: dtypes that differ, or are others.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.matmul([[1, 2], [3, 4]], [[1, 0], [0, 10]], transpose_a=True))
        array([[ 1, 30],
               [ 2, 40]], dtype=int32)
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
            return result("MatMul", (a, b), full, **flips)
        # Adjoint and transposed are one attribute here, so a mere transpose is conjugated twice.
        a, b = _conjugated(a, transpose_a), _conjugated(b, transpose_b)
        adjoints = {"adj_x": transpose_a or adjoint_a, "adj_y": transpose_b or adjoint_b}
        return result("BatchMatMulV2", (a, b), full, **adjoints)


def _conjugated(x: Tensor, wanted: bool) -> Tensor:
    return result("Conj", (x,)) if wanted and x.dtype.is_complex else x


def matvec(
    a: Any, b: Any, transpose_a: bool = False, adjoint_a: bool = False, name: str | None = None
) -> Tensor:
    """Return the product of matrices and vectors: [..., m, k] and [..., k] give [..., m].

    Dtypes and other arguments as of `matmul`, with `name` of a scope.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.linalg.matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0]))
        array([21., 43.], dtype=float32)
    """
    with scope(name, "MatVec", (a, b)):
        column = result("ExpandDims", (as_tensor(b, None, "b"), -1))
        product = matmul(a, column, transpose_a=transpose_a, adjoint_a=adjoint_a)
        return result("Squeeze", (product,), squeeze_dims=[-1])


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Tensor:
    """Return the sum that an equation such as "ij,jk->ik" describes.

    Args:
        equation: a label for each dimension of each input, commas between inputs; after an arrow
            those of the result (without an arrow, labels met once, sorted). `...` stands for any
            number of dimensions, which are broadcast.
        *inputs: as many Tensors of one dtype of numbers as the equation names; halves are computed
            in float32.
        name: of the scope.

    Raises:
        ValueError: the equation is wrong, or does not fit the inputs; InvalidArgumentError when
            only a run shows it.
        TypeError: dtypes that differ.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.einsum("i,j->ij", [1, 2], [3, 4]))
        array([[3, 4],
               [6, 8]], dtype=int32)
    """
    with scope(name, "einsum", inputs):
        text = equations.write(equations.parse(equation, len(inputs)))
        return result("Einsum", (inputs,), equation=text.encode())


# ---- contractions and norms ----------------------------------------------------------------------


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """Return the sum of products over axes of a and axes of b.

    Args:
        a, b: Tensors of one dtype of numbers, or what becomes one, of known rank.
        axes: a number n: the last n axes of a with the first n of b; or two lists of axes, negative
            ones from the end.
        name: of the operation, an Einsum.

    Returns:
        Tensor: the axes of a that are left, then those of b.

    Raises:
        ValueError: a rank that is not known; axes that do not fit.
        TypeError: dtypes that differ.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.tensordot([[1, 2], [3, 4]], [10, 100], axes=[[0], [0]]))
        array([310, 420], dtype=int32)
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
        return result("Einsum", ([a, b],), full, equation=text.encode())


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
        tensor: a Tensor of floating or complex numbers, or what becomes one.
        ord: "euclidean", 1, 2, infinity or any positive number; of matrices "euclidean", "fro", 1
            or infinity. There is no spectral norm (2 of matrices).
        axis: one for vectors, a list of two for matrices; None is all elements as one vector.
        keepdims, keep_dims: whether the axes stay, with an extent of 1.
        name: of the scope.

    Raises:
        ValueError: a norm that is not defined, or an axis that the tensor does not have.
        TypeError: integers, which have no root.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.norm([[3.0, 4.0], [0.0, 1.0]], axis=1))
        array([5., 1.], dtype=float32)
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
        return result("Mul", (x, x), "mul")
    return result("Mul", (x, result("Conj", (x,))), "mul")


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
    return result("Squeeze", (extreme,), squeeze_dims=list(axis))
