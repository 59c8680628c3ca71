"""What the kernels of arithmetic share: numbers and casts of one dtype, axes, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.proto.datatypes import DataType, bfloat16, complex64, float16, float32, float64

Function = Callable[..., Any]


def element(node: Node, attribute: str = "T") -> DataType:
    """Return the dtype that an attribute names."""
    found: DataType = node.attrs[attribute]
    return found


def number(context: Context, value: Any, dtype: DataType) -> Any:
    """Return a scalar as a 0-d array of exactly this dtype, which promotes nothing."""
    return context.asarray(np.asarray(value, dtype.numpy))


def caster(context: Context, dtype: DataType) -> Function:
    """Return a function that casts arrays of the framework as the framework does."""
    kind = context.dtype(dtype)
    if context.framework == "torch":
        return lambda x: x.to(kind)
    return lambda x: x.astype(kind)


def is_half(dtype: DataType) -> bool:
    """Whether sums in this dtype would lose most of their digits."""
    return dtype is bfloat16 or dtype is float16


def wider(dtype: DataType) -> DataType:
    """Return the dtype in which values of `dtype` are computed: float32 for halves."""
    return float32 if is_half(dtype) else dtype


def real_of(dtype: DataType) -> DataType:
    """Return the dtype of a complex type's parts."""
    return float32 if dtype is complex64 else float64


def in_wider(context: Context, dtype: DataType, function: Function) -> Function:
    """Return `function`, computed in float32 where the dtype is a half; else itself."""
    if not is_half(dtype):
        return function
    widen, narrow = caster(context, float32), caster(context, dtype)
    return lambda *arrays: narrow(function(*[widen(array) for array in arrays]))


def axes_of(host: Any, rank: int, node: Node) -> tuple[int, ...]:
    """Return axes as a sorted tuple from 0.

    Raises:
        InvalidArgumentError: one is out of range, or named twice.
    """
    given = [int(axis) for axis in np.asarray(host).reshape(-1)]
    for axis in given:
        if not -rank <= axis < rank:
            raise InvalidArgumentError(
                f"Invalid reduction dimension ({axis} for input with {rank} dimension(s))", node
            )
    axes = sorted({axis % rank for axis in given})
    if len(axes) < len(given):
        raise InvalidArgumentError(
            f"Invalid reduction arguments: Axes contains duplicate dimension: {given}", node
        )
    return tuple(axes)


def axis_of(host: Any, rank: int, node: Node, what: str) -> int:
    """Return one axis from 0; InvalidArgumentError where there is no such axis."""
    axis = int(host)
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"{what}: Expected dimension in the range [{-rank}, {rank}), but got {axis}", node
        )
    return axis % rank


def refuse_zero(node: Node, context: Context) -> Callable[[Any], None] | None:
    """Return a function that raises where an integer divisor has a zero.

    None where values are not looked at: a device or XLA has some quotient.
    """
    if not context.checks:
        return None

    def check(divisor: Any) -> None:
        if not bool(divisor.all()):
            raise InvalidArgumentError("Integer division by zero", node)

    return check
