"""Shapes as values, the same elements in another shape or order, and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, cached, normalize_axis, require_rank, text, vector
from dlbridge.signals import not_from_handler

# ---- shapes as values --------------------------------------------------------------------------


@kernel("Shape", host_result=True)
def shape(node: Node, context: Context) -> Function:
    dtype = node.attrs["out_type"].numpy
    return lambda x: _extents(tuple(x.shape), dtype, node)


@kernel("ShapeN", host_result=True)
def shape_n(node: Node, context: Context) -> Function:
    dtype = node.attrs["out_type"].numpy
    if len(node.output_types) == 1:
        return lambda x: _extents(tuple(x.shape), dtype, node)
    return lambda *values: tuple([_extents(tuple(x.shape), dtype, node) for x in values])


@kernel("Size", host_result=True)
def size(node: Node, context: Context) -> Function:
    dtype = node.attrs["out_type"].numpy
    return lambda x: _extents(prod(x.shape), dtype, node)


@kernel("Rank", host_result=True)
def rank(node: Node, context: Context) -> Function:
    return lambda x: np.array(len(x.shape), np.int32)


@kernel("IdentityN")
def identity_n(node: Node, context: Context) -> Function:
    if len(node.output_types) == 1:
        return lambda x: x
    return lambda *values: values


@kernel("EnsureShape")
def ensure_shape(node: Node, context: Context) -> Function:
    wanted = node.attrs["shape"]

    def ensure(x: Any) -> Any:
        if not wanted.is_compatible_with(tuple(x.shape)):
            raise InvalidArgumentError(
                f"Shape of tensor {node.name} {text(x.shape)} is not compatible with expected "
                f"shape {wanted}",
                node,
            )
        return x

    return ensure


# ---- the same elements in another shape --------------------------------------------------------


@kernel("Reshape", host=(1,))
def reshape(node: Node, context: Context) -> Function:
    target = cached(
        node, (1,), lambda dims, wanted: target_shape(dims, vector(wanted, "shape", node), node)
    )
    return lambda x, wanted: x.reshape(target(x.shape, wanted))


def target_shape(before: Sequence[int], wanted: list[int], node: Node) -> tuple[int, ...]:
    """Return the shape of a result of Reshape, its -1 replaced."""
    count = prod(before)
    if -1 in wanted:
        wanted = _infer(before, wanted, node)
    if prod(wanted) != count or min(wanted, default=0) < 0:
        raise InvalidArgumentError(
            f"Input to reshape is a tensor with {count} values, but the requested shape "
            f"{text(wanted)} has {prod(wanted)}",
            node,
        )
    return tuple(wanted)


def _infer(before: Sequence[int], wanted: list[int], node: Node) -> list[int]:
    """Return the shape with its -1 replaced; extents of 0 are left out on both sides."""
    at = wanted.index(-1)
    if -1 in wanted[at + 1 :]:
        raise InvalidArgumentError(
            f"Only one input size may be -1, not both {at} and {wanted.index(-1, at + 1)}", node
        )
    is_empty = 0 in wanted
    others = prod([dim for i, dim in enumerate(wanted) if dim and i != at])
    missing, rest = divmod(prod([dim for dim in before if dim or not is_empty]), others)
    if rest and not (is_empty and 0 in before):
        raise InvalidArgumentError(
            f"Input to reshape is a tensor with {prod(before)} values, but the requested shape "
            f"{text(wanted)} requires a multiple of {others}",
            node,
        )
    return [*wanted[:at], missing, *wanted[at + 1 :]]


@kernel("Squeeze")
def squeeze(node: Node, context: Context) -> Function:
    axes = node.attrs["squeeze_dims"]
    if not axes:
        return lambda x: x.reshape(tuple([dim for dim in x.shape if dim != 1]))
    return lambda x: x.reshape(_squeezed(tuple(x.shape), axes, node))


def _squeezed(dims: tuple[int, ...], axes: Sequence[int], node: Node) -> tuple[int, ...]:
    gone = {normalize_axis(axis, len(dims), node) for axis in axes}
    for axis in gone:
        if dims[axis] != 1:
            raise InvalidArgumentError(
                f"Can not squeeze dim[{axis}], expected a dimension of 1, got {dims[axis]}", node
            )
    return tuple([dim for i, dim in enumerate(dims) if i not in gone])


@kernel("ExpandDims", host=(1,))
def expand_dims(node: Node, context: Context) -> Function:
    def expanded(dims: Sequence[int], axis: Any) -> tuple[int, ...]:
        place = normalize_axis(int(axis.item()), len(dims) + 1, node)
        return (*dims[:place], 1, *dims[place:])

    target = cached(node, (1,), expanded)
    return lambda x, axis: x.reshape(target(x.shape, axis))


@kernel("Transpose", host=(1,))
def transpose(node: Node, context: Context) -> Function:
    return transposing(node)


def transposing(node: Node, function: Function | None = None) -> Function:
    """Return the function of a tensor and a permutation; `function` replaces `x.transpose`."""
    order = cached(
        node, (1,), lambda dims, perm: permutation(vector(perm, "perm", node), len(dims), node)
    )
    if function is None:
        return lambda x, perm: x.transpose(order(x.shape, perm))
    return lambda x, perm: function(x, order(x.shape, perm))


@kernel("ConjugateTranspose", host=(1,))
def conjugate_transpose(node: Node, context: Context) -> Function:
    return conjugating(node, context, transposing(node))


def conjugating(node: Node, context: Context, function: Function) -> Function:
    """Return a function whose complex result is conjugated."""
    if not node.output_types[0].is_complex:
        return function
    conjugate = context.xp.conj
    return lambda x, perm: conjugate(function(x, perm))


def permutation(perm: list[int], rank: int, node: Node) -> tuple[int, ...]:
    """Return a permutation of axes, counted from the front."""
    if len(perm) != rank:
        raise InvalidArgumentError(
            f"transpose expects a vector of size {rank}. But input(1) is a vector of size "
            f"{len(perm)}",
            node,
        )
    found = tuple([normalize_axis(axis, rank, node) for axis in perm])
    if len(set(found)) < rank:
        missing = min(set(range(rank)) - set(found))
        raise InvalidArgumentError(f"{missing} is missing from {text(perm)}", node)
    return found


@kernel("InvertPermutation")
def invert_permutation(node: Node, context: Context) -> Function:
    """Where values are not checked, the result for any other vector is undefined."""
    xp, dtype, checks = context.xp, context.dtype(node.output_types[0]), context.checks

    def invert(x: Any) -> Any:
        require_rank(x, 1, node, "x")
        result = xp.argsort(x)
        if checks and not bool(xp.all(x[result] == xp.arange(x.shape[0], dtype=x.dtype))):
            raise InvalidArgumentError(
                f"InvertPermutation: required each of 0 to {x.shape[0] - 1} once, got {x}", node
            )
        return xp.astype(result, dtype)

    return invert


@kernel("ReverseV2", host=(1,))
def reverse_v2(node: Node, context: Context) -> Function:
    return reversing(node, context.xp.flip)


def reversing(node: Node, flip: Function) -> Function:
    """Return the kernel of ReverseV2 that calls flip(x, axis=axes)."""

    def reverse(x: Any, axes: Any) -> Any:
        found = [normalize_axis(axis, len(x.shape), node) for axis in vector(axes, "axis", node)]
        if len(set(found)) < len(found):
            raise InvalidArgumentError(f"axis {text(found)} names an axis twice", node)
        return flip(x, axis=tuple(found)) if found else x

    return reverse


@kernel("Reverse", host=(1,))
def reverse(node: Node, context: Context) -> Function:
    return reversing_flagged(node, context.xp.flip)


def reversing_flagged(node: Node, flip: Function) -> Function:
    """Return the kernel of Reverse that calls flip(x, axis=axes)."""

    def reverse(x: Any, flags: Any) -> Any:
        if flags.shape != (len(x.shape),):
            raise InvalidArgumentError(
                f"'dims' must have {len(x.shape)} elements, one for each axis, got shape "
                f"{text(flags.shape)}",
                node,
            )
        axes = tuple(np.flatnonzero(flags).tolist())
        return flip(x, axis=axes) if axes else x

    return reverse


@kernel("ReverseSequence")
def reverse_sequence(node: Node, context: Context) -> Function:
    """Where lengths are not checked, elements of those out of range are undefined."""
    xp, checks = context.xp, context.checks
    axes, front = (node.attrs["batch_dim"], node.attrs["seq_dim"]), (0, 1)

    def reverse(x: Any, lengths: Any) -> Any:
        batch, steps = x.shape[axes[0]], x.shape[axes[1]]
        if tuple(lengths.shape) != (batch,):
            raise InvalidArgumentError(
                f"Length of seq_lengths != input.dims({axes[0]}), ({lengths.shape[0]} vs. {batch})",
                node,
            )
        if checks and batch and (int(xp.min(lengths)) < 0 or int(xp.max(lengths)) > steps):
            raise InvalidArgumentError(f"seq_lengths must be in [0, {steps}]", node)
        step = context.asarray(np.arange(steps))
        length = lengths[:, None]
        source = xp.where(step < length, length - 1 - step, step)
        rows = context.asarray(np.arange(batch)[:, None])
        return xp.moveaxis(xp.moveaxis(x, axes, front)[rows, source], front, axes)

    return reverse


@kernel("BroadcastTo", host=(1,))
def broadcast_to(node: Node, context: Context) -> Function:
    function = context.xp.broadcast_to

    def broadcast(x: Any, wanted: Any) -> Any:
        target = tuple(vector(wanted, "shape", node))
        dims = tuple(x.shape)
        fits = len(dims) <= len(target) and all(
            one in (1, other) for one, other in zip(dims[::-1], target[::-1], strict=False)
        )
        if not fits or min(target, default=0) < 0:
            raise InvalidArgumentError(
                f"Incompatible shapes: {text(dims)} vs. {text(target)}", node
            )
        return function(x, target)

    return broadcast


@kernel("BroadcastArgs", host=(0, 1), host_result=True)
def broadcast_args(node: Node, context: Context) -> Function:
    def broadcast(one: Any, other: Any) -> Any:
        try:
            dims = np.broadcast_shapes(vector(one, "s0", node), vector(other, "s1", node))
        except not_from_handler(ValueError):
            raise InvalidArgumentError(
                f"Incompatible shapes: {text(one)} vs. {text(other)}", node
            ) from None
        return np.array(dims, one.dtype)

    return broadcast


@kernel("Roll", host=(1, 2))
def roll(node: Node, context: Context) -> Function:
    function = context.xp.roll

    def roll(x: Any, shift: Any, axis: Any) -> Any:
        if shift.shape != axis.shape:
            raise InvalidArgumentError(
                f"shift and axis must have the same size, got {text(shift.shape)} and "
                f"{text(axis.shape)}",
                node,
            )
        axes, rank = axis.reshape(-1).astype(np.int64), len(x.shape)
        for extreme in (axes.min(), axes.max()) if axes.size else ():
            normalize_axis(int(extreme), rank, node)
        shifts = [
            (each, _shift(shift.reshape(-1)[axes % rank == each], x.shape[each]))
            for each in range(rank if axes.size else 0)
        ]
        moved = [each for each in shifts if each[1]]
        if not moved:
            return x
        by_axis, by = zip(*moved, strict=True)
        return function(x, tuple(by), axis=tuple(by_axis))

    return roll


def _shift(shifts: Any, extent: int) -> int:
    """Return what shifts along one axis, which may be many, come to."""
    return int((shifts.astype(np.int64) % extent).sum()) % extent if extent else 0


def _extents(values: Any, dtype: Any, node: Node) -> Any:
    try:
        return np.array(values, dtype)
    except not_from_handler(OverflowError):
        raise InvalidArgumentError(
            f"{node.type}: out_type is {np.dtype(dtype).name}, which {values} does not fit; "
            "use out_type=int64",
            node,
        ) from None
