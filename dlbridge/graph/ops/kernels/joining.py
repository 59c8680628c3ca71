"""Concatenate, stack and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, normalize_axis, text, vector


@kernel("ConcatV2", host=(-1,))
def concat_v2(node: Node, context: Context) -> Function:
    concat = context.xp.concat

    def join(*values: Any) -> Any:
        *parts, axis = values
        return concat(parts, axis=_concat_axis(parts, int(axis), node))

    return join


@kernel("Concat", host=(0,))
def concat(node: Node, context: Context) -> Function:
    concat = context.xp.concat
    return lambda axis, *parts: concat(parts, axis=_concat_axis(parts, int(axis), node))


def _concat_axis(parts: Sequence[Any], axis: int, node: Node) -> int:
    """Return the axis counted from the front, after a look at the shapes."""
    first = tuple(parts[0].shape)
    place = normalize_axis(axis, len(first), node)
    rest = first[:place], first[place + 1 :]
    for i, part in enumerate(parts):
        dims = tuple(part.shape)
        if len(dims) != len(first) or (dims[:place], dims[place + 1 :]) != rest:
            raise InvalidArgumentError(
                f"ConcatOp : Dimension mismatch outside axis {place}: shape[0] = {text(first)} "
                f"vs. shape[{i}] = {text(dims)}",
                node,
            )
    return place


@kernel("ConcatOffset", host=tuple(range(64)), host_result=True)
def concat_offset(node: Node, context: Context) -> Function:
    def offsets(axis: Any, *shapes: Any) -> Any:
        place = _offset_axis(axis, shapes, node)
        results, start = [], 0
        for each in shapes:
            result = np.zeros_like(each)
            result[place] = start
            start += int(each[place])
            results.append(result)
        return tuple(results)

    return offsets


def _offset_axis(axis: Any, shapes: Sequence[Any], node: Node) -> int:
    """Return the axis counted from the front, after a look at the shapes to be joined."""
    if np.ndim(axis):
        raise InvalidArgumentError(
            f"Concat dim tensor should be a scalar integer, but got shape {text(axis.shape)}", node
        )
    for i, each in enumerate(shapes, 1):
        if each.ndim != 1:
            raise InvalidArgumentError(
                f"input {i} should be a vector, but got shape {text(each.shape)}", node
            )
    first = vector(shapes[0], "shape", node)
    rank, place = len(first), int(axis)
    if not -rank <= place < rank:
        raise InvalidArgumentError(f"Concat dim is out of range: {place} vs. {rank}", node)
    place %= rank
    for i, each in enumerate(shapes):
        dims = vector(each, "shape", node)
        if len(dims) != rank:
            raise InvalidArgumentError(
                f"input {i} should contain {rank} elements, but got {len(dims)}", node
            )
        if dims[:place] != first[:place] or dims[place + 1 :] != first[place + 1 :]:
            raise InvalidArgumentError(
                f"All dimensions except {place} must match. Input {i} has shape "
                f"{_spaced(dims)} and doesn't match input 0 with shape {_spaced(first)}.",
                node,
            )
    return place


def _spaced(dims: Sequence[int]) -> str:
    return f"[{' '.join(map(str, dims))}]"


@kernel("Pack")
def pack(node: Node, context: Context) -> Function:
    stack, axis = context.xp.stack, node.attrs["axis"]

    def pack(*values: Any) -> Any:
        dims = tuple(values[0].shape)
        for i, each in enumerate(values):
            if tuple(each.shape) != dims:
                raise InvalidArgumentError(
                    f"Shapes of all inputs must match: values[0].shape = {text(dims)} != "
                    f"values[{i}].shape = {text(each.shape)}",
                    node,
                )
        return stack(values, axis=normalize_axis(axis, len(dims) + 1, node))

    return pack


@kernel("Unpack")
def unpack(node: Node, context: Context) -> Function:
    axis, count = node.attrs["axis"], node.attrs["num"]

    def unpack(x: Any) -> Any:
        place = normalize_axis(axis, len(x.shape), node)
        if x.shape[place] != count:
            raise InvalidArgumentError(
                f"Input shape axis {place} must equal {count}, got shape {text(x.shape)}", node
            )
        before = (slice(None),) * place
        parts = tuple([x[(*before, i)] for i in range(count)])
        return parts[0] if count == 1 else parts

    return unpack


@kernel("Split", host=(0,))
def split(node: Node, context: Context) -> Function:
    count, cut = node.attrs["num_split"], _cutter(context)

    def split(axis: Any, x: Any) -> Any:
        place = normalize_axis(int(axis.item()), len(x.shape), node)
        extent = x.shape[place]
        if extent % count:
            raise InvalidArgumentError(
                "Number of ways to split should evenly divide the split dimension, but got "
                f"split_dim {place} (size = {extent}) and num_split {count}",
                node,
            )
        return cut(x, place, [extent // count] * count)

    return split


@kernel("SplitV", host=(1, 2))
def split_v(node: Node, context: Context) -> Function:
    cut = _cutter(context)

    def split(x: Any, sizes: Any, axis: Any) -> Any:
        place = normalize_axis(int(axis.item()), len(x.shape), node)
        return cut(
            x,
            place,
            _split_sizes(
                vector(sizes, "size_splits", node, len(node.outputs)), x.shape[place], place, node
            ),
        )

    return split


# Elements: below, a copy costs less than what comes after it gains from compact memory.
_COPIED = 1 << 15


def _cutter(context: Context) -> Function:
    """Return the function that cuts: views, but NumPy's inner loops need compact memory."""
    return _cut_compact if context.framework == "numpy" else _cut


def _cut_compact(x: Any, axis: int, sizes: list[int]) -> Any:
    parts = _cut(x, axis, sizes)
    if axis == 0 or x.size > _COPIED or len(sizes) == 1:
        return parts
    return tuple([np.ascontiguousarray(part) for part in parts])


def _cut(x: Any, axis: int, sizes: list[int]) -> Any:
    before, start, parts = (slice(None),) * axis, 0, []
    for size in sizes:
        parts.append(x[(*before, slice(start, start + size))])
        start += size
    return parts[0] if len(parts) == 1 else tuple(parts)


def _split_sizes(sizes: list[int], extent: int, axis: int, node: Node) -> list[int]:
    known = sum([size for size in sizes if size != -1])
    if sizes.count(-1) > 1:
        raise InvalidArgumentError("There can only be one -1 in the input.", node)
    if -1 in sizes:
        sizes = [extent - known if size == -1 else size for size in sizes]
    if len(sizes) != node.attrs["num_split"] or sum(sizes) != extent or min(sizes) < 0:
        raise InvalidArgumentError(
            "Determined shape must either match input shape along split_dim exactly if fully "
            f"specified, or be less than the size of the input along split_dim if not fully "
            f"specified. Got: {sizes} for axis {axis} of size {extent}",
            node,
        )
    return sizes
