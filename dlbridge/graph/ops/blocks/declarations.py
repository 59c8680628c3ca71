"""Blocks of space as depth or batch."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Dim, Shapes
from dlbridge.graph.ops.padding.declarations import PADDINGS, border_pairs
from dlbridge.shape import Dims


def _divided(dim: Dim, divisor: int, c: Inference) -> Dim:
    if dim is None:
        return None
    if dim % divisor:
        raise c.error(f"Dimension size must be evenly divisible by {divisor} but is {dim}")
    return dim // divisor


def _times(dim: Dim, factor: int) -> Dim:
    return None if dim is None else dim * factor


def _blocks(c: Inference) -> tuple[Dims | None, Any, Any, int | None]:
    """Return the input's dimensions, the blocks, the pairs of borders, and how many blocks."""
    if len(c.inputs) == 2:  # the older op types have one size for two axes
        border_pairs(c, 1, c.inputs[1].op.name)
        size = c.attrs["block_size"]
        return require_rank(c.dims(0), 4, c), [size, size], c.constant(1), 2
    count = require_rank(c.dims(1), 1, c)[0]
    merged = merge((count,), (border_pairs(c, 2, "paddings or crops"),), c)
    assert merged is not None
    block, dims, count = c.constant(1), c.dims(0), merged[0]
    if count is not None and dims is not None and len(dims) < count + 1:
        raise c.error(f"Shape must be at least rank {count + 1} but is rank {len(dims)}")
    if block is not None and (block < 1).any():
        raise c.error(f"block_shape must be positive, but is {block.tolist()}")
    return dims, None if block is None else block.tolist(), c.constant(2), count


def _borders(pairs: Any, c: Inference) -> list[int | None] | None:
    if pairs is None:
        return None
    if (pairs < 0).any():
        raise c.error("paddings and crops cannot be negative")
    return pairs.sum(1).tolist()  # type: ignore[no-any-return]


def _space_to_batch(c: Inference) -> Shapes:
    dims, block, pairs, count = _blocks(c)
    if dims is None:
        return [None]
    if count is None:
        return [(None,) * len(dims)]
    added = _borders(pairs, c)
    batch = dims[0]
    space: list[Dim] = [None] * count
    if block is not None:
        for size in block:
            batch = _times(batch, size)
        if added is not None:
            space = [
                None if dim is None else _divided(dim + more, size, c)  # type: ignore[operator]
                for dim, more, size in zip(dims[1:], added, block, strict=False)
            ]
    else:
        batch = None
    return [(batch, *space, *dims[1 + count :])]


def _batch_to_space(c: Inference) -> Shapes:
    dims, block, pairs, count = _blocks(c)
    if dims is None:
        return [None]
    if count is None:
        return [(None,) * len(dims)]
    removed = _borders(pairs, c)
    batch: Dim = None
    space: list[Dim] = [None] * count
    if block is not None:
        batch = dims[0]
        for size in block:
            batch = _divided(batch, size, c)
        if removed is not None:
            space = [
                None if dim is None else _cropped(dim * size, less, c)
                for dim, less, size in zip(dims[1:], removed, block, strict=False)
            ]
    return [(batch, *space, *dims[1 + count :])]


def _cropped(dim: int, less: Any, c: Inference) -> int:
    if less > dim:
        raise c.error(f"Negative dimension size caused by subtracting {less} from {dim}")
    return dim - int(less)


_BLOCK = "Tblock_shape: {int32, int64} = int32"


define(
    "SpaceToBatchND(input: T, block_shape: Tblock_shape, paddings: Tpaddings, *, T: type, "
    f"{_BLOCK}, {PADDINGS}) -> output: T",
    shape=_space_to_batch,
)


define(
    "BatchToSpaceND(input: T, block_shape: Tblock_shape, crops: Tcrops, *, T: type, "
    f"{_BLOCK}, Tcrops: {{int32, int64}} = int32) -> output: T",
    shape=_batch_to_space,
)


define(
    f"SpaceToBatch(input: T, paddings: Tpaddings, *, T: type, {PADDINGS}, block_size: int >= 2) "
    "-> output: T",
    shape=_space_to_batch,
)


define(
    "BatchToSpace(input: T, crops: Tidx, *, T: type, block_size: int >= 2, "
    "Tidx: {int32, int64} = int32) -> output: T",
    shape=_batch_to_space,
)
