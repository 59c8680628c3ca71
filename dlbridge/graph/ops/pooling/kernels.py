"""Pooling on the array API: a window is reduced along one dimension after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError, UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, widened
from dlbridge.graph.ops.windows import Axis, Layout, extended, layout_of

# reduce(images, axes): one Axis for each dimension, trivial ones included.
Reduce = Callable[[Any, Sequence[Axis]], Any]


# ---- what every framework does -----------------------------------------------------------------


def pool(node: Node, context: Context, reduce: Reduce) -> Function:
    """Return the function of a pool whose windows are attributes."""
    windows = node.attrs["ksize"]
    layout = _layout(node, node.attrs["strides"])

    def run(images: Any) -> Any:
        return reduce(images, _axes(node, layout, images, windows))

    return widened(run, node, context)


def pool_of_inputs(node: Node, context: Context, reduce: Reduce) -> Function:
    """Return the function of MaxPoolV2, whose windows and strides are inputs."""

    def run(images: Any, windows: Any, strides: Any) -> Any:
        layout = _layout(node, strides.tolist())
        return reduce(images, _axes(node, layout, images, windows.tolist()))

    return widened(run, node, context)


def _layout(node: Node, strides: Sequence[int]) -> Layout:
    if node.attrs.get("data_format") == b"NCHW_VECT_C":
        raise UnimplementedError(
            f"{node.type}: data_format NCHW_VECT_C is for cuDNN's int8 alone; use NHWC or NCHW",
            node,
        )
    return layout_of(node, strides)


def _axes(node: Node, layout: Layout, images: Any, windows: Sequence[int]) -> tuple[Axis, ...]:
    if len(images.shape) != layout.rank or len(windows) != layout.rank:
        raise InvalidArgumentError(
            f"{node.type}: the input must be {layout.rank}-dimensional and ksize have as many "
            f"values, got shape {list(images.shape)} and {list(windows)}",
            node,
        )
    if windows[0] != 1 or layout.strides[0] != 1:
        raise UnimplementedError(
            f"{node.type}: pooling is not supported on the batch dimension, got ksize "
            f"{list(windows)} and strides {list(layout.strides)}",
            node,
        )
    if min(windows) < 1:
        raise InvalidArgumentError(f"{node.type}: ksize must be positive, got {windows}", node)
    try:
        return tuple(
            [
                layout.axis(dimension, size, window)
                for dimension, (size, window) in enumerate(zip(images.shape, windows, strict=True))
            ]
        )
    except ValueError as error:
        raise InvalidArgumentError(str(error), node) from None


def lowest(context: Context, node: Node) -> Any:
    """Return the least value of the dtype, which pads maximum pools."""
    kind = node.output_types[0].base_dtype
    return -np.inf if kind.is_floating else int(np.iinfo(kind.numpy).min)


def counts(axis: Axis) -> Any:
    """Return how many elements of the input each window along an axis sees, as a vector."""
    starts = np.arange(axis.output) * axis.stride - axis.before
    ends = np.minimum(starts + axis.window, axis.size)
    return ends - np.maximum(starts, 0)


# ---- on the array API --------------------------------------------------------------------------


@kernel("MaxPool", "MaxPool3D")
def max_pool(node: Node, context: Context) -> Function:
    return pool(node, context, maximum(node, context))


@kernel("MaxPoolV2", host=(1, 2))
def max_pool_v2(node: Node, context: Context) -> Function:
    return pool_of_inputs(node, context, maximum(node, context))


@kernel("AvgPool", "AvgPool3D")
def avg_pool(node: Node, context: Context) -> Function:
    return pool(node, context, mean(context))


@kernel("MaxPoolWithArgmax")
def max_pool_with_argmax(node: Node, context: Context) -> Function:
    """The maxima, and where in the image they are: a number for each (row, column, channel)."""
    windows, xp = node.attrs["ksize"], context.xp
    layout = _layout(node, node.attrs["strides"])
    counted = node.attrs["include_batch_in_index"]
    bottom, kind = lowest(context, node), context.dtype(node.output_types[1])

    def run(images: Any) -> tuple[Any, Any]:
        batch, rows, columns, channels = _axes(node, layout, images, windows)
        places = _numbers(batch.size if counted else 1, rows, columns, channels.size)
        x = images
        for dimension, axis in ((1, rows), (2, columns)):
            x = extended(xp, x, dimension, axis.before, axis.after, bottom, context.device)
        best: Any = None
        where: Any = None
        for i, j in product(range(rows.window), range(columns.window)):
            index = (slice(None), rows.tap(i), columns.tap(j))
            value, place = x[index], xp.astype(context.asarray(places[index]), kind)
            place = xp.broadcast_to(place, value.shape)
            if best is None:
                best, where = value, place
            else:
                larger = value > best
                best, where = xp.where(larger, value, best), xp.where(larger, place, where)
        return best, where

    return run


def _numbers(batch: int, rows: Axis, columns: Axis, channels: int) -> Any:
    """Return the number of each element of padded images; in the padding that of a neighbour."""
    row = np.clip(np.arange(-rows.before, rows.size + rows.after), 0, rows.size - 1)
    column = np.clip(np.arange(-columns.before, columns.size + columns.after), 0, columns.size - 1)
    image = np.arange(batch)[:, None] * rows.size + row
    return (image[:, :, None, None] * columns.size + column[:, None]) * channels + np.arange(
        channels
    )


def maximum(node: Node, context: Context) -> Reduce:
    """Return what takes the maximum in each window."""
    xp, bottom = context.xp, lowest(context, node)

    def reduce(x: Any, axes: Sequence[Axis]) -> Any:
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                x = along(x, dimension, axis, context, xp.maximum, bottom)
        return x

    return reduce


def mean(context: Context) -> Reduce:
    """Return what takes the mean of those elements of each window that are not padding."""
    xp = context.xp

    def reduce(x: Any, axes: Sequence[Axis]) -> Any:
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                x = along(x, dimension, axis, context, xp.add, 0)
                shape = [-1 if i == dimension else 1 for i in range(len(axes))]
                seen = context.asarray(counts(axis).reshape(shape))
                x = x / xp.astype(seen, x.dtype)
        return x

    return reduce


def along(
    x: Any, dimension: int, axis: Axis, context: Context, combine: Function, padding: Any
) -> Any:
    """Return the windows along one dimension, combined tap by tap."""
    x = extended(context.xp, x, dimension, axis.before, axis.after, padding, context.device)
    before = (slice(None),) * dimension
    out = x[(*before, axis.tap(0))]
    for index in range(1, axis.window):
        out = combine(out, x[(*before, axis.tap(index))])
    return out
