"""Tile, pad, one-hot, and blocks of space as depth or batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Dim, Shapes, as_tensor, define
from dlbridge.proto.datatypes import DataType, as_dtype, float32
from dlbridge.shape import Dims

__all__ = [
    "batch_to_space", "batch_to_space_nd", "depth_to_space", "one_hot", "pad", "space_to_batch",
    "space_to_batch_nd", "space_to_depth", "tile",
]  # fmt: skip


# ==== op types: tile, pad, one-hot ================================================================


# ---- tile --------------------------------------------------------------------------------------


def _tile(c: Inference) -> Shapes:
    require_rank(c.dims(1), 1, c)
    dims, multiples = c.dims(0), c.constant_dims(1)
    if multiples is None:
        return [None if dims is None else tuple([0 if dim == 0 else None for dim in dims])]
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


# ==== op types: blocks ============================================================================


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


# ==== functions: tile, pad, one-hot ===============================================================


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """Return the tensor repeated along each axis.

    Args:
        input: of any shape.
        multiples: a vector with a count for each axis.
        name: of the operation.
    """
    return apply("Tile", (input, multiples), None, name).outputs[0]


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> Tensor:
    """Return the tensor with elements added around it.

    Args:
        tensor: of any shape.
        paddings: shape [rank, 2]: how many come before and after along each axis.
        mode: "CONSTANT", "REFLECT" (mirrored at the outermost element) or "SYMMETRIC" (mirrored
            behind it), in any case.
        name: of the operation.
        constant_values: the scalar to add.
    """
    how = mode.upper()
    if how == "CONSTANT":
        is_zero = np.isscalar(constant_values) and constant_values == 0
        if is_zero:
            return apply("Pad", (tensor, paddings), None, name).outputs[0]
        return apply("PadV2", (tensor, paddings, constant_values), None, name).outputs[0]
    if how not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(
            "Value of argument `mode` expected to be one of CONSTANT, REFLECT, or SYMMETRIC. "
            f"Received `mode` = {mode}"
        )
    return apply("MirrorPad", (tensor, paddings), {"mode": how.encode()}, name).outputs[0]


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """Return a tensor with an axis more, along which one element is on and the others are off.

    Args:
        indices: integers; those outside of [0, depth) give no element that is on.
        depth: a scalar, the extent of the new axis.
        on_value: a scalar, 1 by default.
        off_value: a scalar of the same dtype, 0 by default.
        axis: of the result, the last one by default.
        dtype: of the result; float32 unless a value says otherwise.
        name: of the operation.

    Raises:
        TypeError: a value is not of `dtype`, or they differ.
    """
    graph = graph_of((indices, depth, on_value, off_value))
    with graph.as_default(), graph.name_scope(name or "one_hot") as scope:
        wanted = None if dtype is None else as_dtype(dtype)
        on = None if on_value is None else as_tensor(on_value, wanted, "Const")
        off = None if off_value is None else as_tensor(off_value, wanted, "Const")
        kinds = {each.dtype.base_dtype for each in (on, off) if each is not None}
        if wanted is not None:
            kinds.add(wanted)
        if len(kinds) > 1:
            raise TypeError(
                "one_hot: dtype, on_value and off_value must agree, got "
                + ", ".join(sorted(each.name for each in kinds))
            )
        kind: DataType = kinds.pop() if kinds else float32
        if kind.kind == "s" and (on is None or off is None):
            raise TypeError("one_hot: on_value and off_value are required of strings")
        on = as_tensor(1, kind, "on_value") if on is None else on
        off = as_tensor(0, kind, "off_value") if off is None else off
        attrs = {"axis": -1 if axis is None else axis}
        return apply("OneHot", (indices, depth, on, off), attrs, scope).outputs[0]


# ==== functions: blocks ===========================================================================


def space_to_batch_nd(
    input: Any,
    block_shape: Any,
    paddings: Any,
    name: str | None = None,
) -> Tensor:
    """Return the tensor, padded, with the places inside of blocks moved to the batch axis.

    Args:
        input: shape [batch, space..., rest...].
        block_shape: a vector with the extents of a block.
        paddings: shape [len(block_shape), 2], zeros before and after.
        name: of the operation.
    """
    return apply("SpaceToBatchND", (input, block_shape, paddings), None, name).outputs[0]


def batch_to_space_nd(
    input: Any,
    block_shape: Any,
    crops: Any,
    name: str | None = None,
) -> Tensor:
    """Return what `space_to_batch_nd` was given; `crops` cuts the padding off again."""
    return apply("BatchToSpaceND", (input, block_shape, crops), None, name).outputs[0]


def space_to_batch(
    input: Any,
    paddings: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """Return `space_to_batch_nd` with square blocks of two axes."""
    if block_shape is not None:
        return space_to_batch_nd(input, block_shape, paddings, name)
    return _of_images(space_to_batch_nd(input, [block_size, block_size], paddings, name))


def batch_to_space(
    input: Any,
    crops: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """Return `batch_to_space_nd` with square blocks of two axes."""
    if block_shape is not None:
        return batch_to_space_nd(input, block_shape, crops, name)
    return _of_images(batch_to_space_nd(input, [block_size, block_size], crops, name))


def _of_images(tensor: Tensor) -> Tensor:
    """Return a tensor that is known to have four axes."""
    tensor.set_shape(tensor.shape.with_rank(4))
    return tensor


def space_to_depth(
    input: Any,
    block_size: int,
    name: str | None = None,
    data_format: str = "NHWC",
) -> Tensor:
    """Return images of which each square of pixels has become one with the channels of all.

    Args:
        input: images whose height and width are multiples of `block_size`.
        block_size: extent of a square, at least 2.
        name: of the operation.
        data_format: "NHWC" or "NCHW".
    """
    attrs = {"block_size": block_size, "data_format": data_format.encode()}
    return apply("SpaceToDepth", (input,), attrs, name).outputs[0]


def depth_to_space(
    input: Any,
    block_size: int,
    name: str | None = None,
    data_format: str = "NHWC",
) -> Tensor:
    """Return the images of which `space_to_depth` makes `input`; arguments as there."""
    attrs = {"block_size": block_size, "data_format": data_format.encode()}
    return apply("DepthToSpace", (input,), attrs, name).outputs[0]
