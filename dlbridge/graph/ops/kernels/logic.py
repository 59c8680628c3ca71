"""Comparisons, logic and selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element, number, register_ufuncs
from dlbridge.signals import not_from_handler

_UFUNCS = {
    "Less": "less",
    "LessEqual": "less_equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
    "LogicalNot": "logical_not",
}
register_ufuncs(_UFUNCS)


def _fails(node: Node) -> bool:
    """Return whether a comparison fails where shapes do not fit, as the ufunc does."""
    return bool(node.attrs["incompatible_shape_error"])


@kernel("Equal", ufunc="equal", only_if=_fails)
@kernel("NotEqual", ufunc="not_equal", only_if=_fails)
def equal(node: Node, context: Context) -> Function:
    """Shapes that do not fit are unequal as a whole, where the attribute allows it."""
    function: Function = context.xp.equal if node.type == "Equal" else context.xp.not_equal
    if _fails(node):
        return function
    differs = context.asarray(np.asarray(node.type == "NotEqual"))

    def compare(x: Any, y: Any) -> Any:
        try:
            np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
        except not_from_handler(ValueError):
            return context.xp.asarray(differs, copy=True)
        return function(x, y)

    return compare


@kernel("ApproximateEqual")
def approximately_equal(node: Node, context: Context) -> Function:
    """Whether two numbers differ by at most the tolerance."""
    xp = context.xp
    kind, wanted = element(node).real_dtype, node.attrs["tolerance"]
    if kind.is_integer:
        wanted = int(min(max(wanted, kind.min), kind.max))
    tolerance = number(context, wanted, kind)

    def compare(x: Any, y: Any) -> Any:
        if x.shape != y.shape:
            raise InvalidArgumentError(
                f"Inputs must be of the same size and shape: {list(x.shape)} and {list(y.shape)}",
                node,
            )
        return xp.less_equal(xp.abs(xp.subtract(x, y)), tolerance)

    return compare


@kernel("Select")
def select(node: Node, context: Context) -> Function:
    """A vector as condition chooses rows; otherwise it is a scalar or has the branches' shape."""
    where = context.xp.where

    def choose(condition: Any, x: Any, y: Any) -> Any:
        rows = condition.shape
        if x.shape != y.shape or rows not in ((), x.shape, x.shape[:1]):
            raise InvalidArgumentError(
                "Select: 'then' and 'else' must have the same size, and the condition that of "
                f"their first dimension or theirs; got {list(rows)}, {list(x.shape)} and "
                f"{list(y.shape)}",
                node,
            )
        if rows != x.shape and rows:
            condition = condition.reshape(tuple(rows) + (1,) * (x.ndim - 1))
        return where(condition, x, y)

    return choose


@kernel("SelectV2")
def select_broadcast(node: Node, context: Context) -> Function:
    """All three are broadcast."""
    return context.xp.where  # type: ignore[no-any-return]


@kernel("Where", traceable=False)
def where(node: Node, context: Context) -> Function:
    """Return the indices of nonzero elements in row-major order."""
    xp = context.xp
    kind = context.dtype(node.output_types[0])

    def indices(x: Any) -> Any:
        if x.ndim == 0:
            found = xp.nonzero(x.reshape(1))
            return xp.zeros((found[0].shape[0], 0), dtype=kind, device=context.device)
        return xp.stack(xp.nonzero(x), axis=-1)

    return indices
