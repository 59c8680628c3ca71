"""Comparisons, logic and selection."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, broadcast, broadcast_dims, merge, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import NUMBER, REAL, Shapes


def _equal(c: Inference) -> Shapes:
    """Shapes that do not fit are an error, or one bool where that is allowed."""
    if c.attrs["incompatible_shape_error"]:
        return broadcast(c)
    one, other = c.dims(0), c.dims(1)
    if one is None or other is None or None in one or None in other:
        return [None]
    try:
        return broadcast(c)
    except ValueError:
        return [None]


def _approximate(c: Inference) -> Shapes:
    """Both operands have one shape."""
    return [merge(c.dims(0), c.dims(1), c)]


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
    shape=_approximate,
    commutative=True,
)
define("Select(condition: bool, t: T, e: T, *, T: type) -> output: T", shape=_select)
define("SelectV2(condition: bool, t: T, e: T, *, T: type) -> output: T", shape=_select_v2)
define(f"Where(input: T, *, T: {NUMBER[:-1]}, bool}} = bool) -> index: int64", shape=_where)
