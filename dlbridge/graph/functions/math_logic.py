"""Comparisons, logic and selection: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.functions.math_support import as_tensor, binary, result, unary
from dlbridge.graph.tensor import Tensor

__all__ = [
    "approximate_equal", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "logical_xor", "not_equal", "where", "where_v2",
]  # fmt: skip

equal = binary("Equal", "Return whether x equals y, element by element.")
not_equal = binary("NotEqual", "Return whether x differs from y.", "not_equal")
less = binary("Less", "Return whether x < y.")
less_equal = binary("LessEqual", "Return whether x <= y.", "less_equal")
greater = binary("Greater", "Return whether x > y.")
greater_equal = binary("GreaterEqual", "Return whether x >= y.", "greater_equal")
logical_and = binary("LogicalAnd", "Return whether both are true.", "logical_and")
logical_or = binary("LogicalOr", "Return whether either is true.", "logical_or")
logical_not = unary("LogicalNot", "Return whether x is false.", "logical_not")


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Return whether one of both is true, and not the other."""
    either = logical_or(x, y)
    return logical_and(either, logical_not(logical_and(x, y)), name)


def approximate_equal(x: Any, y: Any, tolerance: float = 1e-5, name: str | None = None) -> Tensor:
    """Return whether x and y, of one shape, differ by less than a tolerance."""
    return result("ApproximateEqual", (x, y), {"tolerance": tolerance}, name)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Return elements of x where the condition is true and of y elsewhere, or indices.

    Args:
        condition: bool, of the shape of x; or a vector that chooses rows of x and y; or a scalar.
        x, y: both of one shape and dtype, or neither: the result is then [count, rank] of int64,
            the indices of what is true (or not 0).
        name: of the operation.

    Raises:
        ValueError: one of x and y is missing, or the shapes do not fit; `where_v2` broadcasts.
    """
    if x is None and y is None:
        return result("Where", (as_tensor(condition, None, "condition"),), None, name)
    _check_both(x, y)
    return result("Select", (condition, x, y), None, name)


def where_v2(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Return elements of x where the condition is true and of y elsewhere; all are broadcast."""
    if x is None and y is None:
        return where(condition, name=name)
    _check_both(x, y)
    return result("SelectV2", (condition, x, y), None, name)


def _check_both(x: Any, y: Any) -> None:
    if x is None or y is None:
        raise ValueError("x and y must both be non-None or both be None.")
