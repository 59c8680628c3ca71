"""Sparse tensors: three dense ones that belong together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.building import apply
from dlbridge.graph.constants import convert_to_tensor
from dlbridge.graph.folding import constant_dims
from dlbridge.graph.functions.basic import placeholder
from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype, int64
from dlbridge.shape import TensorShape, as_shape

__all__ = [
    "IndexedSlices",
    "IndexedSlicesValue",
    "SparseTensor",
    "SparseTensorValue",
    "sparse_add",
    "sparse_placeholder",
    "sparse_reorder",
    "sparse_reshape",
    "sparse_tensor_dense_matmul",
    "sparse_tensor_to_dense",
    "sparse_to_dense",
]


class SparseTensorValue(NamedTuple):
    """The value of a SparseTensor: indices int64 [N, R], values [N], dense_shape int64 [R]."""

    indices: Any
    values: Any
    dense_shape: Any


class IndexedSlicesValue(NamedTuple):
    """The value of IndexedSlices: values [N, …], indices [N], dense_shape or None."""

    values: Any
    indices: Any
    dense_shape: Any = None


class SparseTensor:
    """A tensor of which only some elements are given, the others being zero.

    Args:
        indices: int64 [N, R], where the elements are; in lexicographic order, without repetition,
            wherever a function says that it needs that.
        values: [N], of any dtype.
        dense_shape: int64 [R].

    Raises:
        ValueError: the ranks or extents do not agree.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     diagonal = tf.SparseTensor([[0, 0], [1, 1]], [1, 2], [2, 2])
        ...     session.run(tf.sparse.to_dense(diagonal)).tolist()
        [[1, 0], [0, 2]]
    """

    __slots__ = ("__weakref__", "dense_shape", "indices", "values")

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        graph = _graph_of(indices, values, dense_shape)
        with graph.as_default(), graph.name_scope("SparseTensor"):
            self.indices = convert_to_tensor(indices, int64, name="indices")
            self.values = convert_to_tensor(values, name="values")
            self.dense_shape = convert_to_tensor(dense_shape, int64, name="dense_shape")
        places = self.indices.shape.with_rank(2)
        numbers = self.values.shape.with_rank(1)
        extents = self.dense_shape.shape.with_rank(1)
        places[:1].assert_is_compatible_with(numbers)
        places[1:].assert_is_compatible_with(extents)

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """Return a SparseTensor of a SparseTensorValue, or the SparseTensor given."""
        return value if isinstance(value, SparseTensor) else cls(*value)

    @property
    def dtype(self) -> DataType:
        """The DataType of the elements."""
        return self.values.dtype

    @property
    def op(self) -> Operation:
        """The operation of the values."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The Graph that it belongs to."""
        return self.values.graph

    @property
    def shape(self) -> TensorShape:
        """What is known of the dense shape."""
        return as_shape(constant_dims(self.dense_shape))

    def get_shape(self) -> TensorShape:
        """Return what is known of the dense shape."""
        return self.shape

    def consumers(self) -> list[Operation]:
        """Return the operations that take the values."""
        return self.values.consumers()

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Return its SparseTensorValue in `session`, or in the default session."""
        from dlbridge.graph.session import evaluate

        return evaluate(self, feed_dict, session)

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self.indices}, values={self.values}, "
            f"dense_shape={self.dense_shape})"
        )


class IndexedSlices:
    """Slices of a tensor at some indices of its first axis.

    Args:
        values: [N, …], the slices.
        indices: integers [N], where they belong; they may repeat.
        dense_shape: of the whole tensor, where it is known.
    """

    __slots__ = ("__weakref__", "dense_shape", "indices", "values")

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values = convert_to_tensor(values)
        self.indices = convert_to_tensor(indices)
        self.dense_shape = None if dense_shape is None else convert_to_tensor(dense_shape)

    @property
    def dtype(self) -> DataType:
        """The DataType of the slices."""
        return self.values.dtype

    @property
    def op(self) -> Operation:
        """The operation of the values."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The Graph that they belong to."""
        return self.values.graph

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices}, values={self.values})"


def _graph_of(*parts: Any) -> Graph:
    for each in parts:
        if isinstance(each, Tensor):
            return each.graph
    return get_default_graph()


# ---- functions ---------------------------------------------------------------------------------


def sparse_placeholder(
    dtype: object, shape: object = None, name: str | None = None
) -> SparseTensor:
    """Create a SparseTensor to be fed with a SparseTensorValue or a tuple of its three parts.

    Args:
        dtype: of the values.
        shape: the dense shape as far as it is known; a fully known one need not be fed.
        name: `name/indices`, `name/values` and `name/shape` are the names of the parts.
    """
    prefix = "" if name is None else f"{name}/"
    dims = as_shape(shape)
    rank = dims.rank
    values = placeholder(dtype, [None], f"{prefix}values" if prefix else None)
    indices = placeholder(int64, [None, rank], f"{prefix}indices" if prefix else None)
    if dims.is_fully_defined() and rank is not None:
        extents = convert_to_tensor(np.array(dims.as_list(), np.int64), name=f"{prefix}shape")
    else:
        extents = placeholder(int64, [rank], f"{prefix}shape" if prefix else None)
    return SparseTensor(indices, values, extents)


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
    _require(sp_input, "sparse_tensor_to_dense")
    if default_value is None:
        default_value = np.zeros((), sp_input.dtype.numpy)
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
    _require(sp_input, "sparse_reorder")
    inputs = (sp_input.indices, sp_input.values, sp_input.dense_shape)
    indices, values = apply("SparseReorder", inputs, None, name).outputs
    return SparseTensor(indices, values, sp_input.dense_shape)


def sparse_reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """Return a SparseTensor of another dense shape, one extent of which may be -1."""
    _require(sp_input, "sparse_reshape")
    inputs = (sp_input.indices, sp_input.dense_shape, convert_to_tensor(shape, int64))
    indices, extents = apply("SparseReshape", inputs, None, name).outputs
    return SparseTensor(indices, sp_input.values, extents)


def sparse_add(a: SparseTensor, b: SparseTensor, threshold: float = 0) -> SparseTensor:
    """Return the sum of two SparseTensors, without elements smaller than `threshold`."""
    _require(a, "sparse_add")
    _require(b, "sparse_add")
    kind = as_dtype(a.dtype.real_dtype)
    limit = convert_to_tensor(threshold, kind)
    inputs = (a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape, limit)
    return SparseTensor(*apply("SparseAdd", inputs).outputs)


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor,
    b: Any,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the matrix product of a SparseTensor and a dense matrix."""
    _require(sp_a, "sparse_tensor_dense_matmul")
    inputs = (sp_a.indices, sp_a.values, sp_a.dense_shape, b)
    attrs = {"adjoint_a": adjoint_a, "adjoint_b": adjoint_b}
    return apply("SparseTensorDenseMatMul", inputs, attrs, name).outputs[0]


def _require(value: object, call: str) -> None:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{call}: Input must be a SparseTensor, got {type(value).__name__}")
