"""Ranges, and tensors filled with one value."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.generate import range_length
from dlbridge.graph.ops.kernels import Array, Function, element, number, vector
from dlbridge.signals import not_from_handler


@kernel("Range", host=(0, 1, 2))
def range_(node: Node, context: Context) -> Function:
    """Numbers from start up to, and without, the limit."""
    kind = element(node, "Tidx").numpy

    def numbers(start: Any, limit: Any, delta: Any) -> Array:
        try:
            length = range_length(start[()], limit[()], delta[()])
        except not_from_handler(ValueError) as error:
            raise InvalidArgumentError(str(error), node) from None
        steps = np.arange(length).astype(kind)
        return context.asarray(np.add(start, np.multiply(steps, delta)).astype(kind, copy=False))

    return numbers


@kernel("LinSpace", host=(2,))
def linear(node: Node, context: Context) -> Function:
    """Numbers at equal distances, both ends included to the bit."""
    xp, kind = context.xp, element(node)

    def numbers(start: Array, stop: Array, amount: Any) -> Array:
        length = int(amount)
        if length <= 0:
            raise InvalidArgumentError(f"Requires num > 0: {length}", node)
        if length == 1:
            return start.reshape((1,))
        step = xp.divide(xp.subtract(stop, start), number(context, length - 1, kind))
        steps = context.asarray(np.arange(1, length - 1).astype(kind.numpy))
        between = xp.add(start, xp.multiply(step, steps))
        return xp.concat([start.reshape((1,)), between, stop.reshape((1,))], axis=0)

    return numbers


@kernel("Fill", host=(0,))
def fill(node: Node, context: Context) -> Function:
    """A scalar, repeated; in memory of its own."""
    kind = context.dtype(element(node))

    def full(dims: Any, value: Array) -> Array:
        if value.ndim:
            raise InvalidArgumentError(f"value must be a scalar, got shape {value.shape}", node)
        return context.xp.full(extents(dims, node), value, dtype=kind, device=context.device)

    return full


def extents(dims: Any, node: Node) -> tuple[int, ...]:
    """Return a shape from a host vector; InvalidArgumentError for a negative extent."""
    shape = tuple(vector(np.asarray(dims), "the shape", node))
    for i, extent in enumerate(shape):
        if extent < 0:
            raise InvalidArgumentError(f"Dimension {i} must be >= 0, got {extent}", node)
    return shape


@kernel("ZerosLike", "OnesLike")
def like(node: Node, context: Context) -> Function:
    """A tensor of zeros, or ones, of the same shape; of empty strings."""
    if element(node).kind == "s":
        return lambda x: np.full(np.shape(x), b"", object)
    name = "zeros_like" if node.type == "ZerosLike" else "ones_like"
    return getattr(context.xp, name)  # type: ignore[no-any-return]
