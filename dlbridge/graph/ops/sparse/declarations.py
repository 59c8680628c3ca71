"""Op types of sparse tensors: indices int64 [N, R], values [N], dense shape int64 [R]."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes

NUMBERS = (
    "{float32, float64, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, qint16, quint16, uint16, complex128, float16, uint32, uint64}"
)
REALS = (
    "{float32, float64, int32, uint8, int16, int8, int64, bfloat16, uint16, float16, uint32, "
    "uint64}"
)


def _check(c: Inference, indices: int, values: int, shape: int) -> int | None:
    """Check the three inputs of a sparse tensor; return its rank, None where it is unknown."""
    places = require_rank(c.dims(indices), 2, c)
    numbers = require_rank(c.dims(values), 1, c)
    extents = require_rank(c.dims(shape), 1, c)
    merge_dim(places[0], numbers[0], c)
    return merge_dim(places[1], extents[0], c)


def _to_dense(c: Inference) -> Shapes:
    return [c.constant_dims(1)]


def _matmul(c: Inference) -> Shapes:
    require_rank(c.dims(0), 2, c)
    require_rank(c.dims(1), 1, c)
    a = require_rank(c.constant_dims(2), 2, c)
    b = require_rank(c.dims(3), 2, c)
    rows, inner = reversed(a) if c.attrs["adjoint_a"] else a
    other, columns = reversed(b) if c.attrs["adjoint_b"] else b
    merge_dim(inner, other, c)
    return [(rows, columns)]


def _reorder(c: Inference) -> Shapes:
    _check(c, 0, 1, 2)
    return [require_rank(c.dims(0), 2, c), require_rank(c.dims(1), 1, c)]


def _reshape(c: Inference) -> Shapes:
    places = require_rank(c.dims(0), 2, c)
    require_rank(c.dims(1), 1, c)
    new = require_rank(c.dims(2), 1, c)
    return [(places[0], new[0]), (new[0],)]


def _add(c: Inference) -> Shapes:
    rank = merge_dim(_check(c, 0, 1, 2), _check(c, 3, 4, 5), c)
    merge(c.dims(2), c.dims(5), c)
    return [(None, rank), (None,), (rank,)]


define(
    "SparseToDense(sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, "
    "default_value: T, *, validate_indices: bool = true, T: type, Tindices: {int32, int64}) "
    "-> dense: T",
    shape=_to_dense,
)
define(
    "SparseTensorDenseMatMul(a_indices: Tindices, a_values: T, a_shape: int64, b: T, *, T: type, "
    "Tindices: {int32, int64} = int64, adjoint_a: bool = false, adjoint_b: bool = false) "
    "-> product: T",
    shape=_matmul,
)
define(
    "SparseTensorDenseAdd(a_indices: Tindices, a_values: T, a_shape: Tindices, b: T, *, "
    f"T: {NUMBERS}, Tindices: {{int32, int64}}) -> output: T",
    shape=lambda c: [c.dims(3)],
)
define(
    "SparseReorder(input_indices: int64, input_values: T, input_shape: int64, *, T: type) "
    "-> (output_indices: int64, output_values: T)",
    shape=_reorder,
)
define(
    "SparseReshape(input_indices: int64, input_shape: int64, new_shape: int64) "
    "-> (output_indices: int64, output_shape: int64)",
    shape=_reshape,
)
define(
    "SparseAdd(a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, "
    f"b_shape: int64, thresh: Treal, *, T: {NUMBERS}, Treal: {REALS}) "
    "-> (sum_indices: int64, sum_values: T, sum_shape: int64)",
    shape=_add,
)
