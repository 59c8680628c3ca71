"""Segment sums and bin counts."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import INDEX, NUMBER, REAL, Shapes


def _segments(c: Inference) -> Shapes:
    """As many rows as the last identifier says."""
    require_rank(c.dims(1), 1, c)
    dims = c.dims(0)
    if dims is None:
        return [None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    return [(None, *dims[1:])]


def _unsorted_segments(c: Inference) -> Shapes:
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


def _bins(c: Inference) -> Shapes:
    size = c.integer(1)
    if size is not None and size < 0:
        raise c.error(f"size ({size}) must be non-negative")
    return [(size,)]


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
