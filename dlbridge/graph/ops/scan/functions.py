"""Cumulative sums, products and log-sum-exps: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_index, result

__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_logsumexp",
]


def _running(op_type: str, name: str, summary: str, details: str, example: str = "") -> Any:
    def accumulate(
        x: Any,
        axis: Any = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        attrs = {"exclusive": exclusive, "reverse": reverse}
        return result(op_type, (x, as_index(axis)), name, **attrs)

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
