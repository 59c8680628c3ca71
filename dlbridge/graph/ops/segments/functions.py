"""Segment sums and bin counts: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_tensor, result, scope
from dlbridge.graph.ops.reduce.functions import reduce_max
from dlbridge.proto.datatypes import as_dtype, int32

__all__ = [
    "bincount",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
]


_EVERYWHERE = "It is computed by NumPy in every framework."


def _segment(name: str, summary: str, empty: str = "0", example: str = "") -> Any:
    def segment(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids), name)

    op_type = f"Segment{name}"
    segment.__doc__ = f"""Return {summary} of rows of equal identifiers.

    Args:
        data: a Tensor of one dimension or more, or what becomes one, {_DTYPES[name]}.
        segment_ids: a vector of int32 or int64, one for each row; from 0, and never less than the
            one before.
        name: of the operation, {op_type!r} by default.

    Returns:
        Tensor: one row more than the last identifier, as its static shape cannot tell. Rows that
        no identifier names are {empty}.

    Raises:
        ValueError: data without dimensions, identifiers that are no vector.
        TypeError: other dtypes.

    Identifiers that decrease, are negative, or are not as many as the rows end a run with
    InvalidArgumentError. It is computed by NumPy in every framework.
    {example}"""
    segment.__name__ = segment.__qualname__ = f"segment_{name.lower()}"
    return segment


# Name of a reduction -> the dtypes it takes.
_DTYPES = {
    **dict.fromkeys(("Sum", "Mean", "Prod"), "of all numbers"),
    **dict.fromkeys(("Max", "Min"), "of floating numbers or integers"),
}


def _unsorted_segment(
    name: str, summary: str, empty: str, where: str = _EVERYWHERE, example: str = ""
) -> Any:
    def segment(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids, num_segments), name)

    op_type = f"UnsortedSegment{name}"
    segment.__doc__ = f"""Return {summary} of the rows with equal identifiers, in any order.

    Args:
        data: a Tensor, or what becomes one, {_DTYPES[name]}.
        segment_ids: integers whose shape is that of data's first dimensions, all or some of them;
            rows with a negative one are left out.
        num_segments: the number of rows of the result, a scalar.
        name: of the operation, {op_type!r} by default.

    Returns:
        Tensor: [num_segments, then the dimensions of data that the identifiers do not have]. Rows
        that no identifier names are {empty}.

    Raises:
        ValueError: shapes that do not fit, or a negative number of segments.
        TypeError: other dtypes.

    An identifier of `num_segments` or more ends a run with InvalidArgumentError. {where}
    {example}"""
    segment.__name__ = segment.__qualname__ = f"unsorted_segment_{name.lower()}"
    return segment


segment_sum = _segment(
    "Sum",
    "the sum",
    example="""
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.segment_sum([[1, 2], [3, 4], [5, 6]], [0, 0, 2]))
        array([[4, 6],
               [0, 0],
               [5, 6]], dtype=int32)
    """,
)
segment_mean = _segment("Mean", "the mean, of integers rounded towards zero,")
segment_prod = _segment("Prod", "the product", "1")
segment_max = _segment("Max", "the greatest")
segment_min = _segment("Min", "the least")
unsorted_segment_sum = _unsorted_segment(
    "Sum",
    "the sum",
    "0",
    "In JAX, which cannot look at traced values, it is left out instead.",
    """
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.unsorted_segment_sum([1, 2, 4, 8], [1, 0, -1, 1], 3))
        array([2, 9, 0], dtype=int32)
    """,
)
unsorted_segment_prod = _unsorted_segment("Prod", "the product", "1")
unsorted_segment_max = _unsorted_segment("Max", "the greatest", "the least number of the dtype")
unsorted_segment_min = _unsorted_segment("Min", "the least", "the greatest number of the dtype")
unsorted_segment_sum.__doc__ += """
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.unsorted_segment_sum([1, 2, 4, 8], [1, 0, -1, 1], 3))
        array([2, 9, 0], dtype=int32)
    """


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: object = int32,
) -> Tensor:
    """Return how often each number from 0 occurs, or its weights added up.

    Args:
        arr: integers from 0, of int32 and any shape, or what becomes that.
        weights: of the shape of `arr`, in int32, int64, float32 or float64; or None to count.
        minlength, maxlength: the least and the greatest length of the result; None is no limit.
            Numbers beyond `maxlength` are not counted.
        dtype: of the counts, one of those four; weights have their own.

    Returns:
        Tensor: a vector, one longer than the greatest number.

    A negative number, or weights of another size, end a run with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.bincount([1, 1, 3]), tf.bincount([1, 1, 3], [0.5, 0.5, 2.0])])
        [array([0, 2, 0, 1], dtype=int32), array([0., 1., 0., 2.], dtype=float32)]
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
