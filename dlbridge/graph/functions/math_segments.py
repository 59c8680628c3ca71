"""Sums over segments, counts and sets: what users call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.building import apply
from dlbridge.graph.functions.math_reduce import reduce_max
from dlbridge.graph.functions.math_support import as_tensor, result, scope
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype, int32

__all__ = [
    "Unique",
    "UniqueWithCounts",
    "bincount",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unique",
    "unique_with_counts",
    "unsorted_segment_max",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
]


def _segment(name: str, summary: str) -> Any:
    def segment(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids), None, name)

    op_type = f"Segment{name}"
    segment.__doc__ = (
        f"Return {summary} of rows of equal identifiers, which must not decrease "
        "(InvalidArgumentError)."
    )
    return segment


def _unsorted_segment(name: str, summary: str) -> Any:
    def segment(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids, num_segments), None, name)

    op_type = f"UnsortedSegment{name}"
    segment.__doc__ = (
        f"Return {summary} of what has equal identifiers, for each number below `num_segments`; "
        "negative identifiers are left out."
    )
    return segment


segment_sum = _segment("Sum", "the sum")
segment_mean = _segment("Mean", "the mean")
segment_prod = _segment("Prod", "the product")
segment_max = _segment("Max", "the greatest")
segment_min = _segment("Min", "the least")
unsorted_segment_sum = _unsorted_segment("Sum", "the sum")
unsorted_segment_prod = _unsorted_segment("Prod", "the product")
unsorted_segment_max = _unsorted_segment("Max", "the greatest")
unsorted_segment_min = _unsorted_segment("Min", "the least")


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: object = int32,
) -> Tensor:
    """Return how often each number from 0 occurs in a tensor of int32, or its weights added up.

    Args:
        arr: numbers from 0.
        weights: of the shape of `arr`, or None to count.
        minlength, maxlength: the least and the greatest length of the result; None is no limit.
        dtype: of the counts, if there are no weights.
    """
    with scope(None, "bincount", (arr, weights, minlength, maxlength)):
        arr = as_tensor(arr, int32, "arr")
        size = result("AddV2", (reduce_max(arr), 1))
        size = result("Maximum", (size, 0))  # of nothing
        if minlength is not None:
            size = result("Maximum", (size, minlength))
        if maxlength is not None:
            size = result("Minimum", (size, maxlength))
        if weights is None:
            weights = np.zeros(0, as_dtype(dtype).numpy)
        return result("Bincount", (arr, size, weights))


class Unique(NamedTuple):
    """What `unique` returns: the elements, and which of them each element is."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """What `unique_with_counts` returns: the elements, which each one is, how often they occur."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple's own method has TensorFlow's name


def unique(x: Any, out_idx: object = int32, name: str | None = None) -> Unique:
    """Return the elements of a vector in order of first occurrence."""
    return Unique(*apply("Unique", (x,), {"out_idx": as_dtype(out_idx)}, name).outputs)


def unique_with_counts(
    x: Any, out_idx: object = int32, name: str | None = None
) -> UniqueWithCounts:
    """Return the elements of a vector in order of first occurrence, and how often they occur."""
    attrs = {"out_idx": as_dtype(out_idx)}
    return UniqueWithCounts(*apply("UniqueWithCounts", (x,), attrs, name).outputs)
