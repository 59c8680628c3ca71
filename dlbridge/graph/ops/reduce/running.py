"""Positions of extremes, and running sums: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_index, result
from dlbridge.graph.ops.reduce.functions import one_of
from dlbridge.proto.datatypes import as_dtype, int64

__all__ = ["argmax", "argmin", "cumprod", "cumsum", "cumulative_logsumexp"]


def _position(op_type: str, x: Any, axis: Any, name: str | None, old: Any, kind: object) -> Tensor:
    where = one_of("axis", axis, "dimension", old)
    attrs = {"output_type": as_dtype(kind)}
    return result(op_type, (x, as_index(0 if where is None else where)), attrs, name)


def argmax(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the greatest element along an axis is, the first of equal ones.

    Args:
        input: a Tensor of floating numbers, integers or bool, or what becomes one.
        axis: one axis, a negative one from the end; None is 0. It may be a Tensor. The result has
            the other dimensions.
        name: of the operation, "ArgMax" by default.
        dimension: the name of `axis` in early versions.
        output_type: int64, int32, int16 or uint16.

    Raises:
        ValueError: an axis that the tensor does not have, or both its names.
        TypeError: another dtype.

    An axis without elements, and one that proves wrong only in a run, end it with
    InvalidArgumentError. NaN is passed over unless there is nothing else.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.argmax([[1.0, 5.0], [7.0, 5.0]], axis=1))
        array([1, 0])
    """
    return _position("ArgMax", input, axis, name, dimension, output_type)


def argmin(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the least element along an axis is, the first of equal ones.

    Arguments and errors as of `argmax`, but `output_type` is int64 or int32.
    """
    return _position("ArgMin", input, axis, name, dimension, output_type)


def _running(op_type: str, name: str, summary: str, details: str, example: str = "") -> Any:
    def accumulate(
        x: Any,
        axis: Any = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        attrs = {"exclusive": exclusive, "reverse": reverse}
        return result(op_type, (x, as_index(axis)), attrs, name)

    accumulate.__doc__ = f"""{summary}

    {details}

    Args:
        x: a Tensor of at least one dimension, or what becomes one; the result has its shape.
        axis: one axis, a negative one from the end; it may be a Tensor.
        exclusive: whether an element itself is left out.
        reverse: whether to start from the end.
        name: of the operation, {op_type!r} by default.

    Raises:
        TypeError: another dtype.

    An axis that x does not have ends a run with InvalidArgumentError.
    {example}"""
    accumulate.__name__ = accumulate.__qualname__ = name
    return accumulate


cumsum = _running(
    "Cumsum",
    "cumsum",
    "Return the sums of all elements so far along an axis.",
    "Of all numbers; integers wrap around, halves are added in float32.",
    """
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.cumsum([1, 2, 3]), tf.cumsum([1, 2, 3], exclusive=True)])
        [array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32)]
    """,
)
cumprod = _running(
    "Cumprod",
    "cumprod",
    "Return the products of all elements so far along an axis.",
    "Of all numbers, as of `cumsum`; an exclusive product starts with 1.",
)
cumulative_logsumexp = _running(
    "CumulativeLogsumexp",
    "cumulative_logsumexp",
    "Return the logarithms of the sums of exponentials so far along an axis.",
    "Of floating numbers, without overflow; an exclusive one starts with -infinity.",
)
