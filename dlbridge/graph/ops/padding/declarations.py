"""Tile, pad and one-hot."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Dim, Shapes

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


def border_pairs(c: Inference, index: int, columns: str) -> Dim:
    """Return how many rows the input, an [n, 2] matrix, has."""
    rows, pair = require_rank(c.dims(index), 2, c)
    if pair not in (2, None):
        raise c.error(f"{columns} must have 2 columns, but has {pair}")
    return rows


def _pad(c: Inference) -> Shapes:
    rows, dims, paddings = border_pairs(c, 1, "paddings"), c.dims(0), c.constant(1)
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


PADDINGS = "Tpaddings: {int32, int64} = int32"
define(f"Pad(input: T, paddings: Tpaddings, *, T: type, {PADDINGS}) -> output: T", shape=_pad)
define(
    f"PadV2(input: T, paddings: Tpaddings, constant_values: T, *, T: type, {PADDINGS}) "
    "-> output: T",
    shape=_pad,
)
define(
    f"MirrorPad(input: T, paddings: Tpaddings, *, T: type, {PADDINGS}, "
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
