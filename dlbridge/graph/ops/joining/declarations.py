"""Concatenate, stack and split."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Dim, Shapes
from dlbridge.shape import Dims


def _concat(c: Inference) -> Shapes:
    return [_concat_dims([c.dims(i) for i in range(1, len(c.inputs))], c.integer(0), c)]


def _concat_v2(c: Inference) -> Shapes:
    last = len(c.inputs) - 1
    return [_concat_dims([c.dims(i) for i in range(last)], c.integer(last), c)]


def _concat_dims(parts: Shapes, axis: int | None, c: Inference) -> Dims | None:
    ranks = {len(dims) for dims in parts if dims is not None}
    if not ranks:
        return None
    if len(ranks) > 1:
        raise c.error(f"Shapes must be equal rank, but are {min(ranks)} and {max(ranks)}")
    rank = ranks.pop()
    if rank == 0:
        raise c.error("Can't concatenate scalars (use tf.stack instead)")
    if axis is None:
        return (None,) * rank
    if not -rank <= axis < rank:
        least = axis + 1 if axis >= 0 else -axis
        raise c.error(f"Shape must be at least rank {least} but is rank {rank}")
    place = axis % rank
    total: Dim = 0
    rest: Dims | None = None
    for dims in parts:
        extent = None if dims is None else dims[place]
        total = None if total is None or extent is None else total + extent
        if dims is not None:
            rest = merge(rest, (*dims[:place], None, *dims[place + 1 :]), c)
    assert rest is not None
    return (*rest[:place], total, *rest[place + 1 :])


define("Concat(concat_dim: int32, values: N * T, *, N: int >= 2, T: type) -> output: T",
       shape=_concat)  # fmt: skip


define(
    "ConcatV2(values: N * T, axis: Tidx, *, N: int >= 2, T: type, Tidx: {int32, int64} = int32) "
    "-> output: T",
    shape=_concat_v2,
)


define(
    "ConcatOffset(concat_dim: int32, shape: N * shape_type, *, N: int >= 2, "
    "shape_type: {int32, int64} = int32) -> offset: N * shape_type",
    shape=lambda c: [require_rank(c.dims(i), 1, c) for i in range(1, len(c.inputs))],
)


def _axis(axis: int, rank: int, c: Inference) -> int:
    if not -rank <= axis < rank:
        raise c.error(f"Invalid axis: {axis}; must be in [{-rank},{rank})")
    return axis % rank


def _pack(c: Inference) -> Shapes:
    dims: Dims | None = None
    for each in c.inputs:
        dims = merge(dims, each._dims, c)
    if dims is None:
        return [None]
    axis = _axis(c.attrs["axis"], len(dims) + 1, c)
    return [(*dims[:axis], len(c.inputs), *dims[axis:])]


def _unpack(c: Inference) -> Shapes:
    dims, count = c.dims(0), c.output_count
    if dims is None:
        return [None] * count
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    axis = _axis(c.attrs["axis"], len(dims), c)
    if dims[axis] not in (None, count):
        raise c.error(f"Dimension must be {count} but is {dims[axis]}")
    return [dims[:axis] + dims[axis + 1 :]] * count


define("Pack(values: N * T, *, N: int >= 1, T: type, axis: int = 0) -> output: T", shape=_pack)


define("Unpack(value: T, *, num: int >= 0, T: type, axis: int = 0) -> output: num * T",
       shape=_unpack)  # fmt: skip


def _split_axis(dims: Dims, axis: Any, c: Inference) -> int | None:
    if axis is None:
        return None
    if axis.ndim:
        raise c.error(f"Shape must be rank 0 but is rank {axis.ndim}")
    place, rank = int(axis), len(dims)
    if not -rank <= place < rank:
        raise c.error(f"Shape must be at least rank {place + 1 if place >= 0 else -place} but is "
                      f"rank {rank}")  # fmt: skip
    return place % rank


def _split(c: Inference) -> Shapes:
    dims, count = c.dims(1), c.output_count
    if dims is None:
        return [None] * count
    axis = _split_axis(dims, c.constant(0), c)
    if axis is None:
        return [(None,) * len(dims)] * count
    extent = dims[axis]
    if extent is not None and extent % count:
        raise c.error(f"Dimension size must be evenly divisible by {count} but is {extent}")
    part = None if extent is None else extent // count
    return [(*dims[:axis], part, *dims[axis + 1 :])] * count


def _split_v(c: Inference) -> Shapes:
    require_rank(c.dims(1), 1, c)
    dims, count = c.dims(0), c.output_count
    if dims is None:
        return [None] * count
    axis, sizes = _split_axis(dims, c.constant(2), c), c.constant(1)
    if axis is None:
        return [(None,) * len(dims)] * count
    parts: list[Dim] = [None] * count
    if sizes is not None:
        parts = _split_sizes(sizes.tolist(), dims[axis], c)
    elif count == 1:
        parts = [dims[axis]]
    return [(*dims[:axis], part, *dims[axis + 1 :]) for part in parts]


def _split_sizes(sizes: list[int], extent: Dim, c: Inference) -> list[Dim]:
    if len(sizes) != c.output_count:
        raise c.error(f"Length of size_splits should be equal to num_split={c.output_count}, "
                      f"but got {len(sizes)}")  # fmt: skip
    rest = sum(size for size in sizes if size != -1)
    if extent is not None and (rest > extent or (-1 not in sizes and rest != extent)):
        raise c.error(f"can't split axis of size {extent} into pieces of size {sizes}")
    missing = None if extent is None else extent - rest
    return [missing if size == -1 else size for size in sizes]


define("Split(split_dim: int32, value: T, *, num_split: int >= 1, T: type) -> "
       "output: num_split * T", shape=_split)  # fmt: skip


define(
    "SplitV(value: T, size_splits: Tlen, split_dim: int32, *, num_split: int >= 1, T: type, "
    "Tlen: {int8, int32, int64} = int64) -> output: num_split * T",
    shape=_split_v,
)
