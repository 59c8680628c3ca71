"""Tile, pad, one-hot, and blocks of space as depth or batch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, normalize_axis, require_rank, text, vector
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
    if context.backend.immutable:
        if not pairs:
            return x
        return xp.pad(x, pairs, constant_values=value)
    dims = [before + dim + after for dim, (before, after) in zip(x.shape, pairs, strict=True)]
    result = xp.empty(tuple(dims), dtype=x.dtype, device=context.device)
    result[...] = value
    inside = [slice(at, at + dim) for dim, (at, _) in zip(x.shape, pairs, strict=True)]
    result[tuple(inside)] = x
    return result


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
        for name, given in (("depth", depth), ("on_value", on), ("off_value", off)):
            require_rank(given, 0, node, name)
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


# ---- blocks of space as depth or batch -----------------------------------------------------------


@kernel("SpaceToBatchND", host=(1, 2))
def space_to_batch_nd(node: Node, context: Context) -> Function:
    return lambda x, block, pairs: _to_batch(
        context, node, x, vector(block, "block_shape", node), pairs.tolist()
    )


@kernel("SpaceToBatch", host=(1,))
def space_to_batch(node: Node, context: Context) -> Function:
    block = [node.attrs["block_size"]] * 2

    def run(x: Any, pairs: Any) -> Any:
        require_rank(x, 4, node, "input")
        return _to_batch(context, node, x, block, pairs.tolist())

    return run


@kernel("BatchToSpaceND", host=(1, 2))
def batch_to_space_nd(node: Node, context: Context) -> Function:
    return lambda x, block, pairs: _to_space(
        context, node, x, vector(block, "block_shape", node), pairs.tolist()
    )


@kernel("BatchToSpace", host=(1,))
def batch_to_space(node: Node, context: Context) -> Function:
    block = [node.attrs["block_size"]] * 2

    def run(x: Any, pairs: Any) -> Any:
        require_rank(x, 4, node, "input")
        return _to_space(context, node, x, block, pairs.tolist())

    return run


def _check_blocks(node: Node, x: Any, block: list[int], pairs: list[list[int]]) -> None:
    if len(x.shape) < len(block) + 1 or np.shape(pairs) not in ((len(block), 2), (0,)):
        raise InvalidArgumentError(
            f"{node.type}: {len(block)} block sizes and {len(pairs)} pairs of borders need an "
            f"input of rank {len(block) + 1} or more and one pair for each, got {text(x.shape)}",
            node,
        )
    if min(block, default=1) < 1 or min([min(pair) for pair in pairs], default=0) < 0:
        raise InvalidArgumentError(
            f"{node.type}: block sizes must be positive and borders not negative, got {block} "
            f"and {pairs}",
            node,
        )


def _to_batch(context: Context, node: Node, x: Any, block: list[int], pairs: Any) -> Any:
    _check_blocks(node, x, block, pairs)
    xp, count = context.xp, len(block)
    rest = tuple(x.shape[count + 1 :])
    around = [(0, 0), *map(tuple, pairs), *[(0, 0)] * len(rest)]
    if any(map(any, pairs)):
        x = pad_constant(context, x, around, 0)
    dims: list[int] = [x.shape[0]]
    for axis, size in enumerate(block, 1):
        if x.shape[axis] % size:
            raise InvalidArgumentError(
                f"padded_shape[{axis - 1}]={x.shape[axis]} is not divisible by "
                f"block_shape[{axis - 1}]={size}",
                node,
            )
        dims += [x.shape[axis] // size, size]
    sizes, outer = range(2, 2 * count + 1, 2), range(1, 2 * count + 1, 2)
    split = xp.reshape(x, (*dims, *rest))
    tail = range(2 * count + 1, 2 * count + 1 + len(rest))
    moved = xp.permute_dims(split, (*sizes, 0, *outer, *tail))
    return xp.reshape(moved, (x.shape[0] * prod(block), *[dims[i] for i in outer], *rest))


def _to_space(context: Context, node: Node, x: Any, block: list[int], pairs: Any) -> Any:
    _check_blocks(node, x, block, pairs)
    xp, count = context.xp, len(block)
    batch, space, rest = x.shape[0], x.shape[1 : count + 1], tuple(x.shape[count + 1 :])
    if batch % prod(block):
        raise InvalidArgumentError(
            f"Input batch dimension ({batch}) is not divisible by product of block sizes "
            f"({prod(block)})",
            node,
        )
    split = xp.reshape(x, (*block, batch // prod(block), *space, *rest))
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    moved = xp.permute_dims(split, (*order, *range(2 * count + 1, 2 * count + 1 + len(rest))))
    dims = [dim * size for dim, size in zip(space, block, strict=True)]
    whole = xp.reshape(moved, (batch // prod(block), *dims, *rest))
    for dim, (before, after) in zip(dims, pairs, strict=True):
        if before + after > dim:
            raise InvalidArgumentError(
                f"cropped_shape is negative: {dim} - {before} - {after}", node
            )
    inside = [slice(at, dim - end) for dim, (at, end) in zip(dims, pairs, strict=True)]
    return whole[(slice(None), *inside)]


@kernel("SpaceToDepth")
def space_to_depth(node: Node, context: Context) -> Function:
    """Each square of pixels becomes one pixel with the channels of all."""
    xp, size, first = context.xp, *_block(node)

    def run(x: Any) -> Any:
        if first:
            n, c, h, w = x.shape
            parts = xp.reshape(x, (n, c, h // size, size, w // size, size))
            parts = xp.permute_dims(parts, (0, 3, 5, 1, 2, 4))
            return xp.reshape(parts, (n, c * size * size, h // size, w // size))
        n, h, w, c = x.shape
        parts = xp.reshape(x, (n, h // size, size, w // size, size, c))
        parts = xp.permute_dims(parts, (0, 1, 3, 2, 4, 5))
        return xp.reshape(parts, (n, h // size, w // size, c * size * size))

    return run


@kernel("DepthToSpace")
def depth_to_space(node: Node, context: Context) -> Function:
    """The inverse of SpaceToDepth."""
    xp, size, first = context.xp, *_block(node)

    def run(x: Any) -> Any:
        if first:
            n, c, h, w = x.shape
            parts = xp.reshape(x, (n, size, size, c // size**2, h, w))
            parts = xp.permute_dims(parts, (0, 3, 4, 1, 5, 2))
            return xp.reshape(parts, (n, c // size**2, h * size, w * size))
        n, h, w, c = x.shape
        parts = xp.reshape(x, (n, h, w, size, size, c // size**2))
        parts = xp.permute_dims(parts, (0, 1, 3, 2, 4, 5))
        return xp.reshape(parts, (n, h * size, w * size, c // size**2))

    return run


def _block(node: Node) -> tuple[int, bool]:
    return node.attrs["block_size"], node.attrs["data_format"] == b"NCHW"
