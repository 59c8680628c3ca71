"""Slices and strided slices."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Dim, Shapes
from dlbridge.graph.ops.slicing import spec as slicing
from dlbridge.shape import Dims

# ---- slice -------------------------------------------------------------------------------------


def _slice(c: Inference) -> Shapes:
    begin_shape, size_shape = require_rank(c.dims(1), 1, c), require_rank(c.dims(2), 1, c)
    merged = merge(begin_shape, size_shape, c)
    count = None if merged is None else merged[0]
    dims = c.dims(0) if count is None else require_rank(c.dims(0), count, c)
    if dims is None:
        return [None]
    begin, size = c.constant_dims(1), c.constant(2)
    if begin is None:
        begin = (None,) * len(dims)
    if size is None:
        known = c.constant_dims(2)
        return [(None,) * len(dims) if known is None else known]
    return [
        tuple(
            [
                _slice_dim(dim, first, count, c)
                for dim, first, count in zip(dims, begin, size.tolist(), strict=True)
            ]
        )
    ]


def _slice_dim(dim: Dim, begin: Dim, size: int, c: Inference) -> Dim:
    if size < -1:
        raise c.error(f"Dimension size must be -1 or non-negative, but is {size}")
    if size >= 0:
        return size
    if dim is None or begin is None:
        return None
    if begin > dim:
        raise c.error(f"Negative dimension size caused by subtracting {begin} from {dim}")
    return dim - begin


define(
    "Slice(input: T, begin: Index, size: Index, *, T: type, Index: {int32, int64}) -> output: T",
    shape=_slice,
)


def _strided_slice(c: Inference) -> Shapes:
    counts: Dims | None = (None,)
    for i in (1, 2, 3):
        counts = merge(counts, require_rank(c.dims(i), 1, c), c)
    dims, strides = c.dims(0), c.constant(3)
    if dims is None or strides is None:
        return [None]
    masks = slicing.Masks.of(c.attrs)
    try:
        axes = slicing.read(masks, c.constant(1), c.constant(2), strides.tolist(), len(dims))
        extents = [
            1 if axis is None else slicing.static_extent(axis, dims[axis.number])
            for axis in axes
            if axis is None or not axis.shrink or _check(axis, dims[axis.number])
        ]
    except ValueError as error:
        raise c.error(str(error)) from None
    return [tuple(extents)]


def _check(axis: slicing.Axis, extent: Dim) -> bool:
    """Raise where an index is out of range; an axis that it takes away has no extent to keep."""
    slicing.static_extent(axis, extent)
    return False


define(
    "StridedSlice(input: T, begin: Index, end: Index, strides: Index, *, T: type, "
    "Index: {int16, int32, int64}, begin_mask: int = 0, end_mask: int = 0, "
    "ellipsis_mask: int = 0, new_axis_mask: int = 0, shrink_axis_mask: int = 0) -> output: T",
    shape=_strided_slice,
)
