"""Sparse tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import apply, convert_to_tensor
from dlbridge.graph.core.inference import Inference, constant_dims, merge, merge_dim, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.arithmetic import real_operands
from dlbridge.graph.ops.basic import identity, placeholder, placeholder_with_default
from dlbridge.graph.ops.generate import zeros
from dlbridge.graph.ops.shared import NUMBER, REAL, Shapes, as_tensor, define, result, scope
from dlbridge.graph.ops.sparse_tensor import SparseTensor, SparseTensorValue
from dlbridge.graph.ops.unary import cast
from dlbridge.proto.datatypes import int64
from dlbridge.shape import Dims, TensorShape, as_shape

__all__ = [
    "sparse_add",
    "sparse_placeholder",
    "sparse_reorder",
    "sparse_reshape",
    "sparse_tensor_dense_matmul",
    "sparse_tensor_to_dense",
    "sparse_to_dense",
]


# ==== op types: indices int64 [N, R], values [N], dense shape int64 [R] ===========================


def _check(c: Inference, indices: int, values: int, shape: int) -> int | None:
    """Check the three inputs of a sparse tensor; return its rank, None where it is unknown."""
    places = require_rank(c.dims(indices), 2, c)
    numbers = require_rank(c.dims(values), 1, c)
    extents = require_rank(c.dims(shape), 1, c)
    merge_dim(places[0], numbers[0], c)
    return merge_dim(places[1], extents[0], c)


def _to_dense(c: Inference) -> Shapes:
    require_rank(c.dims(1), 1, c)
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
    f"T: {NUMBER}, Tindices: {{int32, int64}}) -> output: T",
    shape=lambda c: [c.dims(3)],
)
for _type in ("Mul", "Div"):
    define(
        f"SparseDenseCwise{_type}(sp_indices: int64, sp_values: T, sp_shape: int64, dense: T, *, "
        f"T: {NUMBER}) -> output: T",
        shape=lambda c: [require_rank(c.dims(0), 2, c)[:1]],
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
    f"b_shape: int64, thresh: Treal, *, T: {NUMBER}, Treal: {REAL}) "
    "-> (sum_indices: int64, sum_values: T, sum_shape: int64)",
    shape=_add,
)


# ==== functions ===================================================================================


def sparse_placeholder(
    dtype: object, shape: object = None, name: str | None = None
) -> SparseTensor:
    """Create a SparseTensor to be fed with a SparseTensorValue or a tuple of its three parts.

    Args:
        dtype: of the values.
        shape: the dense shape as far as it is known, or an int64 Tensor of it. If its rank is
            known, the part `dense_shape` need not be fed; then -1 stands for unknown extents. A
            tuple of the other two parts is a feed where the whole shape is constant.
        name: `name/indices`, `name/values` and `name/shape` are the names of the parts.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     sparse = tf.sparse_placeholder(tf.float32, [2, 3])
        ...     dense = tf.sparse.to_dense(sparse)
        ...     session.run(dense, {sparse: ([[0, 1]], [5.0], [2, 3])})
        array([[0., 5., 0.],
               [0., 0., 0.]], dtype=float32)
    """

    def named(part: str) -> str | None:
        return None if name is None else f"{name}/{part}"

    default = None
    if isinstance(shape, Tensor):
        default = convert_to_tensor(shape, int64)
        (count,) = default.shape.with_rank(1).as_list()
        dims = constant_dims(default)
        known = as_shape([None] * count if dims is None and count is not None else dims)
    else:
        known = as_shape(shape)
        if known.dims is not None:
            extents = np.array([-1 if dim is None else dim for dim in known.dims], np.int64)
            default = convert_to_tensor(extents, name=named("shape_default"))
    rank = known.rank
    if default is None:
        dense_shape = placeholder(int64, [None], named("shape"))
    else:
        dense_shape = placeholder_with_default(default, [rank], named("shape"))
    values = placeholder(dtype, [None], named("values"))
    indices = placeholder(int64, [None, rank], named("indices"))
    made = SparseTensor(indices, values, dense_shape)
    made._shape = known
    return made


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Return a dense Tensor with some elements given and `default_value` elsewhere.

    Args:
        sparse_indices: integers [N, R], or [N] for a vector, or a scalar.
        output_shape: of the result, of the same dtype.
        sparse_values: [N], or one for all.
        default_value: of the other elements.
        validate_indices: whether indices out of order or repeated are an error.
        name: of the operation.

    Raises:
        InvalidArgumentError: in a run: indices out of bounds, or not in order.
    """
    inputs = (sparse_indices, output_shape, sparse_values, default_value)
    return apply("SparseToDense", inputs, {"validate_indices": validate_indices}, name).outputs[0]


def sparse_tensor_to_dense(
    sp_input: SparseTensor,
    default_value: Any = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Return a SparseTensor as a dense Tensor; see `sparse_to_dense`."""
    sp_input = _read(sp_input, "sparse_tensor_to_dense")
    if default_value is None:
        default_value = zeros([], sp_input.dtype)
    return sparse_to_dense(
        sp_input.indices,
        sp_input.dense_shape,
        sp_input.values,
        default_value,
        validate_indices,
        name,
    )


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Return the same SparseTensor with its elements in lexicographic order."""
    sp_input = _read(sp_input, "sparse_reorder")
    inputs = (sp_input.indices, sp_input.values, sp_input.dense_shape)
    indices, values = apply("SparseReorder", inputs, None, name).outputs
    return SparseTensor(indices, values, _extents(sp_input))


def _extents(sparse: SparseTensor) -> Any:
    """Return the dense shape: as numbers where they are known."""
    shape = sparse.shape
    if shape.is_fully_defined():
        return np.array(shape.as_list(), np.int64)
    return identity(sparse.dense_shape)


def sparse_reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """Return a SparseTensor of another dense shape, one extent of which may be -1.

    Raises:
        ValueError: another number of elements, as far as both are known.
        InvalidArgumentError: the same, when run.
    """
    sp_input = _read(sp_input, "sparse_reshape")
    wanted = cast(shape, int64)
    graph = sp_input.graph
    with graph.as_default(), graph.name_scope(name or "SparseReshape") as scope:
        inputs = (sp_input.indices, sp_input.dense_shape, wanted)
        indices, extents = apply("SparseReshape", inputs, None, scope).outputs
        settled = _settle(sp_input.shape, constant_dims(wanted))
        if settled is not None:
            extents = convert_to_tensor(np.array(settled, np.int64))
        return SparseTensor(indices, identity(sp_input.values), extents)


def _settle(old: TensorShape, new: Dims | None) -> list[int] | None:
    """Return the new dense shape, or None where it is not known yet."""
    if new is None or not old.is_fully_defined():
        return None
    count, known = old.num_elements() or 0, math.prod(dim for dim in new if dim is not None)
    if new.count(None) > 1 or (None in new and not known):
        return None
    if count % known if None in new else count != known:
        raise ArgumentError(
            f"Cannot reshape a tensor with {count} elements to shape {list(new)} ({known} elements)"
        )
    return [count // known if dim is None else dim for dim in new]


def sparse_add(a: Any, b: Any, threshold: float = 0, thresh: float | None = None) -> Any:
    """Return the sum of two SparseTensors, or of one and a Tensor.

    Args:
        a: a SparseTensor, or a Tensor if `b` is one.
        b: the same.
        threshold: elements of the sum of two SparseTensors whose magnitude is less are left out.
        thresh: its older name.

    Returns:
        A SparseTensor for two of them, else a Tensor.

    Raises:
        TypeError: no SparseTensor.
        ValueError: the shapes differ.
    """
    sparse = [isinstance(each, SparseTensor | SparseTensorValue) for each in (a, b)]
    if not any(sparse):
        raise TypeError(
            f"sparse_add: at least one of a and b should be a SparseTensor, got {a!r} and {b!r}"
        )
    if not all(sparse):
        part, dense = (a, b) if sparse[0] else (b, a)
        part = _read(part, "sparse_add")
        inputs = (part.indices, part.values, part.dense_shape, dense)
        return apply("SparseTensorDenseAdd", inputs).outputs[0]
    first, second = _read(a, "sparse_add"), _read(b, "sparse_add")
    first.shape.assert_is_compatible_with(second.shape)
    limit = convert_to_tensor(
        threshold if thresh is None else thresh, first.dtype.real_dtype, "threshold"
    )
    parts = (first.indices, first.values, first.dense_shape)
    others = (second.indices, second.values, second.dense_shape)
    indices, values, extents = apply("SparseAdd", (*parts, *others, limit)).outputs
    shape = first.shape.merge_with(second.shape)
    known = np.array(shape.as_list(), np.int64) if shape.is_fully_defined() else extents
    return SparseTensor(indices, values, known)


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor,
    b: Any,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the matrix product of a SparseTensor and a dense matrix.

    Args:
        sp_a: of rank 2.
        b: of rank 2 and the same dtype.
        adjoint_a: whether `sp_a` is transposed first, and conjugated if complex.
        adjoint_b: the same of `b`.
        name: of the scope.

    Raises:
        ValueError: the inner extents differ.
        InvalidArgumentError: the same, when run; an index is out of bounds.
    """
    part = _read(sp_a, "sparse_tensor_dense_matmul")
    graph = part.graph
    with graph.as_default(), graph.name_scope(name or "SparseTensorDenseMatMul"):
        dense = convert_to_tensor(b, part.dtype, name="b")
        inputs = (part.indices, part.values, part.dense_shape, dense)
        attrs = {"adjoint_a": adjoint_a, "adjoint_b": adjoint_b}
        return apply("SparseTensorDenseMatMul", inputs, attrs).outputs[0]


def _multiply(self: SparseTensor, other: Any) -> SparseTensor:
    """Return the products with the elements of a dense tensor, which is broadcast."""
    with scope(None, "mul", (self.values,)) as full:
        return _with_dense(self, "Mul", self.values, as_tensor(other, self.dtype, "y"), full)


def _divide(self: SparseTensor, other: Any) -> SparseTensor:
    """Return the quotients of the elements by those of a dense tensor, which is broadcast."""
    with scope(None, "truediv", (self.values,)) as full:
        x, y = real_operands(self.values, as_tensor(other, self.dtype, "y"))
        return _with_dense(self, "Div", x, y, full)


def _with_dense(
    x: SparseTensor, name: str, values: Tensor, dense: Tensor, full: str
) -> SparseTensor:
    inputs = (x.indices, values, x.dense_shape, dense)
    return x.with_values(result(f"SparseDenseCwise{name}", inputs, full))


def _reflected(self: SparseTensor, other: Any) -> Any:
    return _multiply(self, other) if isinstance(other, Tensor) else NotImplemented


for _name, _operator in (("mul", _multiply), ("truediv", _divide), ("rmul", _reflected)):
    setattr(SparseTensor, f"__{_name}__", _operator)


def _read(value: Any, call: str) -> SparseTensor:
    """Return what stands for a SparseTensor as one."""
    if isinstance(value, SparseTensorValue) or type(value).__name__ == "SparseTensorValue":
        return SparseTensor.from_value(value)
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{call}: Input must be a SparseTensor, got {value!r}")
    return value
