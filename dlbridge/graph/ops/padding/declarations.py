"""More elements than came in: tile, pad, one-hot; and blocks of space as depth or batch."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.shape import Dims

Shapes = list[Dims | None]
Dim = int | None


# ---- tile --------------------------------------------------------------------------------------


def _tile(c: Inference) -> Shapes:
    require_rank(c.dims(1), 1, c)
    dims, multiples = c.dims(0), c.constant_dims(1)
    if multiples is None:
        return [None if dims is None else (None,) * len(dims)]
    dims = require_rank(dims, len(multiples), c)
    return [tuple(map(_product, dims, multiples))]


def _product(one: Dim, other: Dim) -> Dim:
    if one == 0 or other == 0:
        return 0
    return None if one is None or other is None else one * other


define(
    "Tile(input: T, multiples: Tmultiples, *, T: type, Tmultiples: {int32, int64} = int32) "
    "-> output: T",
    shape=_tile,
)


# ---- pad ---------------------------------------------------------------------------------------


def _pairs(c: Inference, index: int, columns: str) -> Dim:
    """Return how many rows the input, an [n, 2] matrix, has."""
    rows, pair = require_rank(c.dims(index), 2, c)
    if pair not in (2, None):
        raise c.error(f"{columns} must have 2 columns, but has {pair}")
    return rows


def _pad(c: Inference) -> Shapes:
    rows, dims, paddings = _pairs(c, 1, "paddings"), c.dims(0), c.constant(1)
    if rows is not None:
        dims = require_rank(dims, rows, c)
    if dims is None:
        return [None]
    if paddings is None:
        return [(None,) * len(dims)]
    if (paddings < 0).any():
        raise c.error("paddings must be non-negative")
    added = paddings.sum(1).tolist()
    return [tuple([None if dim is None else dim + more for dim, more in zip(dims, added)])]  # noqa: B905


_PADDINGS = "Tpaddings: {int32, int64} = int32"
define(f"Pad(input: T, paddings: Tpaddings, *, T: type, {_PADDINGS}) -> output: T", shape=_pad)
define(
    f"PadV2(input: T, paddings: Tpaddings, constant_values: T, *, T: type, {_PADDINGS}) "
    "-> output: T",
    shape=_pad,
)
define(
    f"MirrorPad(input: T, paddings: Tpaddings, *, T: type, {_PADDINGS}, "
    'mode: {"REFLECT", "SYMMETRIC"}) -> output: T',
    shape=_pad,
)


# ---- one-hot -----------------------------------------------------------------------------------


def _one_hot(c: Inference) -> Shapes:
    require_rank(c.dims(1), 0, c)
    require_rank(c.dims(2), 0, c)
    require_rank(c.dims(3), 0, c)
    axis, dims, depth = c.attrs["axis"], c.dims(0), c.constant(1)
    if axis < -1:
        raise c.error("axis must be >= -1")
    if depth is not None and depth < 0:
        raise c.error(f"depth must be non-negative, but is {depth}")
    if dims is None:
        return [None]
    place = len(dims) if axis == -1 else axis
    if place > len(dims):
        raise c.error(f"axis {axis} not in [-1, {len(dims)}]")
    return [(*dims[:place], None if depth is None else int(depth), *dims[place:])]


define(
    "OneHot(indices: TI, depth: int32, on_value: T, off_value: T, *, axis: int = -1, T: type, "
    "TI: {uint8, int8, int32, int64} = int64) -> output: T",
    shape=_one_hot,
)


# ---- blocks ------------------------------------------------------------------------------------


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
        _pairs(c, 1, c.inputs[1].op.name)
        size = c.attrs["block_size"]
        return require_rank(c.dims(0), 4, c), [size, size], c.constant(1), 2
    count = require_rank(c.dims(1), 1, c)[0]
    merged = merge((count,), (_pairs(c, 2, "paddings or crops"),), c)
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
    f"{_BLOCK}, {_PADDINGS}) -> output: T",
    shape=_space_to_batch,
)
define(
    "BatchToSpaceND(input: T, block_shape: Tblock_shape, crops: Tcrops, *, T: type, "
    f"{_BLOCK}, Tcrops: {{int32, int64}} = int32) -> output: T",
    shape=_batch_to_space,
)
define(
    f"SpaceToBatch(input: T, paddings: Tpaddings, *, T: type, {_PADDINGS}, block_size: int >= 2) "
    "-> output: T",
    shape=_space_to_batch,
)
define(
    "BatchToSpace(input: T, crops: Tidx, *, T: type, block_size: int >= 2, "
    "Tidx: {int32, int64} = int32) -> output: T",
    shape=_batch_to_space,
)
