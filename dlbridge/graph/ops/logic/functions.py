"""Comparisons, logic and selection: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_tensor, binary, result, unary

__all__ = [
    "approximate_equal", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "logical_xor", "not_equal", "where", "where_v2",
]  # fmt: skip

_ORDERED = "Of floating numbers and integers, as bool; false where either is NaN."
_TRUTH = "Of bool only; nothing else is converted."

equal = binary(
    "Equal",
    "Return whether x equals y, element by element.",
    details="Of all dtypes, also bool and strings, as bool. NaN equals nothing.",
)
not_equal = binary(
    "NotEqual",
    "Return whether x differs from y, element by element.",
    "not_equal",
    "Of all dtypes, also bool and strings, as bool. NaN differs from itself.",
)
less = binary("Less", "Return whether x < y, element by element.", details=_ORDERED)
less_equal = binary(
    "LessEqual", "Return whether x <= y, element by element.", "less_equal", _ORDERED
)
greater = binary("Greater", "Return whether x > y, element by element.", details=_ORDERED)
greater_equal = binary(
    "GreaterEqual", "Return whether x >= y, element by element.", "greater_equal", _ORDERED
)
logical_and = binary(
    "LogicalAnd", "Return whether both are true, element by element.", "logical_and", _TRUTH
)
logical_or = binary(
    "LogicalOr", "Return whether either is true, element by element.", "logical_or", _TRUTH
)
logical_not = unary(
    "LogicalNot", "Return whether x is false, element by element.", "logical_not", _TRUTH
)


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Return whether one of both is true, and not the other.

    It is made of the other three, the last of which has the name. Operands as of `logical_and`.
    """
    either = logical_or(x, y)
    return logical_and(either, logical_not(logical_and(x, y)), name)


def approximate_equal(x: Any, y: Any, tolerance: float = 1e-5, name: str | None = None) -> Tensor:
    """Return whether x and y differ by less than a tolerance, element by element.

    Args:
        x, y: Tensors of numbers, or what becomes one, of one dtype and one shape: nothing is
            broadcast.
        tolerance: of the absolute difference, which for complex numbers is their distance.
        name: of the operation, "ApproximateEqual" by default.

    Returns:
        Tensor: bool, of that shape.

    Raises:
        ValueError: shapes that differ; InvalidArgumentError when only a run shows it.
        TypeError: dtypes that differ, or of no numbers.
    """
    return result("ApproximateEqual", (x, y), name, tolerance=tolerance)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Return elements of x where the condition is true and of y elsewhere, or indices.

    Args:
        condition: bool, of the shape of x; or a vector that chooses rows of x and y; or a scalar.
            Without x and y also numbers, which are true if they are not 0; NaN is true.
        x, y: both of one shape and dtype, any; or neither.
        name: of the operation, "Select", or "Where" by default.

    Returns:
        Tensor: of the shape and dtype of x; or the indices of true elements, [count, rank] of int64
        in the order of rows, where only a run tells the count.

    Raises:
        ValueError: one of x and y is missing, or the shapes do not fit; `where_v2` broadcasts.
        TypeError: x and y of different dtypes.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.where([True, False], [[1, 2], [3, 4]], [[5, 6], [7, 8]]))
        ...     session.run(tf.where([[True, False], [False, True]]))
        array([[1, 2],
               [7, 8]], dtype=int32)
        array([[0, 0],
               [1, 1]])
    """
    if x is None and y is None:
        return result("Where", (as_tensor(condition, None, "condition"),), name)
    _check_both(x, y)
    return result("Select", (condition, x, y), name)


def where_v2(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Return elements of x where the condition is true and of y elsewhere; all are broadcast.

    Arguments and errors as of `where`, apart from the shapes: a vector as condition goes along the
    last dimension, and does not choose rows. Without x and y it is `where`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.where_v2([True, False], [[1, 2], [3, 4]], 0))
        array([[1, 0],
               [3, 0]], dtype=int32)
    """
    if x is None and y is None:
        return where(condition, name=name)
    _check_both(x, y)
    return result("SelectV2", (condition, x, y), name)


def _check_both(x: Any, y: Any) -> None:
    if x is None or y is None:
        raise ValueError("x and y must both be non-None or both be None.")
