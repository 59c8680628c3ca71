"""Slices and strided slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.core.default_graph import apply, constant
from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.generate import ones_like
from dlbridge.graph.ops.indexing import boolean_mask
from dlbridge.graph.ops.joining import stack
from dlbridge.graph.ops.shared import Dim, Shapes, define
from dlbridge.proto.datatypes import int16, int32, int64
from dlbridge.shape import Dims
from dlbridge.signals import not_from_handler

__all__ = ["newaxis", "slice", "strided_slice"]


# ==== what an index means =========================================================================
# The meaning of `x[begin:end:stride, ..., new_axis, index]`, with TensorFlow's masks. One
# description serves twice: the static shape function, which may know neither the bounds nor the
# extents, and the kernel, which knows both. A wrong index raises ValueError with TensorFlow's text;
# callers turn it into their own class.


_Slice = slice  # the built-in, whose name a function below takes

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


def read_index(
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
            single_index(axis, extent)
        return 1
    if extent is None or not (
        (axis.begin_masked or axis.begin is not None) and (axis.end_masked or axis.end is not None)
    ):
        return None
    return len(range(extent)[as_slice(axis, extent)])


def single_index(axis: Axis, extent: int) -> int:
    """Return the index, from 0, of an axis that goes away."""
    if axis.stride <= 0:
        raise ValueError("only stride 1 allowed on non-range indexing.")
    assert axis.begin is not None
    found = axis.begin + extent if axis.begin < 0 else axis.begin
    if not 0 <= found < extent:
        raise ValueError(f"slice index {axis.begin} of dimension {axis.number} out of bounds.")
    return found


def as_slice(axis: Axis, extent: int) -> _Slice:
    """Return the bounds of an axis that stays, inside of its extent; None ends a walk to 0."""
    begin = None if axis.begin_masked else axis.begin
    end = None if axis.end_masked else axis.end
    first, last, step = _Slice(begin, end, axis.stride).indices(extent)
    if first < 0:  # a walk to 0 that begins before it
        return _Slice(0, 0, step)
    return _Slice(first, None if last < 0 else last, step)


def selection(
    masks: Masks,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
) -> tuple[_Slice | int | None, ...]:
    """Return the index with which the input is to be indexed; all bounds lie inside its extents."""
    return tuple(
        [
            None
            if axis is None
            else single_index(axis, dims[axis.number])
            if axis.shrink
            else as_slice(axis, dims[axis.number])
            for axis in read_index(masks, begin, end, strides, len(dims))
        ]
    )


# ==== op types ====================================================================================


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
    masks = Masks.of(c.attrs)
    try:
        axes = read_index(masks, c.constant(1), c.constant(2), strides.tolist(), len(dims))
        extents = [
            1 if axis is None else static_extent(axis, dims[axis.number])
            for axis in axes
            if axis is None or not axis.shrink or _is_shrunk(axis, dims[axis.number])
        ]
    except not_from_handler(ValueError) as error:
        raise c.error(str(error)) from None
    return [tuple(extents)]


def _is_shrunk(axis: Axis, extent: Dim) -> bool:
    """Raise where an index is out of range; an axis that it takes away has no extent to keep."""
    static_extent(axis, extent)
    return False


define(
    "StridedSlice(input: T, begin: Index, end: Index, strides: Index, *, T: type, "
    "Index: {int16, int32, int64}, begin_mask: int = 0, end_mask: int = 0, "
    "ellipsis_mask: int = 0, new_axis_mask: int = 0, shrink_axis_mask: int = 0) -> output: T",
    shape=_strided_slice,
)


# ==== functions ===================================================================================


newaxis = None
"""An axis of extent 1 in `tensor[...]`, as in NumPy."""


def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """Return a block of a tensor.

    Args:
        input_: of any shape.
        begin: a vector with the first index along each axis.
        size: a vector with the extent along each axis; -1 is all that is left.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, the block is not inside of the tensor.
    """
    return apply("Slice", (input_, begin, size), None, name).outputs[0]


def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return `input_[begin:end:strides]`, with an entry of each vector for each part of the index.

    Bit i of a mask is about entry i of the vectors.

    Args:
        input_: of any shape.
        begin: a vector of integers; negative ones count from the end of the axis.
        end: the same for the first element that is left out.
        strides: the steps, 1 each by default; not 0, and 1 or more where an axis goes away.
        begin_mask: the axes that start at their beginning.
        end_mask: the axes that end at their end.
        ellipsis_mask: the entry that stands for all axes left.
        new_axis_mask: the entries that add an axis.
        shrink_axis_mask: the entries that take an axis away.
        name: of the operation.
    """
    if strides is None:
        try:
            strides = ones_like(begin)
        except not_from_handler(TypeError) as error:
            raise TypeError(f"begin must be integers, got {begin!r}") from error
    attrs = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    return apply("StridedSlice", (input_, begin, end, strides), attrs, name).outputs[0]


class _Index:
    """The entries and masks that an index in brackets stands for."""

    def __init__(self) -> None:
        self.begin: list[Any] = []
        self.end: list[Any] = []
        self.strides: list[Any] = []
        self.masks = dict.fromkeys(
            ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
        )

    def add(self, entry: Any) -> None:
        """Add one part of the index."""
        if isinstance(entry, _Slice):
            self._add_slice(entry)
        elif entry is None:
            self._append(0, 0, 1, "new_axis_mask")
        elif isinstance(entry, EllipsisType):
            self._append(0, 0, 1, "ellipsis_mask")
        else:
            _check_index(entry)
            after = (
                apply("AddV2", (entry, 1), None, "add").outputs[0]
                if isinstance(entry, Tensor)
                else entry + 1
            )
            self._append(entry, after, 1, "shrink_axis_mask")

    def _add_slice(self, entry: Any) -> None:
        for bound in (entry.start, entry.stop, entry.step):
            if bound is not None:
                _check_index(bound)
        masks = []
        if entry.start is None:
            masks.append("begin_mask")
        if entry.stop is None:
            masks.append("end_mask")
        begin, end = (0 if each is None else each for each in (entry.start, entry.stop))
        self._append(begin, end, 1 if entry.step is None else entry.step, *masks)

    def _append(self, begin: Any, end: Any, stride: Any, *masks: str) -> None:
        for mask in masks:
            self.masks[mask] |= 1 << len(self.begin)
        self.begin.append(begin)
        self.end.append(end)
        self.strides.append(stride)


def _check_index(entry: Any) -> None:
    """Raise TypeError unless it is an integer or a scalar Tensor of integers."""
    if isinstance(entry, Tensor):
        fits = entry.dtype in (int16, int32, int64) and entry._dims in ((), None)
    else:
        fits = np.shape(entry) == () and np.asarray(entry).dtype.kind in "iu"
    if not fits:
        raise TypeError(
            "Only integers, slices (`:`), ellipsis (`...`), tf.newaxis (`None`) and scalar "
            f"tf.int32/tf.int64 tensors are valid indices, got {entry!r}"
        )


def _get_item(self: Tensor, key: Any) -> Tensor:
    """Return a part of the tensor, with the rules of NumPy's basic indexing.

    Indices are integers, slices, None, `...` and scalar Tensors; a boolean mask, Tensor or array,
    chooses as `boolean_mask` does.
    """
    if isinstance(key, Tensor) and key.dtype.is_bool:
        return _mask(self, key)
    if isinstance(key, np.ndarray | list) and np.asarray(key).dtype == bool:
        return _mask(self, np.asarray(key))
    graph = self.op.graph
    with graph.as_default():
        index = _Index()
        for entry in key if isinstance(key, list | tuple) else (key,):
            index.add(entry)
        with graph.name_scope("strided_slice") as scope:
            if index.begin:
                bounds = [stack(each) for each in (index.begin, index.end, index.strides)]
            else:
                bounds = [constant([], int32)] * 3
            inputs = (self, *_one_type(bounds))
            return apply("StridedSlice", inputs, dict(index.masks), scope).outputs[0]


def _mask(tensor: Tensor, mask: Any) -> Tensor:
    return boolean_mask(tensor, mask)


def _one_type(bounds: list[Tensor]) -> list[Tensor]:
    """Return begin, end and strides in the widest of their dtypes."""
    kinds = {each.dtype for each in bounds}
    if len(kinds) == 1:
        return bounds
    widest = int64 if int64 in kinds else int32
    return [
        each
        if each.dtype is widest
        else apply("Cast", (each,), {"DstT": widest}, "Cast").outputs[0]
        for each in bounds
    ]


setattr(Tensor, "__getitem__", _get_item)  # noqa: B010
