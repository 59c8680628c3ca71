"""Strided slices: what `x[begin:end:stride, ..., new_axis, index]` means, with TensorFlow's masks.

One description serves twice: the static shape function, which may know neither the bounds nor the
extents, and the kernel, which knows both. What is wrong is a ValueError with TensorFlow's text;
callers turn it into their own class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Bounds = Sequence[int] | None


class Masks(NamedTuple):
    """The five masks of a StridedSlice; bit i is about entry i of begin, end and strides.

    Attributes:
        begin, end: the bound is left out.
        ellipsis: the entry stands for as many whole axes as are left; at most one bit.
        new_axis: the entry adds an axis of extent 1.
        shrink: the entry is an index, whose axis goes away.
    """

    begin: int
    end: int
    ellipsis: int
    new_axis: int
    shrink: int

    @staticmethod
    def of(attrs: Mapping[str, Any]) -> Masks:
        """Return the masks among the attributes of a node."""
        return Masks(
            attrs["begin_mask"],
            attrs["end_mask"],
            attrs["ellipsis_mask"],
            attrs["new_axis_mask"],
            attrs["shrink_axis_mask"],
        )


class Axis(NamedTuple):
    """The selection along one axis of the input; a bound that is None is left out, or unknown.

    Attributes:
        number: its position in the input.
        begin, end: the bounds as written, negative ones counted from the end.
        stride: the step, not 0.
        begin_masked, end_masked: the bound is left out.
        shrink: `begin` is an index.
    """

    number: int
    begin: int | None
    end: int | None
    stride: int
    begin_masked: bool
    end_masked: bool
    shrink: bool


def read(
    masks: Masks, begin: Bounds, end: Bounds, strides: Sequence[int], rank: int
) -> list[Axis | None]:
    """Return what happens to each axis, in the order of the result; None is a new axis."""
    count = len(strides)
    if masks.ellipsis & (masks.ellipsis - 1):
        raise ValueError("Multiple ellipses in slice spec not allowed")
    found: list[Axis | None] = []
    axis = 0
    for i in range(count):
        bit = 1 << i
        if masks.ellipsis & bit:
            last = min(rank, rank - _axes_used(masks, i + 1, count))
            found += [_whole(number) for number in range(axis, last)]
            axis = max(axis, last)
        elif masks.new_axis & bit:
            found.append(None)
        else:
            if axis == rank:
                raise ValueError(
                    f"Index out of range using input dim {axis}; input has only {rank} dims"
                )
            found.append(_entry(masks, begin, end, strides[i], i, axis))
            axis += 1
    return found + [_whole(number) for number in range(axis, rank)]


def _axes_used(masks: Masks, first: int, count: int) -> int:
    """Return how many axes of the input the entries from `first` on take."""
    return sum(1 for i in range(first, count) if not masks.new_axis & (1 << i))


def _whole(number: int) -> Axis:
    return Axis(number, None, None, 1, True, True, False)


def _entry(masks: Masks, begin: Bounds, end: Bounds, stride: int, i: int, axis: int) -> Axis:
    if stride == 0:
        raise ValueError(f"strides[{axis}] must be non-zero")
    bit = 1 << i
    return Axis(
        axis,
        None if begin is None else int(begin[i]),
        None if end is None else int(end[i]),
        int(stride),
        bool(masks.begin & bit),
        bool(masks.end & bit),
        bool(masks.shrink & bit),
    )


def static_extent(axis: Axis, extent: int | None) -> int | None:
    """Return the extent of an axis in the result, as far as it is known; 1 where it goes away."""
    if axis.shrink:
        if axis.begin is not None and extent is not None:
            index(axis, extent)
        return 1
    if extent is None or not (
        (axis.begin_masked or axis.begin is not None) and (axis.end_masked or axis.end is not None)
    ):
        return None
    return len(range(extent)[as_slice(axis, extent)])


def index(axis: Axis, extent: int) -> int:
    """Return the index, from 0, of an axis that goes away."""
    if axis.stride <= 0:
        raise ValueError("only stride 1 allowed on non-range indexing.")
    assert axis.begin is not None
    found = axis.begin + extent if axis.begin < 0 else axis.begin
    if not 0 <= found < extent:
        raise ValueError(f"slice index {axis.begin} of dimension {axis.number} out of bounds.")
    return found


def as_slice(axis: Axis, extent: int) -> slice:
    """Return the bounds of an axis that stays, inside of its extent; None ends a walk to 0."""
    begin = None if axis.begin_masked else axis.begin
    end = None if axis.end_masked else axis.end
    first, last, step = slice(begin, end, axis.stride).indices(extent)
    if first < 0:  # a walk to 0 that begins before it
        return slice(0, 0, step)
    return slice(first, None if last < 0 else last, step)


def selection(
    masks: Masks,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
) -> tuple[slice | int | None, ...]:
    """Return the index with which the input is to be indexed; all bounds lie inside its extents."""
    return tuple(
        [
            None
            if axis is None
            else index(axis, dims[axis.number])
            if axis.shrink
            else as_slice(axis, dims[axis.number])
            for axis in read(masks, begin, end, strides, len(dims))
        ]
    )
