"""Linear algebra: products, diagonals, decompositions."""

from __future__ import annotations

from dlbridge.graph.core.inference import (
    Inference,
    broadcast_dims,
    merge,
    merge_dim,
    require_rank,
    unchanged,
)
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import DECOMPOSABLE, INDEX, REAL, Shapes
from dlbridge.graph.ops.linear.einsum import contract, parse
from dlbridge.shape import Dims


def _matmul(c: Inference) -> Shapes:
    """[m, k] and [k, n] give [m, n]."""
    a, b = (require_rank(c.dims(i), 2, c) for i in (0, 1))
    return [_product(a, b, c.attrs["transpose_a"], c.attrs["transpose_b"], c)]


def _product(a: Dims, b: Dims, flip_a: bool, flip_b: bool, c: Inference) -> Dims:
    rows, inner = (a[1], a[0]) if flip_a else a
    other, columns = (b[1], b[0]) if flip_b else b
    merge_dim(inner, other, c)
    return rows, columns


def _at_least(dims: Dims | None, rank: int, c: Inference) -> Dims | None:
    if dims is not None and len(dims) < rank:
        raise c.error(f"Shape must be at least rank {rank} but is rank {len(dims)}")
    return dims


def _batch_matmul(c: Inference) -> Shapes:
    """Leading dimensions are broadcast; those of the first version are equal."""
    a, b = (_at_least(c.dims(i), 2, c) for i in (0, 1))
    if a is None or b is None:
        return [None]
    batch = (merge if c.type == "BatchMatMul" else broadcast_dims)(a[:-2], b[:-2], c)
    assert batch is not None
    return [(*batch, *_product(a[-2:], b[-2:], c.attrs["adj_x"], c.attrs["adj_y"], c))]


def _einsum(c: Inference) -> Shapes:
    shapes = [c.dims(i) for i in range(len(c.inputs))]
    try:
        equation = parse(c.attrs["equation"].decode(), len(shapes))
        return [contract(equation, shapes)]
    except ValueError as error:
        raise c.error(str(error)) from None


def _diagonal(c: Inference) -> Shapes:
    dims = _at_least(c.dims(0), 1, c)
    return [None if dims is None else (*dims, dims[-1])]


def _diagonal_part(c: Inference) -> Shapes:
    dims = _at_least(c.dims(0), 2, c)
    if dims is None:
        return [None]
    rows, columns = dims[-2:]
    return [(*dims[:-2], None if rows is None or columns is None else min(rows, columns))]


def _set_diagonal(c: Inference) -> Shapes:
    """The diagonal fits the matrix."""
    dims, diagonal = _at_least(c.dims(0), 2, c), _at_least(c.dims(1), 1, c)
    if dims is None or diagonal is None:
        return [dims]
    smallest = None if None in dims[-2:] else min(dims[-2:])  # type: ignore[type-var]
    merge((*dims[:-2], smallest), diagonal, c)
    return [dims]


def _square(c: Inference) -> Shapes:
    dims = _at_least(c.dims(0), 2, c)
    if dims is None:
        return [None]
    side = merge_dim(dims[-2], dims[-1], c)
    return [(*dims[:-2], side, side)]


def _determinant(c: Inference) -> Shapes:
    (dims,) = _square(c)
    return [None if dims is None else dims[:-2]]


def _solve(c: Inference) -> Shapes:
    """A square matrix and its right-hand sides."""
    (matrix,), sides = _square(c), _at_least(c.dims(1), 2, c)
    if matrix is None or sides is None:
        return [None]
    batch = merge(matrix[:-2], sides[:-2], c)
    assert batch is not None
    return [(*batch, merge_dim(matrix[-1], sides[-2], c), sides[-1])]


def _cross(c: Inference) -> Shapes:
    dims = merge(c.dims(0), c.dims(1), c)
    _at_least(dims, 1, c)
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
