"""Partitioned variables: one tensor, kept as several variables along one axis, and partitioners."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import control_dependencies, name_scope
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.basic import identity
from dlbridge.graph.ops.joining import concat, split
from dlbridge.graph.variables.variable import SaveSliceInfo, Variable
from dlbridge.proto.datatypes import DataType, as_dtype, string
from dlbridge.shape import TensorShape

__all__ = [
    "fixed_size_partitioner",
    "min_max_variable_partitioner",
    "variable_axis_size_partitioner",
]

Partitioner = Callable[..., Sequence[int]]
"""Called as `partitioner(shape=…, dtype=…)`: the number of partitions along each axis."""


class PartitionedVariable:
    """Variables that are the partitions of one tensor, from `get_variable` with a partitioner.

    Operations that take it as an input read the whole tensor, see `as_tensor`. Iteration gives the
    variables in order, `len` their number. It cannot be fetched or fed: fetch `list(v)` or
    `v.as_tensor()`.

    Attributes:
        name: that of the whole variable, of which those of the partitions begin: "w/part_0".
        shape: the shape of the whole.
        dtype: the DataType.
        partitions: their number along each axis; more than one along one axis at most.
    """

    def __init__(
        self,
        name: str,
        shape: TensorShape,
        dtype: DataType,
        variables: Sequence[Variable],
        partitions: Sequence[int],
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.partitions = list(partitions)
        self._variables = list(variables)

    @property
    def graph(self) -> Graph:
        """The Graph that it belongs to."""
        return self._variables[0].graph

    def get_shape(self) -> TensorShape:
        """Return the shape of the whole."""
        return self.shape

    def as_tensor(self) -> Tensor:
        """Return a new Tensor of the whole value; control dependencies in force do not apply."""
        with control_dependencies(None):
            whole: Any = self._variables[0]
            if len(self._variables) > 1:
                with name_scope(f"{self.name}/ConcatPartitions/"):
                    whole = concat(self._variables, split_axis(self.partitions))
            with name_scope(None):
                tensor: Tensor = identity(whole, self.name)
                return tensor

    def _as_graph_tensor(
        self, dtype: DataType | None = None, name: str = "", as_ref: bool = False
    ) -> Tensor:
        if as_ref:
            raise TypeError(
                f"partitioned variable {self.name!r} cannot be used as a reference; use its "
                "methods assign, assign_add and assign_sub, or its partitions"
            )
        return self.as_tensor()

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> list[Any]:
        """Assign `value`, and return the partitions after that.

        Args:
            value: a tensor of the whole shape, which is split; a list with a value for each
                partition; or another PartitionedVariable of the same partitions.
            use_locking: without effect: changes of one variable never overlap.
            name: of the operations.
            read_value: False returns only the Operations.

        Raises:
            ValueError: another shape, or another number of values.
        """
        return self._change(Variable.assign, value, use_locking, name, read_value)

    def assign_add(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> list[Any]:
        """Add `value`, and return the partitions after that; see `assign`."""
        return self._change(Variable.assign_add, value, use_locking, name, read_value)

    def assign_sub(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> list[Any]:
        """Subtract `value`, and return the partitions after that; see `assign`."""
        return self._change(Variable.assign_sub, value, use_locking, name, read_value)

    def _change(self, change: Callable[..., Any], value: Any, *options: Any) -> list[Any]:
        if not isinstance(value, list | PartitionedVariable):
            axis = split_axis(self.partitions)
            value = split(value, [each.shape[axis] for each in self], axis)
        values = list(value)
        if len(values) != len(self):
            raise ArgumentError(
                f"partitioned variable {self.name!r} takes a value for each of its {len(self)} "
                f"partitions, got {len(values)}"
            )
        return [change(one, new, *options) for one, new in zip(self, values, strict=True)]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return (
            f"<tf.PartitionedVariable '{self.name}' shape={self.shape} dtype={self.dtype.name} "
            f"partitions={self.partitions}>"
        )


def split_axis(partitions: Sequence[int]) -> int:
    """Return the axis with several partitions, or 0."""
    return next((axis for axis, count in enumerate(partitions) if count > 1), 0)


def ask_partitioner(partitioner: Partitioner, shape: TensorShape, dtype: DataType) -> list[int]:
    """Return the partitions along each axis that a partitioner wants, checked.

    Raises:
        ValueError: the shape is unknown or that of a scalar; the answer does not fit it.
    """
    if not shape.is_fully_defined():
        raise ValueError(
            f"Shape of a new partitioned variable must be fully defined, but instead was {shape}."
        )
    if not shape.rank:
        raise ValueError(f"A partitioned Variable must have rank at least 1, shape: {shape}")
    found = partitioner(shape=shape, dtype=dtype)
    if not isinstance(found, Sequence):
        raise ValueError(f"Partitioner must return a sequence, but saw: {found}")
    partitions = [operator.index(count) for count in found]
    if len(partitions) != shape.rank:
        raise ValueError(
            "Partitioner returned a partition list that does not match the Variable's rank: "
            f"{partitions} vs. {shape}"
        )
    if min(partitions) < 1:
        raise ValueError(f"Partitioner returned zero partitions for some axes: {partitions}")
    if sum(count > 1 for count in partitions) > 1:
        raise ValueError(
            f"Can only slice a variable along one dimension: shape: {shape}, partitioning: "
            f"{partitions}"
        )
    if any(count > max(extent, 1) for count, extent in zip(partitions, _dims(shape), strict=True)):
        raise ValueError(f"Partitioner returned more partitions than {shape} has: {partitions}")
    return partitions


def slices(name: str, shape: TensorShape, partitions: Sequence[int]) -> Iterator[SaveSliceInfo]:
    """Yield where each partition lies: the first ones are longer by 1 if they are not equal."""
    full, axis = _dims(shape), split_axis(partitions)
    length, longer = divmod(full[axis], partitions[axis])
    offset = [0] * len(full)
    for i in range(partitions[axis]):
        extents = [*full]
        extents[axis] = length + (i < longer)
        yield SaveSliceInfo(name, full, [*offset], extents)
        offset[axis] += extents[axis]


def _dims(shape: TensorShape) -> list[int]:
    return shape.as_list()  # type: ignore[return-value]  # it is fully defined


# ---- partitioners --------------------------------------------------------------------------------


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Return a partitioner that makes `num_shards` partitions along `axis`.

    Args:
        num_shards: their number; an axis with fewer elements is split into single ones.
        axis: the axis that is split.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     halves = tf.fixed_size_partitioner(2)
        ...     w = tf.get_variable("w", [5, 3], partitioner=halves)
        ...     [(each.name, each.shape.as_list()) for each in w], w.as_tensor().shape.as_list()
        ([('w/part_0:0', [3, 3]), ('w/part_1:0', [2, 3])], [5, 3])
    """

    def partitioner(shape: TensorShape, **_: object) -> list[int]:
        partitions, dims = [1] * len(shape), _dims(shape)
        partitions[axis] = min(num_shards, dims[axis])
        return partitions

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """Return a partitioner that makes as many partitions of a least size as it can.

    Args:
        max_partitions: the most partitions.
        axis: the axis that is split.
        min_slice_size: the least size of a partition, in bytes.
        bytes_per_string_element: what an element of a variable of strings counts, in bytes.

    Raises:
        ValueError: when called, by `get_variable`: the variable has no such axis.
    """

    def partitioner(shape: TensorShape, dtype: object) -> list[int]:
        if axis >= len(shape):
            raise ValueError(
                f"Cannot partition variable along axis {axis} when shape is only {shape}"
            )
        dims = _dims(shape)
        size = math.prod(dims) * _size(dtype, bytes_per_string_element)
        partitions = [1] * len(shape)
        partitions[axis] = max(1, min(dims[axis], max_partitions, math.ceil(size / min_slice_size)))
        return partitions

    return partitioner


def variable_axis_size_partitioner(
    max_shard_bytes: float,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """Return a partitioner that makes partitions of at most some size, if it can.

    Args:
        max_shard_bytes: the greatest size of a partition, in bytes; one that has a single element
            along the axis may be larger.
        axis: the axis that is split.
        bytes_per_string_element: what an element of a variable of strings counts, in bytes.
        max_shards: the most partitions, which may be larger then; None is any number.

    Raises:
        ValueError: a size or number that is not positive; when called, by `get_variable`: a shape
            that is unknown, or has no elements.
    """
    if max_shard_bytes < 1 or bytes_per_string_element < 1:
        raise ValueError(
            "Both max_shard_bytes and bytes_per_string_element must be positive, got "
            f"{max_shard_bytes} and {bytes_per_string_element}"
        )
    if max_shards and max_shards < 1:
        raise ValueError(f"max_shards must be positive, got {max_shards}")

    def partitioner(shape: TensorShape, dtype: object) -> list[int]:
        if not isinstance(shape, TensorShape):
            raise ValueError(f"shape is not a TensorShape: {shape}")
        if not shape.is_fully_defined():
            raise ValueError(f"shape is not fully defined: {shape}")
        dims = _dims(shape)
        size = math.prod(dims) * _size(dtype, bytes_per_string_element)
        if not size:
            raise ValueError(f"variable_axis_size_partitioner: shape {shape} has no elements")
        # Whole slices of the axis fit a partition, one at least.
        fit = max(1, math.floor(max_shard_bytes / (size / dims[axis])))
        count = math.ceil(dims[axis] / fit)
        partitions = [1] * len(shape)
        partitions[axis] = min(max_shards, count) if max_shards else count
        return partitions

    return partitioner


def _size(dtype: object, of_string: int) -> int:
    """Return the bytes of an element."""
    kind = as_dtype(dtype).base_dtype
    return of_string if kind is string else kind.size
