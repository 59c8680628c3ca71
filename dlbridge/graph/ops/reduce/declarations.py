"""Reductions, running sums, segments and the order of elements."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, require_rank, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.dtypes import FLOAT, INDEX, NUMBER, REAL, REAL_QUANTIZED
from dlbridge.shape import Dims


def _reduction(c: Inference) -> list[Dims | None]:
    """The axes named are gone, or 1; unless they are known only when the graph runs."""
    dims, axes = c.dims(0), c.constant(1)
    if dims is None:
        return [None]
    keep = c.attrs["keep_dims"]
    rank = len(dims)
    if axes is None:
        return [(None,) * rank if keep else None]
    gone = {_axis(int(axis), rank, c) for axis in axes.reshape(-1)}
    kept = [1 if i in gone else dim for i, dim in enumerate(dims) if keep or i not in gone]
    return [tuple(kept)]


def _axis(axis: int, rank: int, c: Inference) -> int:
    if not -rank <= axis < rank:
        raise c.error(f"Invalid reduction dimension {axis} for input with {rank} dimensions.")
    return axis % rank


def _position(c: Inference) -> list[Dims | None]:
    """Without the axis in which the position is sought."""
    dims, axis = c.dims(0), c.integer(1)
    if dims is None:
        return [None]
    rank = len(dims)
    if rank <= 1:
        return [()]
    if axis is None:
        return [(None,) * (rank - 1)]
    if not -rank <= axis < rank:
        raise c.error(f"Dimension ({axis}) must be in the range [{-rank}, {rank})")
    return [tuple([dim for i, dim in enumerate(dims) if i != axis % rank])]


def _segments(c: Inference) -> list[Dims | None]:
    """As many rows as the last identifier says."""
    require_rank(c.dims(1), 1, c)
    dims = c.dims(0)
    if dims is None:
        return [None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    return [(None, *dims[1:])]


def _unsorted_segments(c: Inference) -> list[Dims | None]:
    """The dimensions of the identifiers become one, of the number of segments."""
    data, identifiers, count = c.dims(0), c.dims(1), c.integer(2)
    if data is None or identifiers is None:
        return [None]
    if len(data) < len(identifiers):
        raise c.error(f"Shape must be at least rank {len(identifiers)} but is rank {len(data)}")
    merge(data[: len(identifiers)], identifiers, c)
    if count is not None and count < 0:
        raise c.error(f"num_segments must not be negative, but is {count}")
    return [(count, *data[len(identifiers) :])]


def _bins(c: Inference) -> list[Dims | None]:
    size = c.integer(1)
    if size is not None and size < 0:
        raise c.error(f"size ({size}) must be non-negative")
    return [(size,)]


def _largest(c: Inference) -> list[Dims | None]:
    """The last dimension becomes k."""
    k = c.attrs["k"] if "k" in c.attrs else c.integer(1)
    if k is not None and k < 0:
        raise c.error(f"Need k >= 0, got {k}")
    dims = c.dims(0)
    if dims is None:
        return [None, None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if k is not None and dims[-1] is not None and dims[-1] < k:
        raise c.error(f"input must have last dimension >= k = {k} but is {dims[-1]}")
    return [(*dims[:-1], k)] * 2


def _unique(c: Inference) -> list[Dims | None]:
    shapes: list[Dims | None] = [(None,), require_rank(c.dims(0), 1, c), (None,)]
    return shapes[: c.output_count]


def _difference(c: Inference) -> list[Dims | None]:
    for i in (0, 1):
        require_rank(c.dims(i), 1, c)
    return [(None,), (None,)]


_INDEX = f"Tidx: {INDEX} = int32"
# Dtypes -> reductions of them.
_REDUCTIONS = {NUMBER: "Sum Mean Prod EuclideanNorm", REAL_QUANTIZED: "Max Min"}
for _types, _names in _REDUCTIONS.items():
    for _name in _names.split():
        define(
            f"{_name}(input: T, reduction_indices: Tidx, *, keep_dims: bool = false, T: {_types}, "
            f"{_INDEX}) -> output: T",
            shape=_reduction,
        )
for _name in ("All", "Any"):
    define(
        f"{_name}(input: bool, reduction_indices: Tidx, *, keep_dims: bool = false, {_INDEX}) "
        "-> output: bool",
        shape=_reduction,
    )
for _name, _positions, _axes in (
    ("ArgMax", "{int16, uint16, int32, int64}", "{int16, int32, int64}"),
    ("ArgMin", INDEX, INDEX),
):
    define(
        f"{_name}(input: T, dimension: Tidx, *, T: {REAL_QUANTIZED[:-1]}, bool}}, "
        f"Tidx: {_axes} = int32, output_type: {_positions} = int64) -> output: output_type",
        shape=_position,
    )
for _name, _types in (("Cumsum", NUMBER), ("Cumprod", NUMBER), ("CumulativeLogsumexp", FLOAT)):
    define(
        f"{_name}(x: T, axis: Tidx, *, exclusive: bool = false, reverse: bool = false, "
        f"T: {_types}, {_INDEX}) -> out: T",
        shape=unchanged,
    )
for _name, _types in (
    ("Sum", NUMBER), ("Mean", NUMBER), ("Prod", NUMBER), ("Max", REAL), ("Min", REAL),
):  # fmt: skip
    define(
        f"Segment{_name}(data: T, segment_ids: Tindices, *, T: {_types}, Tindices: {INDEX}) "
        "-> output: T",
        shape=_segments,
    )
for _name, _types, _indices in (
    ("Sum", NUMBER, "{int16, int32, int64}"),
    ("Prod", NUMBER, INDEX),
    ("Max", REAL, INDEX),
    ("Min", REAL, INDEX),
):
    define(
        f"UnsortedSegment{_name}(data: T, segment_ids: Tindices, num_segments: Tnumsegments, *, "
        f"T: {_types}, Tindices: {_indices}, Tnumsegments: {INDEX} = int32) -> output: T",
        shape=_unsorted_segments,
    )
define(
    "Bincount(arr: int32, size: int32, weights: T, *, T: {int32, int64, float32, float64}) "
    "-> bins: T",
    shape=_bins,
)
define(
    f"TopKV2(input: T, k: Tk, *, sorted: bool = true, T: {REAL}, "
    "Tk: {int16, int32, int64} = int32, index_type: {int16, int32, int64} = int32) "
    "-> (values: T, indices: index_type)",
    shape=_largest,
)
define(
    f"TopK(input: T, *, k: int >= 0, sorted: bool = true, T: {REAL}) "
    "-> (values: T, indices: int32)",
    shape=_largest,
)
define(f"Unique(x: T, *, T: type, out_idx: {INDEX} = int32) -> (y: T, idx: out_idx)", shape=_unique)
define(
    f"UniqueWithCounts(x: T, *, T: type, out_idx: {INDEX} = int32) "
    "-> (y: T, idx: out_idx, count: out_idx)",
    shape=_unique,
)
define(
    f"ListDiff(x: T, y: T, *, T: type, out_idx: {INDEX} = int32) -> (out: T, idx: out_idx)",
    shape=_difference,
)
