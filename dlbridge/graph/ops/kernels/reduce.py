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
    is_half,
    number,
    text,
    wider,
)
from dlbridge.proto.datatypes import DataType, float64, int64, uint8, uint64


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
    work = (kind if kind is uint64 else int64) if kind.is_integer else wider(kind)
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
    """The root of the sum of squares; that of integers is truncated toward zero.

    In float64 the squares of integers do not overflow, as they do in TensorFlow.
    """
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
    """The k largest of each row in falling order, and where they were; NaN counts as -infinity."""
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


# ---- cumulative functions ------------------------------------------------------------------------


@kernel("Cumsum", "Cumprod", host=(1,))
def cumulative(node: Node, context: Context) -> Function:
    """Sums, or products, of all elements so far; halves in float32."""
    kind, xp = element(node), context.xp
    function: Function = xp.cumsum if node.type == "Cumsum" else xp.cumprod
    dtype, narrow = context.dtype(wider(kind)), caster(context, kind)
    start = number(context, 0 if node.type == "Cumsum" else 1, kind)
    return scan(node, context, lambda x, axis: narrow(function(x, axis, dtype=dtype)), start)


def scan(node: Node, context: Context, function: Function, start: Array) -> Function:
    """Return the kernel of a scan, reversed or without the element itself where asked."""
    xp, exclusive, reverse = context.xp, node.attrs["exclusive"], node.attrs["reverse"]

    def accumulate(x: Array, axis: Any) -> Array:
        where = axis_of(axis, x.ndim, node, "ScanOp")
        x = xp.flip(x, axis=where) if reverse else x
        y = function(x, where)
        if exclusive and x.shape[where]:
            y = _shifted(xp, y, where, start)
        return xp.flip(y, axis=where) if reverse else y

    return accumulate


def _shifted(xp: Any, y: Array, axis: int, start: Array) -> Array:
    """Put `start` in front and drop the last one."""
    before = (slice(None),) * axis
    first = xp.broadcast_to(start, (*y.shape[:axis], 1, *y.shape[axis + 1 :]))
    return xp.concat([first, y[(*before, slice(None, -1))]], axis=axis)


@kernel("CumulativeLogsumexp", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, context.xp.logaddexp.accumulate)


def logsumexp_scan(node: Node, context: Context, function: Function) -> Function:
    """Return the kernel for `function` of an array and an axis; nothing has -infinity."""
    kind, start = element(node), number(context, -np.inf, element(node))
    widen, narrow = caster(context, wider(kind)), caster(context, kind)
    return scan(node, context, lambda x, axis: narrow(function(widen(x), axis)), start)


# ---- segments ------------------------------------------------------------------------------------


_UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Mean": np.add,
    "Prod": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
}


def _work(kind: DataType) -> Any:
    """The NumPy dtype in which segments are reduced."""
    return np.dtype(np.float32) if is_half(kind) else kind.numpy


@kernel(*[f"Segment{name}" for name in _UFUNCS], only=("numpy",))
def segments(node: Node, context: Context) -> Function:
    """Reduce rows of equal identifiers, which do not decrease.

    A segment without rows is 0, or 1 for Prod.
    """
    name = node.type.removeprefix("Segment")
    kind = element(node)
    ufunc, work = _UFUNCS[name], _work(kind)

    def reduce(data: Array, identifiers: Array) -> Array:
        _check_segments(data, identifiers, node)
        count = int(identifiers[-1]) + 1 if len(identifiers) else 0
        out = np.full((count, *data.shape[1:]), name == "Prod", work)
        if count:
            starts = np.flatnonzero(np.diff(identifiers, prepend=-1))
            rows = ufunc.reduceat(data.astype(work, copy=False), starts, axis=0, dtype=work)
            if name == "Mean":
                rows = _divided(rows, np.diff(starts, append=len(identifiers)))
            out[identifiers[starts]] = rows
        return out.astype(kind.numpy, copy=False)

    return reduce


def _divided(rows: Array, counts: Array) -> Array:
    """Divide each row by its count, integers towards zero."""
    counts = counts.astype(rows.dtype).reshape(-1, *(1,) * (rows.ndim - 1))
    if rows.dtype.kind in "iu":
        return np.floor_divide(np.subtract(rows, np.fmod(rows, counts)), counts)
    return np.divide(rows, counts)


def _check_segments(data: Array, identifiers: Array, node: Node) -> None:
    if identifiers.ndim != 1 or data.shape[:1] != identifiers.shape:
        raise InvalidArgumentError(
            "segment_ids should be a vector of the same size as dimension 0 of input: "
            f"{list(identifiers.shape)} and {list(data.shape)}",
            node,
        )
    if len(identifiers) and identifiers[0] < 0:
        raise InvalidArgumentError("segment ids must be >= 0", node)
    if bool((identifiers[1:] < identifiers[:-1]).any()):
        raise InvalidArgumentError("segment ids are not increasing", node)


@kernel(*[f"UnsortedSegment{name}" for name in ("Sum", "Prod", "Max", "Min")], only=("numpy",))
def unsorted_segments(node: Node, context: Context) -> Function:
    """Reduce rows with equal identifiers; negative ones are left out."""
    name = node.type.removeprefix("UnsortedSegment")
    kind = element(node)
    ufunc, work = _UFUNCS[name], _work(kind)
    neutral = {"Sum": 0, "Prod": 1, "Max": kind.min, "Min": kind.max} if not kind.is_complex else {
        "Sum": 0, "Prod": 1,
    }  # fmt: skip

    def reduce(data: Array, identifiers: Array, number: Array) -> Array:
        count, rank = int(number), identifiers.ndim
        if data.shape[:rank] != identifiers.shape:
            raise InvalidArgumentError(
                f"data.shape = {list(data.shape)} does not start with segment_ids.shape = "
                f"{list(identifiers.shape)}",
                node,
            )
        flat = identifiers.reshape(-1)
        _check_range(flat, count, node)
        rows = data.reshape(len(flat), *data.shape[rank:])
        out = np.full((count, *data.shape[rank:]), neutral[name], work)
        kept = flat >= 0
        ufunc.at(out, flat[kept], rows[kept].astype(work, copy=False))
        return out.astype(kind.numpy, copy=False)

    return reduce


def _check_range(identifiers: Array, count: int, node: Node) -> None:
    if count < 0:
        raise InvalidArgumentError(f"Input num_segments == {count} must not be negative.", node)
    wrong = np.flatnonzero(identifiers >= count)
    if len(wrong):
        first = int(wrong[0])
        raise InvalidArgumentError(
            f"segment_ids[{first}] = {identifiers[first]} is out of range [0, {count})", node
        )


@kernel("Bincount", only=("numpy",))
def bincount(node: Node, context: Context) -> Function:
    """Count, or add up the weights of, each number from 0 to less than the size."""
    kind = node.output_types[0].numpy

    def count(numbers: Array, size: Array, weights: Array) -> Array:
        length = int(size)
        if length < 0:
            raise InvalidArgumentError(f"size ({length}) must be non-negative", node)
        flat = numbers.reshape(-1)
        if len(flat) and flat.min() < 0:
            raise InvalidArgumentError("Input arr must be non-negative!", node)
        if weights.size not in (0, flat.size):
            raise InvalidArgumentError(
                f"weights must have the shape of arr or be empty: {list(weights.shape)} and "
                f"{list(numbers.shape)}",
                node,
            )
        kept = flat < length
        out = np.zeros(length, kind)
        values = weights.reshape(-1)[kept] if weights.size else np.ones(1, kind)
        np.add.at(out, flat[kept], values)
        return out

    return count
