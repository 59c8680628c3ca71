"""Reductions, positions of extremes, and the largest elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Array,
    Function,
    axes_of,
    axis_of,
    caster,
    element,
    number,
    text,
    wider,
)
from dlbridge.proto.datatypes import DataType, float64, int64, uint8


@kernel("Sum", "Prod", host=(1,))
def total(node: Node, context: Context) -> Function:
    """Halves are added up, or multiplied, in float32."""
    kind = element(node)
    function: Function = context.xp.sum if node.type == "Sum" else context.xp.prod
    work, narrow = context.dtype(wider(kind)), caster(context, kind)
    keep, is_wide = node.attrs["keep_dims"], wider(kind) is kind

    def reduce(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        if not where:
            return x
        result = function(x, axis=where, dtype=work, keepdims=keep)
        return result if is_wide else narrow(result)

    return reduce


@kernel("Mean", host=(1,))
def mean(node: Node, context: Context) -> Function:
    """The mean of integers is rounded towards zero; that of nothing is NaN, or 0."""
    xp, kind = context.xp, element(node)
    work = int64 if kind.is_integer else wider(kind)
    dtype, narrow, keep = context.dtype(work), caster(context, kind), node.attrs["keep_dims"]

    def reduce(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        if not where:
            return x
        count = number(context, _count(x, where), work)
        sums = xp.sum(x, axis=where, dtype=dtype, keepdims=keep)
        if kind.is_integer:
            return narrow(_truncated(xp, sums, xp.maximum(count, xp.ones_like(count))))
        return narrow(xp.divide(sums, count))

    return reduce


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def _truncated(xp: Any, x: Array, y: Array) -> Array:
    return xp.floor_divide(xp.subtract(x, xp.fmod(x, y)), y)


@kernel("Max", "Min", host=(1,))
def extreme(node: Node, context: Context) -> Function:
    """NaN wins. The greatest of nothing is the least number there is."""
    kind, keep = element(node), node.attrs["keep_dims"]
    function: Function = context.xp.max if node.type == "Max" else context.xp.min
    neutral = number(context, _neutral(kind, node.type), kind)

    def reduce(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        if not where:
            return x
        if _count(x, where):
            return function(x, axis=where, keepdims=keep)
        shape = _reduced(x.shape, where, keep)
        return context.xp.broadcast_to(neutral, shape)

    return reduce


def _neutral(kind: DataType, name: str) -> Any:
    if kind.is_floating:
        return -np.inf if name == "Max" else np.inf
    return kind.min if name == "Max" else kind.max


def _reduced(shape: Any, axes: tuple[int, ...], keep: bool) -> tuple[int, ...]:
    return tuple([1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes])


@kernel("All", "Any", host=(1,))
def every(node: Node, context: Context) -> Function:
    """Whether all are true, or any is."""
    function: Function = context.xp.all if node.type == "All" else context.xp.any
    keep = node.attrs["keep_dims"]

    def reduce(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        return function(x, axis=where, keepdims=keep) if where else x

    return reduce


@kernel("EuclideanNorm", host=(1,))
def euclidean_norm(node: Node, context: Context) -> Function:
    """The root of the sum of squares; that of integers is truncated toward zero."""
    xp, kind, keep = context.xp, element(node), node.attrs["keep_dims"]
    work = float64 if kind.is_integer else wider(kind)
    widen, narrow, dtype = caster(context, work), caster(context, kind), context.dtype(work)

    def reduce(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        x = widen(x)
        squares = xp.multiply(x, xp.conj(x)) if kind.is_complex else xp.square(x)
        if where:
            squares = xp.sum(squares, axis=where, dtype=dtype, keepdims=keep)
        return narrow(xp.sqrt(squares))

    return reduce


@kernel("ArgMax", "ArgMin", host=(1,))
def position(node: Node, context: Context) -> Function:
    """The first of equal ones; NaN is never found unless there is nothing else."""
    xp, kind = context.xp, element(node)
    function: Function = xp.argmax if node.type == "ArgMax" else xp.argmin
    result = caster(context, node.output_types[0])
    comparable = _comparable(context, kind, "Max" if node.type == "ArgMax" else "Min")

    def find(x: Array, axis: Any) -> Array:
        where = axis_of(axis, x.ndim, node, node.type)
        if x.shape[where] == 0:
            raise InvalidArgumentError(
                f"Reduction axis {where} is empty in shape {list(x.shape)}", node
            )
        return result(function(comparable(x), axis=where))

    return find


def _comparable(context: Context, kind: DataType, name: str) -> Function:
    """Return a function that replaces NaN, which has no order."""
    if kind.is_bool:
        return caster(context, uint8)
    if not kind.is_floating:
        return lambda x: x
    xp, worst = context.xp, number(context, _neutral(kind, name), kind)
    return lambda x: xp.where(xp.isnan(x), worst, x)


# ---- the largest -------------------------------------------------------------------------------


@kernel("TopKV2", host=(1,))
@kernel("TopK")
def largest(node: Node, context: Context) -> Function:
    """The k largest of each row in falling order, and where they were; NaN comes last."""
    xp = context.xp
    comparable = _comparable(context, element(node), "Max")
    result = caster(context, node.output_types[1])

    def find(x: Array, k: Any) -> tuple[Array, Array]:
        if np.ndim(k):
            raise InvalidArgumentError(f"k must be scalar, got shape {text(k.shape)}", node)
        count = int(k)
        if count < 0:
            raise InvalidArgumentError(f"Need k >= 0, got {count}", node)
        if x.ndim < 1:
            raise InvalidArgumentError("input must be >= 1-D, got shape []", node)
        if x.shape[-1] < count:
            raise InvalidArgumentError(
                f"input must have at least k columns. Had {x.shape[-1]}, needed {count}", node
            )
        order = xp.argsort(comparable(x), axis=-1, descending=True, stable=True)[..., :count]
        return xp.take_along_axis(x, order, axis=-1), result(order)

    if node.type == "TopK":
        return lambda x: find(x, node.attrs["k"])
    return find
