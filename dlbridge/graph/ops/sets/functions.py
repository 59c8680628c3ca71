"""Unique values and set differences: what users call."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor
from dlbridge.proto.datatypes import as_dtype, int32

__all__ = [
    "Unique",
    "UniqueWithCounts",
    "setdiff1d",
    "unique",
    "unique_with_counts",
]


class Unique(NamedTuple):
    """The result of `unique`: the elements, and the index of each input element in them."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`: elements, the index of each input element, counts."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple's own method has TensorFlow's name


def unique(x: Any, out_idx: object = int32, name: str | None = None) -> Unique:
    """Return the elements of a vector in order of first occurrence.

    Args:
        x: a Tensor of one dimension, or what becomes one, of any dtype that can be compared.
        out_idx: int32 or int64, the dtype of `idx`.
        name: of the operation, "Unique" by default.

    Returns:
        Unique: `y`, the elements, as many as there are; `idx`, of the length of x, which of them
        each one is: x is y[idx]. No NaN equals another.

    Raises:
        ValueError: x is no vector.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.unique([4, 4, 2, 4]))
        Unique(y=array([4, 2], dtype=int32), idx=array([0, 0, 1, 0], dtype=int32))
    """
    return Unique(*apply("Unique", (x,), {"out_idx": as_dtype(out_idx)}, name).outputs)


def unique_with_counts(
    x: Any, out_idx: object = int32, name: str | None = None
) -> UniqueWithCounts:
    """Return the elements of a vector in order of first occurrence, and how often they occur.

    As `unique`; `count` has the length of `y` and the dtype `out_idx`.
    """
    attrs = {"out_idx": as_dtype(out_idx)}
    return UniqueWithCounts(*apply("UniqueWithCounts", (x,), attrs, name).outputs)


def setdiff1d(
    x: Any, y: Any, index_dtype: object = int32, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the elements of vector x that are not in vector y, in order, and their positions."""
    op = apply("ListDiff", (x, y), {"out_idx": as_dtype(index_dtype)}, name)
    return op.outputs[0], op.outputs[1]
