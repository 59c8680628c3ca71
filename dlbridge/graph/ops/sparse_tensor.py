"""Sparse tensors and slices: values, and the indices where they belong."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core.default_graph import apply, convert_to_tensor, get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.inference import constant_dims, constant_value
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.core.scopes import chosen_session
from dlbridge.graph.session import feeds, fetches
from dlbridge.proto.datatypes import DataType, int64
from dlbridge.shape import TensorShape, as_shape

__all__ = ["IndexedSlices", "IndexedSlicesValue", "SparseTensor", "SparseTensorValue"]


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


class _Sparse:
    """A tensor given by some of its values and their indices."""

    __slots__ = ("__weakref__", "dense_shape", "indices", "values")

    dense_shape: Any
    indices: Tensor
    values: Tensor

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
        """The Graph of the values."""
        return self.values.graph

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The Tensors that it is made of, in the order of its value's."""
        raise NotImplementedError

    def consumers(self) -> list[Operation]:
        """Return the operations that take the values."""
        return self.values.consumers()


class SparseTensor(_Sparse):
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

    __slots__ = ("_shape",)

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        graph = _graph_of(indices, values, dense_shape)
        with graph.as_default(), graph.name_scope("SparseTensor"):
            self.indices = convert_to_tensor(indices, int64, name="indices")
            self.values = convert_to_tensor(values, name="values")
            self.dense_shape = convert_to_tensor(dense_shape, int64, name="dense_shape")
        self._shape: TensorShape = as_shape(None)
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
    def shape(self) -> TensorShape:
        """The static dense shape."""
        return self._shape.merge_with(as_shape(constant_dims(self.dense_shape)))

    def with_values(self, values: Any) -> SparseTensor:
        """Return a SparseTensor of other values at the same places."""
        made = SparseTensor(self.indices, values, self.dense_shape)
        made._shape = self._shape
        return made

    def get_shape(self) -> TensorShape:
        """Return the static dense shape."""
        return self.shape

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Indices, values, dense shape."""
        return self.indices, self.values, self.dense_shape

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Return its SparseTensorValue in `session`, or in the default session."""
        return chosen_session(session, "SparseTensor.eval").run(self, feed_dict)

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self.indices}, values={self.values}, "
            f"dense_shape={self.dense_shape})"
        )


class IndexedSlices(_Sparse):
    """Slices of a tensor at some indices of its first axis.

    Args:
        values: [N, …], the slices.
        indices: integers [N], where they belong; they may repeat.
        dense_shape: of the whole tensor, where it is known.
    """

    __slots__ = ()

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values = convert_to_tensor(values)
        self.indices = convert_to_tensor(indices)
        self.dense_shape = None if dense_shape is None else convert_to_tensor(dense_shape)

    @property
    def name(self) -> str:
        """The name of the values."""
        return self.values.name

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Values, indices, and the dense shape where it is known."""
        known = (self.values, self.indices)
        return known if self.dense_shape is None else (*known, self.dense_shape)

    @property
    def device(self) -> str:
        """The device string of the operation of the values."""
        return self.values.device

    @property
    def shape(self) -> TensorShape:
        """The static shape of the whole tensor."""
        if self.dense_shape is None:
            return as_shape(None)
        return as_shape(constant_dims(self.dense_shape))

    def with_values(self, values: Any) -> IndexedSlices:
        """Return other slices at the same indices."""
        return IndexedSlices(values, self.indices, self.dense_shape)

    def __neg__(self) -> IndexedSlices:
        """Return the slices with the other sign."""
        return self.with_values(apply("Neg", (self.values,)).outputs[0])

    def _as_graph_operation(self) -> Operation:
        return self.values.op

    def _as_graph_tensor(
        self, dtype: DataType | None = None, name: str = "", as_ref: bool = False
    ) -> Tensor:
        """Return the whole tensor: slices at the same index are added, all others are zeros."""
        if self.dense_shape is None or as_ref:
            raise ArgumentError(
                f"Tensor conversion requested for IndexedSlices without dense_shape: {self!r}"
            )
        count = self.dense_shape[0]
        return apply("UnsortedSegmentSum", (self.values, self.indices, count)).outputs[0]

    def __repr__(self) -> str:
        known = "" if self.dense_shape is None else f", dense_shape={self.dense_shape}"
        return f"IndexedSlices(indices={self.indices}, values={self.values}{known})"


def _graph_of(*parts: Any) -> Graph:
    for each in parts:
        if isinstance(each, Tensor):
            return each.graph
    return get_default_graph()


# ---- in sessions -------------------------------------------------------------------------------


def _split_sparse(fetch: SparseTensor) -> fetches.Parts:
    return fetches.Parts(fetch.parts, SparseTensorValue._make, fetch)


def _feed_sparse(key: SparseTensor) -> feeds.Composite:
    def split(value: Any) -> Any:
        if isinstance(value, tuple | list):
            if len(value) == 3:
                return value
            default = _default_shape(key) if len(value) == 2 else None
            if default is not None:
                return (*value, default)
        raise UnsupportedTypeError(
            "feed_dict: a SparseTensor takes a SparseTensorValue, or a tuple (indices, values, "
            "dense_shape), whose last part may be left out for a sparse_placeholder of a constant "
            f"shape, got {value!r}"
        )

    return feeds.Composite(key.parts, split)


def _default_shape(key: SparseTensor) -> Any:
    """Return the constant dense shape of a `sparse_placeholder`; None where there is none."""
    op = key.dense_shape.op
    if op.type != "PlaceholderWithDefault":
        return None
    default = constant_value(op.inputs[0])
    return None if default is None or (default < 0).any() else default


def _split_slices(fetch: IndexedSlices) -> fetches.Parts:
    return fetches.Parts(fetch.parts, lambda values: IndexedSlicesValue(*values), fetch)


def _feed_slices(key: IndexedSlices) -> feeds.Composite:
    def split(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return value if key.dense_shape is not None else value[:2]
        raise UnsupportedTypeError(
            "feed_dict: IndexedSlices take an IndexedSlicesValue, or a tuple (values, indices, "
            f"dense_shape), got {value!r}"
        )

    return feeds.Composite(key.parts, split)


fetches.register(SparseTensor, _split_sparse)
fetches.register(IndexedSlices, _split_slices)
feeds.register(SparseTensor, _feed_sparse)
feeds.register(IndexedSlices, _feed_slices)
