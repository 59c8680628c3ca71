"""Tile, pad and one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, normalize_axis, text, vector
from dlbridge.proto.datatypes import string

Pairs = list[tuple[int, int]]


@kernel("Tile", host=(1,))
def tile(node: Node, context: Context) -> Function:
    function = context.xp.tile

    def tile(x: Any, multiples: Any) -> Any:
        counts = tuple(vector(multiples, "multiples", node))
        if len(counts) != len(x.shape) or min(counts, default=0) < 0:
            raise InvalidArgumentError(
                f"Expected multiples argument to be a vector of length {len(x.shape)} of numbers "
                f"from 0, but got {text(counts)}",
                node,
            )
        return function(x, counts) if counts else x

    return tile


# ---- pad ---------------------------------------------------------------------------------------


@kernel("Pad", host=(1,))
def pad(node: Node, context: Context) -> Function:
    value = b"" if node.output_types[0] is string else 0
    return lambda x, paddings: pad_constant(context, x, read_pairs(x, paddings, node), value)


@kernel("PadV2", host=(1,))
def pad_v2(node: Node, context: Context) -> Function:
    return lambda x, paddings, value: pad_constant(context, x, read_pairs(x, paddings, node), value)


def read_pairs(x: Any, paddings: Any, node: Node) -> Pairs:
    """Return how much goes before and after each axis, from the [rank, 2] matrix."""
    if paddings.shape != (len(x.shape), 2):
        raise InvalidArgumentError(
            "The first dimension of paddings must be the rank of inputs, the second 2: got "
            f"{text(paddings.shape)} for inputs {text(x.shape)}",
            node,
        )
    pairs: Pairs = [(before, after) for before, after in paddings.tolist()]
    if min([min(pair) for pair in pairs], default=0) < 0:
        raise InvalidArgumentError(f"Paddings must be non-negative: {pairs}", node)
    return pairs


def pad_constant(context: Context, x: Any, pairs: Pairs, value: Any) -> Any:
    """Return a copy of x with `value`, a number or a scalar array, around it."""
    xp = context.xp
    if context.framework == "jax":
        return xp.pad(x, pairs, constant_values=value)
    dims = [before + dim + after for dim, (before, after) in zip(x.shape, pairs, strict=True)]
    result = xp.empty(tuple(dims), dtype=x.dtype, **_same_device(context, x))
    result[...] = value
    inside = [slice(at, at + dim) for dim, (at, _) in zip(x.shape, pairs, strict=True)]
    result[tuple(inside)] = x
    return result


def _same_device(context: Context, x: Any) -> dict[str, Any]:
    return {} if context.framework == "numpy" else {"device": x.device}


@kernel("MirrorPad", host=(1,))
def mirror_pad(node: Node, context: Context) -> Function:
    """REFLECT leaves the border out, SYMMETRIC repeats it."""
    skipped = 1 if node.attrs["mode"] == b"REFLECT" else 0
    take = context.xp.take

    def pad(x: Any, paddings: Any) -> Any:
        for axis, (before, after) in enumerate(read_pairs(x, paddings, node)):
            extent = x.shape[axis]
            if before > extent - skipped or after > extent - skipped:
                relation = "less than" if skipped else "no greater than"
                raise InvalidArgumentError(
                    f"paddings must be {relation} the dimension size: {before}, {after} against "
                    f"{extent}",
                    node,
                )
            if before or after:
                order = np.arange(extent)
                parts = (
                    order[skipped : before + skipped][::-1],
                    order,
                    order[::-1][skipped : after + skipped],
                )
                x = take(x, context.asarray(np.concatenate(parts)), axis=axis)
        return x

    return pad


# ---- one-hot -----------------------------------------------------------------------------------


@kernel("OneHot", host=(1,))
def one_hot(node: Node, context: Context) -> Function:
    xp, axis = context.xp, node.attrs["axis"]

    def one_hot(indices: Any, depth: Any, on: Any, off: Any) -> Any:
        count, rank = int(depth), len(indices.shape)
        if count < 0:
            raise InvalidArgumentError(f"depth must be non-negative, got: {count}", node)
        place = rank if axis == -1 else normalize_axis(axis, rank + 1, node)
        dims = tuple(indices.shape)
        classes = context.asarray(
            np.arange(count).reshape((count,) + (1,) * (rank - place)).astype(np.int64)
        )
        found = xp.reshape(indices, (*dims[:place], 1, *dims[place:])) == classes
        return xp.where(found, on, off)

    return one_hot
