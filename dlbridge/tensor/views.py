"""Compute the shape, strides and offset of views; no memory is touched here.

Every function takes the shape and the strides of a tensor and returns a `Layout` over the same
memory. Shapes and strides count elements, as in DLPack. A view that the memory cannot give without
a copy is a `ViewError`; an impossible request is an `ArgumentError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError, ViewError
from dlbridge.shape import row_major
from dlbridge.signals import not_from_handler

Dims = tuple[int, ...]


class Layout(NamedTuple):
    """Where the elements of a view are, relative to the tensor that it was made from."""

    shape: Dims
    strides: Dims
    offset: int = 0
    """Position of the view's first element, in elements; negative after a reversal."""


# ---- indexing -----------------------------------------------------------------------------------


def index(shape: Dims, strides: Dims, key: object) -> Layout:
    """Compute the view that `tensor[key]` is, by the rules of NumPy's basic indexing.

    Args:
        shape: extents of the tensor.
        strides: its steps, in elements.
        key: an integer (anything with `__index__`), a slice of any step, `None`, `...`, or a tuple
            of these. Negative integers count from the end.

    Raises:
        IndexError: an integer is out of range, or there are more indices than dimensions.
        UnsupportedTypeError: an index is a bool, an array or a list: these need a copy.

    Example:
        >>> index((4, 6), (6, 1), (1, slice(None, None, -2)))
        Layout(shape=(3,), strides=(-2,), offset=11)
    """
    items = key if isinstance(key, tuple) else (key,)
    ndim, dim, offset = len(shape), 0, 0
    new_shape: list[int] = []
    new_strides: list[int | None] = []
    for at, item in enumerate(items):
        if item is None:
            new_shape.append(1)
            new_strides.append(None)
            continue
        if item is Ellipsis:
            end = ndim - _count_dimensions(items[at + 1 :])
            new_shape += shape[dim:end]
            new_strides += strides[dim:end]
            dim = max(dim, end)
            continue
        if dim == ndim:
            raise IndexError(f"too many indices: the tensor has {ndim} dimensions")
        if isinstance(item, slice):
            start, count, step = _slice_range(item, shape[dim])
            new_shape.append(count)
            new_strides.append(strides[dim] * step)
            offset += start * strides[dim]
        else:
            offset += _position(item, shape[dim], dim) * strides[dim]
        dim += 1
    result = (*new_shape, *shape[dim:])
    tidy = _with_unit_strides(result, (*new_strides, *strides[dim:]))
    return Layout(result, tidy, 0 if 0 in result else offset)


def _count_dimensions(items: tuple[object, ...]) -> int:
    """Return how many dimensions the items behind an ellipsis stand for."""
    if any(item is Ellipsis for item in items):
        raise IndexError("an index can have only one ellipsis ('...')")
    return sum(item is not None for item in items)


def _slice_range(item: slice, extent: int) -> tuple[int, int, int]:
    """Return (start, count, step) of a slice; a step that is never taken becomes 1."""
    try:
        start, stop, step = item.indices(extent)
    except not_from_handler(ValueError) as error:  # a step of 0
        raise ArgumentError(f"index {item}: {error}") from None
    except not_from_handler(TypeError):
        raise UnsupportedTypeError(f"slice bounds must be integers or None, got {item}") from None
    count = len(range(start, stop, step))
    return (start if count else 0), count, (step if count > 1 else 1)


def _position(item: object, extent: int, dim: int) -> int:
    """Return the non-negative position that an integer index stands for."""
    try:
        if isinstance(item, (bool, np.bool_)):  # np.bool_ has __index__ before NumPy 2
            raise TypeError
        position = item if type(item) is int else operator.index(item)  # type: ignore[arg-type]
    except not_from_handler(TypeError):
        raise UnsupportedTypeError(
            f"index {dim} is a {type(item).__name__}: a view takes integers, slices, None and "
            "'...'; selecting by bool, list or array copies: use numpy.asarray(tensor)[...]"
        ) from None
    if not -extent <= position < extent:
        raise IndexError(
            f"index {position} is out of range for dimension {dim}, which has {extent} elements"
        )
    return position % extent


def _with_unit_strides(shape: Sequence[int], strides: Sequence[int | None]) -> Dims:
    """Fill in the strides of new dimensions of one element: any fits, so take the tidiest."""
    if None not in strides:
        return tuple(strides)  # type: ignore[arg-type]
    filled: list[int] = []
    tidy = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        filled.append(tidy if stride is None else stride)
        tidy = filled[-1] * extent
    return tuple(reversed(filled))


# ---- order of dimensions ------------------------------------------------------------------------


def transpose(shape: Dims, strides: Dims, axes: Sequence[int] | None = None) -> Layout:
    """Permute the dimensions: dimension `i` of the view is dimension `axes[i]`; None reverses.

    Example:
        >>> transpose((2, 3, 4), (12, 4, 1), (2, 0, -2))
        Layout(shape=(4, 2, 3), strides=(1, 12, 4), offset=0)
    """
    ndim = len(shape)
    order = range(ndim)[::-1] if axes is None else normalize_axes("transpose", axes, ndim)
    if len(order) != ndim:
        raise ArgumentError(f"transpose: {ndim} dimensions need {ndim} axes, got {len(order)}")
    return Layout(tuple(shape[i] for i in order), tuple(strides[i] for i in order))


def matrix_transpose(shape: Dims, strides: Dims) -> Layout:
    """Swap the last two dimensions."""
    ndim = len(shape)
    if ndim < 2:
        raise ArgumentError(f"mT: the tensor needs 2 dimensions or more, it has {ndim}")
    return transpose(shape, strides, (*range(ndim - 2), ndim - 1, ndim - 2))


def normalize_axes(call: str, axes: int | Iterable[int], ndim: int) -> Dims:
    """Return `axes` as a tuple of distinct values in 0 … ndim - 1; negative ones count back."""
    given = _integers(call, "axis", axes)
    for axis in given:
        if not -ndim <= axis < ndim:
            raise ArgumentError(f"{call}: axis {axis} is out of range for {ndim} dimensions")
    normal = tuple(axis % ndim for axis in given)
    if len(set(normal)) != len(normal):
        raise ArgumentError(f"{call}: axes {given} name a dimension twice")
    return normal


def _integers(call: str, name: str, given: object) -> Dims:
    """Return one integer, or several, as a tuple."""
    try:
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
            return tuple(operator.index(each) for each in given)
        return (operator.index(given),)  # type: ignore[arg-type]
    except not_from_handler(TypeError):
        raise UnsupportedTypeError(f"{call}: {name} must be of integers, got {given!r}") from None


# ---- number of dimensions -----------------------------------------------------------------------


def squeeze(shape: Dims, strides: Dims, axis: int | Iterable[int] | None = None) -> Layout:
    """Drop dimensions of one element: those named, or all."""
    ndim = len(shape)
    if axis is None:
        drop = tuple(i for i in range(ndim) if shape[i] == 1)
    else:
        drop = normalize_axes("squeeze", axis, ndim)
    for i in drop:
        if shape[i] != 1:
            raise ArgumentError(f"squeeze: dimension {i} has {shape[i]} elements, not one")
    kept = [i for i in range(ndim) if i not in drop]
    return Layout(tuple(shape[i] for i in kept), tuple(strides[i] for i in kept))


def expand_dims(shape: Dims, strides: Dims, axis: int | Iterable[int] = 0) -> Layout:
    """Insert dimensions of one element, at these axes of the result."""
    axes = _integers("expand_dims", "axis", axis)
    count = len(axes)
    added = normalize_axes("expand_dims", axes, len(shape) + count)
    old = iter(zip(shape, strides, strict=True))
    pairs = [(1, None) if i in added else next(old) for i in range(len(shape) + count)]
    result = tuple(extent for extent, _ in pairs)
    return Layout(result, _with_unit_strides(result, [stride for _, stride in pairs]))


def broadcast_to(shape: Dims, strides: Dims, new_shape: Sequence[int]) -> Layout:
    """Repeat dimensions of one element, and new leading ones, by a stride of 0.

    Several indices then name one element: the caller marks such a view read-only.

    Example:
        >>> broadcast_to((3, 1), (1, 1), (2, 3, 4))
        Layout(shape=(2, 3, 4), strides=(0, 1, 0), offset=0)
    """
    if new_shape == shape:
        return Layout(shape, strides)
    result = _integers("broadcast_to", "shape", new_shape)
    lead = len(result) - len(shape)
    _check_count(result, "broadcast_to")
    fits = lead >= 0 and all(old in (1, new) for old, new in zip(shape, result[lead:], strict=True))
    if not fits or any(extent < 0 for extent in result):
        raise ArgumentError(f"broadcast_to: shape {shape} does not broadcast to {result}")
    kept = (
        0 if old != new else stride
        for old, new, stride in zip(shape, result[lead:], strides, strict=True)
    )
    return Layout(result, (0,) * lead + tuple(kept))


def _check_count(shape: Dims, call: str) -> None:
    """Refuse extents whose product, and so a stride, is more than DLPack's 64 bits hold."""
    if math.prod(max(extent, 1) for extent in shape) >= 2**63:
        raise ArgumentError(f"{call}: shape {shape} overflows 64 bits")


# ---- reshape ------------------------------------------------------------------------------------


def reshape(shape: Dims, strides: Dims, new_shape: int | Sequence[int]) -> Layout:
    """Give the same elements, in row-major order, another shape.

    Args:
        shape: extents of the tensor.
        strides: its steps, in elements.
        new_shape: extents whose product is the number of elements; one may be -1.

    Raises:
        ArgumentError: the new shape has another number of elements.
        ViewError: the strides do not allow it without a copy.

    Example:
        >>> reshape((2, 3, 4), (24, 8, 1), (6, -1))
        Layout(shape=(6, 4), strides=(8, 1), offset=0)
    """
    result = _infer_extent(shape, new_shape)
    if 0 in result:
        _check_count(result, "reshape")
        return Layout(result, row_major(result))
    runs = _runs(shape, strides)
    count = step = 1
    split: list[int | None] = []
    for extent in reversed(result):
        if extent == 1:
            split.append(None)
            continue
        if count == 1:
            count, step = runs.pop()
        if count % extent:
            raise ViewError(
                f"reshape: shape {shape} with strides {strides} cannot become {result} without a "
                "copy; use tensor.contiguous().reshape(...)"
            )
        split.append(step)
        count, step = count // extent, step * extent
    return Layout(result, _with_unit_strides(result, split[::-1]))


def _infer_extent(shape: Dims, new_shape: int | Sequence[int]) -> Dims:
    """Return the new shape as a tuple, its -1 worked out, its number of elements checked."""
    given = _integers("reshape", "shape", new_shape)
    wanted = [*given]
    size, unknown = math.prod(shape), wanted.count(-1)
    known = math.prod(extent for extent in wanted if extent != -1)
    if unknown == 1 and known > 0:
        wanted[wanted.index(-1)] = size // known
    if min(wanted, default=0) < 0 or math.prod(wanted) != size:
        raise ArgumentError(f"reshape: {size} elements of shape {shape} cannot have shape {given}")
    return tuple(wanted)


def _runs(shape: Dims, strides: Dims) -> list[tuple[int, int]]:
    """Merge neighbouring dimensions into runs (count, stride) of evenly spaced elements."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


# ---- element types ------------------------------------------------------------------------------


def reinterpret(shape: Dims, strides: Dims, bits: int, new_bits: int) -> Layout:
    """Read the same memory as elements of another width, rescaling the last dimension.

    Args:
        shape: extents of the tensor.
        strides: its steps, in elements.
        bits: width of an element, lanes included.
        new_bits: width of an element of the view.

    Raises:
        ArgumentError: the last dimension does not divide into elements of `new_bits`.
        ViewError: the last dimension is not compact, or a stride does not divide.

    Example:
        >>> reinterpret((5, 8), (8, 1), 8, 32)
        Layout(shape=(5, 2), strides=(2, 1), offset=0)
    """
    if bits == new_bits:
        return Layout(shape, strides)
    if not shape:
        raise ArgumentError(f"view: without dimensions, {bits} bits cannot become {new_bits} bits")
    if (shape[-1] * bits) % new_bits:
        raise ArgumentError(
            f"view: the last dimension, {shape[-1]} elements of {bits} bits, is not a whole "
            f"number of elements of {new_bits} bits"
        )
    result = (*shape[:-1], shape[-1] * bits // new_bits)
    if 0 in shape:
        return Layout(result, row_major(result))
    if shape[-1] > 1 and strides[-1] != 1:
        raise ViewError("view: the last dimension must be compact; use tensor.contiguous().view()")
    outer: list[int | None] = []
    for extent, stride in zip(shape[:-1], strides, strict=False):
        step, rest = divmod(stride * bits, new_bits)
        if rest and extent > 1:
            raise ViewError(
                f"view: stride {stride} is not a whole number of {new_bits}-bit elements"
            )
        outer.append(None if extent == 1 else step)
    return Layout(result, _with_unit_strides(result, [*outer, 1]))


def byte_offset(offset: int, bits: int) -> int:
    """Return where an element is, in bytes.

    Raises:
        ExchangeError: with reason "alignment", an element of a packed type below 8 bits does not
            start at a whole byte, and DLPack has no way to say so.
    """
    whole, rest = divmod(offset * bits, 8)
    if rest:
        raise ExchangeError(
            "alignment",
            f"the view would start at element {offset} of {bits} bits, inside a byte; start it at "
            "a whole byte, or read values with tolist() or numpy.asarray(tensor)",
        )
    return whole


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and the highest offset, in elements, of a tensor that has elements.

    Example:
        >>> reach((3, 4), (-4, 1))
        (-8, 3)
    """
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
