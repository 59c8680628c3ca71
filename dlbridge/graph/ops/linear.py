"""Linear algebra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.inference import (
    Inference,
    broadcast_dims,
    merge,
    merge_dim,
    require_rank,
    unchanged,
)
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array import rank, transpose
from dlbridge.graph.ops.joining import concat
from dlbridge.graph.ops.reduce import reduce_max, reduce_sum
from dlbridge.graph.ops.shared import (
    DECOMPOSABLE,
    INDEX,
    REAL,
    Shapes,
    as_tensor,
    at_least,
    at_most_one,
    define,
    result,
    scope,
)
from dlbridge.graph.ops.unary import abs as absolute
from dlbridge.proto.datatypes import int64
from dlbridge.shape import Dims
from dlbridge.signals import not_from_handler

__all__ = [
    "cholesky", "cross", "einsum", "matmul", "matrix_band_part", "matrix_determinant",
    "matrix_diag", "matrix_diag_part", "matrix_inverse", "matrix_set_diag", "matrix_solve",
    "matrix_transpose", "matvec", "norm", "tensordot", "trace",
]  # fmt: skip


# ==== op types ====================================================================================


def _matmul(c: Inference) -> Shapes:
    """[m, k] and [k, n] give [m, n]."""
    a, b = (require_rank(c.dims(i), 2, c) for i in (0, 1))
    return [_product(a, b, c.attrs["transpose_a"], c.attrs["transpose_b"], c)]


def _product(a: Dims, b: Dims, flip_a: bool, flip_b: bool, c: Inference) -> Dims:
    rows, inner = (a[1], a[0]) if flip_a else a
    other, columns = (b[1], b[0]) if flip_b else b
    merge_dim(inner, other, c)
    return rows, columns


def _batch_matmul(c: Inference) -> Shapes:
    """Leading dimensions are broadcast; those of the first version are equal."""
    a, b = (at_least(c.dims(i), 2, c) for i in (0, 1))
    combine = merge if c.type == "BatchMatMul" else broadcast_dims
    first, second = (None if each is None else each[:-2] for each in (a, b))
    batch = combine(first, second, c)
    x, y = ((None, None) if each is None else each[-2:] for each in (a, b))
    product = _product(x, y, c.attrs["adj_x"], c.attrs["adj_y"], c)
    return [None if batch is None else (*batch, *product)]


def _einsum(c: Inference) -> Shapes:
    shapes = [c.dims(i) for i in range(len(c.inputs))]
    try:
        equation = parse_equation(c.attrs["equation"].decode(), len(shapes))
        return [contract_dims(equation, shapes)]
    except not_from_handler(ValueError) as error:
        raise c.error(str(error)) from None


def _diagonal(c: Inference) -> Shapes:
    dims = at_least(c.dims(0), 1, c)
    return [None if dims is None else (*dims, dims[-1])]


def _diagonal_part(c: Inference) -> Shapes:
    dims = at_least(c.dims(0), 2, c)
    if dims is None:
        return [None]
    return [(*dims[:-2], _smaller(*dims[-2:]))]


def _smaller(rows: int | None, columns: int | None) -> int | None:
    """Return how long the diagonal is."""
    if 0 in (rows, columns):
        return 0
    return None if rows is None or columns is None else min(rows, columns)


def _set_diagonal(c: Inference) -> Shapes:
    """The diagonal fits the matrix, and says which dimensions are before its last two."""
    dims, diagonal = at_least(c.dims(0), 2, c), at_least(c.dims(1), 1, c)
    if diagonal is None:
        return [dims]
    dims = merge(dims, (*diagonal[:-1], None, None), c)
    assert dims is not None
    merge_dim(_smaller(*dims[-2:]), diagonal[-1], c)
    return [dims]


def _square(c: Inference) -> Shapes:
    dims = at_least(c.dims(0), 2, c)
    if dims is None:
        return [None]
    side = merge_dim(dims[-2], dims[-1], c)
    return [(*dims[:-2], side, side)]


def _determinant(c: Inference) -> Shapes:
    (dims,) = _square(c)
    return [None if dims is None else dims[:-2]]


def _solve(c: Inference) -> Shapes:
    """A square matrix and its right-hand sides."""
    (matrix,), sides = _square(c), at_least(c.dims(1), 2, c)
    columns = None if sides is None else sides[-1]
    rows = None if sides is None else sides[:-1]
    rows = merge(None if matrix is None else matrix[:-1], rows, c)
    return [None if rows is None else (*rows, columns)]


def _cross(c: Inference) -> Shapes:
    dims = merge(c.dims(0), c.dims(1), c)
    at_least(dims, 1, c)
    if dims is not None and dims[-1] not in (None, 3):
        raise c.error(f"Dimension must be 3 but is {dims[-1]}")
    return [dims]


define(
    "MatMul(a: T, b: T, *, transpose_a: bool = false, transpose_b: bool = false, T: {bfloat16, "
    "float16, float32, float64, int32, int64, uint8, uint16, uint32, uint64, complex64, "
    "complex128}, grad_a: bool = false, grad_b: bool = false) -> product: T",
    shape=_matmul,
)
_ADJOINTS = "adj_x: bool = false, adj_y: bool = false, grad_x: bool = false, grad_y: bool = false"
define(
    "BatchMatMul(x: T, y: T, *, T: {bfloat16, float16, float32, float64, int32, int64, complex64, "
    f"complex128}}, {_ADJOINTS}) -> output: T",
    shape=_batch_matmul,
)
define(
    "BatchMatMulV2(x: T, y: T, *, T: {bfloat16, float16, float32, float64, int16, int32, int64, "
    f"uint8, uint16, uint32, uint64, complex64, complex128}}, {_ADJOINTS}) -> output: T",
    shape=_batch_matmul,
)
_OPERANDS = (
    "{bfloat16, float16, float32, float64, uint8, int8, int16, int32, int64, complex64, complex128}"
)
define(
    f"BatchMatMulV3(x: Ta, y: Tb, *, Ta: {_OPERANDS}, Tb: {_OPERANDS}, Tout: {{bfloat16, float16, "
    f"float32, float64, int16, int32, int64, complex64, complex128}}, {_ADJOINTS}) -> output: Tout",
    shape=_batch_matmul,
)
define(
    "Einsum(inputs: N * T, *, equation: string, N: int >= 1, T: type) -> output: T", shape=_einsum
)
define("MatrixDiag(diagonal: T, *, T: type) -> output: T", shape=_diagonal)
define("MatrixDiagPart(input: T, *, T: type) -> diagonal: T", shape=_diagonal_part)
define("MatrixSetDiag(input: T, diagonal: T, *, T: type) -> output: T", shape=_set_diagonal)
define(
    "MatrixBandPart(input: T, num_lower: Tindex, num_upper: Tindex, *, T: type, "
    f"Tindex: {INDEX} = int64) -> band: T",
    shape=unchanged,
)
define(
    f"MatrixInverse(input: T, *, adjoint: bool = false, T: {DECOMPOSABLE}) -> output: T",
    shape=_square,
)
define(
    "MatrixDeterminant(input: T, *, T: {float16, float32, float64, complex64, complex128}) "
    "-> output: T",
    shape=_determinant,
)
define(
    f"MatrixSolve(matrix: T, rhs: T, *, adjoint: bool = false, T: {DECOMPOSABLE}) -> output: T",
    shape=_solve,
)
define(f"Cholesky(input: T, *, T: {DECOMPOSABLE}) -> output: T", shape=_square)
define(f"Cross(a: T, b: T, *, T: {REAL}) -> product: T", shape=_cross)


# ==== equations of einsum =========================================================================


_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class Equation(NamedTuple):
    """The labels of each operand and of the result; `.` stands for what an ellipsis covers."""

    operands: tuple[str, ...]
    result: str


def parse_equation(text: str, count: int) -> Equation:
    """Return the equation of `count` operands; without an arrow, labels met once are the result.

    Raises:
        ValueError: it is no equation, or one of another number of operands.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        if not _TERM.fullmatch(term):
            raise ValueError(
                f"Invalid einsum equation {text!r}: each operand is letters and at most one "
                f"ellipsis, got {term!r}"
            )
    if len(terms) != count:
        raise ValueError(
            f"einsum equation {text!r} has {len(terms)} operands, but {count} tensors were given"
        )
    operands = tuple([term.replace("...", ".") for term in terms])
    result = right.replace("...", ".") if arrow else _implied(operands)
    _check_result(text, operands, result)
    return Equation(operands, result)


def _implied(operands: Sequence[str]) -> str:
    labels = "".join(operands).replace(".", "")
    once = sorted({label for label in labels if labels.count(label) == 1})
    return "." * any("." in term for term in operands) + "".join(once)


def _check_result(text: str, operands: Sequence[str], result: str) -> None:
    known = set("".join(operands))
    for label in result:
        if label not in known and label != ".":
            raise ValueError(f"einsum equation {text!r}: no operand has the label {label!r}")
        if result.count(label) > 1:
            raise ValueError(f"einsum equation {text!r}: the result has {label!r} twice")


def write_equation(equation: Equation) -> str:
    """Return the equation as text, with an arrow."""
    text = f"{','.join(equation.operands)}->{equation.result}"
    return text.replace(".", "...")


def contract_dims(equation: Equation, shapes: Sequence[Dims | None]) -> Dims | None:
    """Return the shape of the result.

    Raises:
        ValueError: the shapes do not fit the equation.
    """
    extents: dict[str, int | None] = {}
    spread: Dims | None = ()
    for term, dims in zip(equation.operands, shapes, strict=True):
        if dims is None:
            spread = None if "." in term else spread
            continue
        before, has_ellipsis, after = term.partition(".")
        free = len(dims) - len(before) - len(after)
        if free < 0 or (free and not has_ellipsis):
            raise ValueError(f"einsum: labels {term!r} do not fit {len(dims)} dimensions")
        named = dims[: len(before)] + dims[len(dims) - len(after) :]
        for label, dim in zip(before + after, named, strict=True):
            extents[label] = _agree(label, extents.get(label), dim)
        if has_ellipsis:
            spread = _spread(spread, dims[len(before) : len(before) + free])
    if "." in equation.result:
        if spread is None:
            return None
    elif spread:
        raise ValueError(
            f"einsum: Shape must be at most rank 0 but is rank {len(spread)} where the ellipsis of "
            "an operand is, since the result has none"
        )
    out: list[int | None] = []
    for label in equation.result:
        out += (spread or ()) if label == "." else [extents.get(label)]
    return tuple(out)


def _agree(label: str, known: int | None, dim: int | None) -> int | None:
    if known is None or dim is None or known == dim:
        return dim if known is None else known
    raise ValueError(f"einsum: Dimensions must be equal for {label!r}, but are {known} and {dim}")


def _spread(known: Dims | None, dims: Dims) -> Dims | None:
    if known is None:
        return None
    rank = max(len(known), len(dims))
    one, other = ((1,) * (rank - len(each)) + each for each in (known, dims))
    return tuple([_agree("...", _unit(a, b), _unit(b, a)) for a, b in zip(one, other, strict=True)])


def _unit(dim: int | None, other: int | None) -> int | None:
    """An extent of 1 is broadcast, so it says nothing."""
    return None if dim == 1 and other is None else (other if dim == 1 else dim)


# ==== functions: products, contractions, norms ====================================================


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
    if not isinstance(equation, str):
        raise UnsupportedTypeError(f"equation must be a string, got {equation!r}")
    with scope(name, "einsum", inputs):
        text = write_equation(parse_equation(equation, len(inputs)))
        return result("Einsum", (inputs,), equation=text.encode())


# ---- contractions and norms ----------------------------------------------------------------------


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """Return the sum of products over axes of a and axes of b.

    Args:
        a, b: Tensors of one dtype of numbers, or what becomes one.
        axes: a number n: the last n axes of a with the first n of b; or two lists of axes, negative
            ones from the end; or a Tensor [2, n] of them.
        name: of the operation, an Einsum, or a Reshape where ranks or axes are not known.

    Returns:
        Tensor: the axes of a that are left, then those of b.

    Raises:
        ValueError: axes that do not fit; InvalidArgumentError when only a run shows it.
        TypeError: dtypes that differ.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.tensordot([[1, 2], [3, 4]], [10, 100], axes=[[0], [0]]))
        array([310, 420], dtype=int32)
    """
    with scope(name, "Tensordot", (a, b)) as full:
        a, b = as_tensor(a, None, "a"), as_tensor(b, None, "b")
        if a._dims is None or b._dims is None or isinstance(axes, Tensor):
            return _dot_by_product(a, b, axes, full)
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


def _dot_by_product(a: Tensor, b: Tensor, axes: Any, name: str) -> Tensor:
    """Return `tensordot` as a product of two matrices: only a run knows ranks or axes."""
    of_a: Any
    of_b: Any
    if isinstance(axes, int | np.integer):
        if axes < 0:
            raise ValueError(f"`axes` must be at least 0, got {axes}")
        last: Any = rank(a)
        of_a, of_b = result("Range", (last - axes, last, 1)), np.arange(axes, dtype=np.int32)
    elif isinstance(axes, Tensor):
        of_a, of_b = apply("Unpack", (axes,), {"num": 2}).outputs
    else:
        of_a, of_b = (np.asarray(each, np.int32).reshape(-1) for each in axes)
        if len(of_a) != len(of_b):
            raise ValueError(f"tensordot: {len(of_a)} axes of a, {len(of_b)} of b")
    first, rows = _as_matrix(a, of_a, False)
    second, columns = _as_matrix(b, of_b, True)
    return result("Reshape", (matmul(first, second), concat([rows, columns], 0)), name)


def _as_matrix(x: Tensor, axes: Any, is_first: bool) -> tuple[Tensor, Tensor]:
    """Return x with `axes` as one dimension, the first or the last, and the other extents."""
    count: Any = rank(x)
    axes = result("SelectV2", (result("Less", (axes, 0)), result("AddV2", (axes, count)), axes))
    free = apply("ListDiff", (result("Range", (0, count, 1)), axes)).outputs[0]
    parts = [axes, free] if is_first else [free, axes]
    extents = result("Shape", (x,))
    chosen = [result("GatherV2", (extents, each, 0)) for each in parts]
    sizes = result("Pack", ([result("Prod", (each, 0)) for each in chosen],), axis=0)
    ordered = result("Transpose", (x, concat(parts, 0)))
    return result("Reshape", (ordered, sizes)), chosen[is_first]


def _contracted(axes: Any, rank_a: int, rank_b: int) -> list[tuple[int, int]]:
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(rank_a, rank_b):
            raise ValueError(f"`axes` must not be larger than the number of dimensions, got {axes}")
        return [(rank_a - axes + i, i) for i in range(axes)]
    of_a, of_b = (np.atleast_1d(np.asarray(each, np.int64)).tolist() for each in axes)
    if len(of_a) != len(of_b):
        raise ValueError(f"tensordot: different numbers of axes, {of_a} and {of_b}")
    for each, count in ((of_a, rank_a), (of_b, rank_b)):
        if any(not -count <= axis < count for axis in each):
            raise ValueError(f"tensordot: axes {each} do not fit {count} dimensions")
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
    keep = bool(at_most_one("norm", None, keep_dims=keep_dims, keepdims=keepdims))
    is_matrix = isinstance(axis, list | tuple)
    if is_matrix and (len(axis) != 2 or axis[0] == axis[1]):
        raise ValueError(
            f"'axis' must be None, an integer, or a tuple of 2 unique integers, got {axis}"
        )
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


# ==== functions: matrices =========================================================================


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
