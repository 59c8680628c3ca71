"""Slices: `tensor[...]`, slice, strided_slice."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, constant
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.generate.functions import ones_like
from dlbridge.graph.ops.indexing.masks import boolean_mask
from dlbridge.graph.ops.joining.functions import stack
from dlbridge.proto.datatypes import int16, int32, int64

__all__ = ["newaxis", "slice", "strided_slice"]

newaxis = None
"""An axis of extent 1 in `tensor[...]`, as in NumPy."""

_Slice = slice  # the built-in, whose name the function below takes


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
        strides = ones_like(begin)
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
