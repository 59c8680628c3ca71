"""Concat, stack, split."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, convert_to_tensor, graph_of
from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Dim, Shapes, as_tensor, define
from dlbridge.proto.datatypes import int32
from dlbridge.shape import Dims

__all__ = ["concat", "parallel_stack", "split", "stack", "unstack"]


# ==== op types ====================================================================================


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
    if axis is None and rank > 1:
        return (None,) * rank
    axis = axis or 0  # the only one there is, where the rank is 1
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


# ==== functions ===================================================================================


def concat(values: Any, axis: Any, name: str | None = "concat") -> Tensor:
    """Return tensors joined along an axis that they have.

    Args:
        values: tensors of one dtype and rank, whose other extents agree.
        axis: a scalar; negative ones count from the end.
        name: of the operation.
    """
    if not isinstance(values, list | tuple):
        values = [values]
    if len(values) > 1:
        return apply("ConcatV2", (values, axis), None, name or "concat").outputs[0]
    graph = graph_of((values, axis))
    with graph.as_default(), graph.name_scope(name or "concat"):
        place = as_tensor(axis, int32, "concat_dim")
        if place._dims:
            raise ValueError(f"concat: axis must be a scalar, got shape {place.shape}")
        return apply("Identity", (values[0],), None, name or "concat").outputs[0]


def stack(values: Any, axis: int = 0, name: str | None = "stack") -> Tensor:
    """Return tensors of one shape joined along a new axis.

    Args:
        values: a list of tensors; numbers alone become a constant.
        axis: of the result; negative ones count from the end.
        name: of the operation.
    """
    name = name or "stack"
    if axis == 0:
        return convert_to_tensor(values, name=name)
    if isinstance(values, Tensor):
        values = unstack(values)
    return apply("Pack", (values,), {"axis": axis}, name).outputs[0]


def parallel_stack(values: Any, name: str | None = "parallel_stack") -> Tensor:
    """Return tensors of one known shape joined along a new first axis."""
    return apply("Pack", (values,), None, name or "parallel_stack").outputs[0]


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = "unstack"
) -> list[Tensor]:
    """Return the parts of a tensor along an axis, which they no longer have.

    Args:
        value: rank 1 or more.
        num: the extent of the axis; needed only where it is not known.
        axis: negative ones count from the end.
        name: of the operation.

    Raises:
        ValueError: `num` is needed, or differs from the extent.
    """
    name = name or "unstack"
    tensor = value
    if num is None:
        tensor = convert_to_tensor(value)
        num = _extent(tensor, axis)
    return list(apply("Unpack", (tensor,), {"num": num, "axis": axis}, name).outputs)


def _extent(tensor: Tensor, axis: int) -> int:
    dims = tensor._dims
    if dims is not None and not -len(dims) <= axis < len(dims):
        raise ValueError(f"Argument `axis` = {axis} not in range [{-len(dims)}, {len(dims)})")
    extent = None if dims is None else dims[axis]
    if extent is None:
        raise ValueError(f"Cannot infer argument `num` from shape {tensor.shape}")
    return extent


def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Tensor]:
    """Return a tensor cut along an axis.

    Args:
        value: rank 1 or more.
        num_or_size_splits: how many equal parts, or a vector of the parts' extents, one of which
            may be -1.
        axis: a scalar; negative ones count from the end.
        num: how many parts, where the vector's length is not known.
        name: of the operation.
    """
    name = name or "split"
    if isinstance(num_or_size_splits, int | np.integer):
        attrs = {"num_split": int(num_or_size_splits)}
        return list(apply("Split", (axis, value), attrs, name).outputs)
    with graph_of((value, num_or_size_splits, axis)).as_default():
        sizes = convert_to_tensor(num_or_size_splits)
    if sizes._dims == ():
        raise ValueError(
            "Rank-0 tensors are not supported as the num_or_size_splits argument to split. "
            f"Argument provided: {num_or_size_splits}"
        )
    if num is None:
        num = _extent(sizes, 0)
    return list(apply("SplitV", (value, sizes, axis), {"num_split": num}, name).outputs)
