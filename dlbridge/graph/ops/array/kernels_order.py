"""Axes and elements in another order: transpose, reverse; and broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.array.kernels import Kernel, normalized, text, vector
from dlbridge.graph.ops.remembering import remember

# ---- axes --------------------------------------------------------------------------------------


@kernel("Transpose", host=(1,))
def transpose(node: Node, context: Context) -> Kernel:
    return transposing(node, context)


def transposing(node: Node, context: Context) -> Kernel:
    """Return the function of a tensor and a permutation of its axes."""
    order = remember(
        node, (1,), lambda dims, perm: permutation(vector(perm, "perm", node), len(dims), node)
    )
    if context.framework == "torch":
        return lambda x, perm: x.permute(order(x.shape, perm))
    return lambda x, perm: x.transpose(order(x.shape, perm))


@kernel("ConjugateTranspose", host=(1,))
def conjugate_transpose(node: Node, context: Context) -> Kernel:
    function, conjugate = transposing(node, context), context.xp.conj
    if not node.output_types[0].is_complex:
        return function
    return lambda x, perm: conjugate(function(x, perm))


def permutation(perm: list[int], rank: int, node: Node) -> tuple[int, ...]:
    """Return a permutation of axes, counted from the front."""
    if len(perm) != rank:
        raise InvalidArgumentError(
            f"transpose expects a vector of size {rank}. But input(1) is a vector of size "
            f"{len(perm)}",
            node,
        )
    found = tuple([normalized(axis, rank, node) for axis in perm])
    if len(set(found)) < rank:
        missing = min(set(range(rank)) - set(found))
        raise InvalidArgumentError(f"{missing} is missing from {text(perm)}", node)
    return found


@kernel("InvertPermutation")
def invert_permutation(node: Node, context: Context) -> Kernel:
    """Where values are not looked at, what is no permutation gives numbers of no meaning."""
    xp, dtype, checks = context.xp, context.dtype(node.output_types[0]), context.checks

    def invert(x: Any) -> Any:
        result = xp.argsort(x)
        if checks and not bool(xp.all(x[result] == xp.arange(x.shape[0], dtype=x.dtype))):
            raise InvalidArgumentError(
                f"InvertPermutation: required each of 0 to {x.shape[0] - 1} once, got {x}", node
            )
        return xp.astype(result, dtype)

    return invert


@kernel("ReverseV2", host=(1,))
def reverse_v2(node: Node, context: Context) -> Kernel:
    return reversing(node, context.xp.flip)


def reversing(node: Node, flip: Kernel) -> Kernel:
    """Return the kernel of ReverseV2 that calls flip(x, axis=axes)."""

    def reverse(x: Any, axes: Any) -> Any:
        found = [normalized(axis, len(x.shape), node) for axis in vector(axes, "axis", node)]
        if len(set(found)) < len(found):
            raise InvalidArgumentError(f"axis {text(found)} names an axis twice", node)
        return flip(x, axis=tuple(found)) if found else x

    return reverse


@kernel("Reverse", host=(1,))
def reverse(node: Node, context: Context) -> Kernel:
    return reversing_flagged(node, context.xp.flip)


def reversing_flagged(node: Node, flip: Kernel) -> Kernel:
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
def reverse_sequence(node: Node, context: Context) -> Kernel:
    """Where lengths are not looked at, those out of range give elements of no meaning."""
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


# ---- broadcast ---------------------------------------------------------------------------------


@kernel("BroadcastTo", host=(1,))
def broadcast_to(node: Node, context: Context) -> Kernel:
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
def broadcast_args(node: Node, context: Context) -> Kernel:
    def broadcast(one: Any, other: Any) -> Any:
        try:
            dims = np.broadcast_shapes(vector(one, "s0", node), vector(other, "s1", node))
        except ValueError:
            raise InvalidArgumentError(
                f"Incompatible shapes: {text(one)} vs. {text(other)}", node
            ) from None
        return np.array(dims, one.dtype)

    return broadcast
