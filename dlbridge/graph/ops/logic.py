"""Comparisons, logic, selection."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.inference import Inference, broadcast, broadcast_dims, merge, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import NUMBER, REAL, Shapes, as_tensor, binary, define, result, unary
from dlbridge.signals import not_from_handler

__all__ = [
    "approximate_equal", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "logical_xor", "not_equal", "where", "where_v2",
]  # fmt: skip


# ==== op types ====================================================================================


def _equal(c: Inference) -> Shapes:
    """Shapes that do not fit are an error, or one bool where that is allowed."""
    if c.attrs["incompatible_shape_error"]:
        return broadcast(c)
    one, other = c.dims(0), c.dims(1)
    if one is None or other is None or None in one or None in other:
        return [None]
    try:
        return broadcast(c)
    except not_from_handler(ValueError):
        return [()]


def _select(c: Inference) -> Shapes:
    """Branches have one shape; the condition has it too, or chooses rows, or is a scalar."""
    branches = merge(c.dims(1), c.dims(2), c)
    condition = c.dims(0)
    if condition is None or branches is None or condition == ():
        return [branches]
    if len(condition) == 1 and branches:
        _check_rows(condition[0], branches[0], c)
        return [branches]
    return [merge(branches, condition, c)]


def _check_rows(condition: int | None, rows: int | None, c: Inference) -> None:
    if condition is not None and rows is not None and condition != rows:
        raise c.error(
            f"Dimension 0 in both shapes must be equal, but are {condition} and {rows}: a vector "
            "as condition chooses rows"
        )


def _select_v2(c: Inference) -> Shapes:
    """All three are broadcast."""
    branches = broadcast_dims(c.dims(1), c.dims(2), c)
    return [broadcast_dims(c.dims(0), branches, c)]


def _where(c: Inference) -> Shapes:
    """One row of indices for each element that is not zero."""
    dims = c.dims(0)
    return [(None, None if dims is None else len(dims))]


for _name in ("Equal", "NotEqual"):
    define(
        f"{_name}(x: T, y: T, *, T: type, incompatible_shape_error: bool = true) -> z: bool",
        shape=_equal,
        commutative=True,
    )
for _name in ("Less", "LessEqual", "Greater", "GreaterEqual"):
    define(f"{_name}(x: T, y: T, *, T: {REAL}) -> z: bool", shape=broadcast)
for _name in ("LogicalAnd", "LogicalOr"):
    define(f"{_name}(x: bool, y: bool) -> z: bool", shape=broadcast, commutative=True)
define("LogicalNot(x: bool) -> y: bool", shape=unchanged)
define(
    f"ApproximateEqual(x: T, y: T, *, T: {NUMBER}, tolerance: float = 1e-05) -> z: bool",
    shape=lambda c: [merge(c.dims(0), c.dims(1), c)],
    commutative=True,
)
define("Select(condition: bool, t: T, e: T, *, T: type) -> output: T", shape=_select)
define("SelectV2(condition: bool, t: T, e: T, *, T: type) -> output: T", shape=_select_v2)
define(f"Where(input: T, *, T: {NUMBER[:-1]}, bool}} = bool) -> index: int64", shape=_where)


# ==== functions ===================================================================================


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
    """Return whether x and y differ by at most a tolerance, element by element.

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
        in the order of rows, where only a run determines the count.

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
