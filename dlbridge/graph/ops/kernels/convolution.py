"""Convolutions and pooling on the array API."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError, UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, widened
from dlbridge.graph.ops.windows import (
    Axis,
    Layout,
    channels_first,
    channels_last,
    extended,
    layout_of,
    padded,
    tap,
)
from dlbridge.signals import not_from_handler

# convolve(images, filter, axes, groups): channels last, filter (*windows, depth, channels).
Convolve = Callable[[Any, Any, Sequence[Axis], int], Any]
# spread(gradient, filter, axes, groups): the gradient of `convolve` for its images.
Spread = Callable[[Any, Any, Sequence[Axis], int], Any]


# ---- what every framework does -----------------------------------------------------------------


def convolution(node: Node, context: Context, convolve: Convolve) -> Function:
    """Return the function of Conv2D or Conv3D, given what convolves images with channels last."""
    layout = layout_of(node)
    xp = context.xp

    def run(images: Any, weights: Any) -> Any:
        if layout.channels_first:
            images = channels_last(xp, images)
        axes = _axes(node, layout, images, weights)
        groups = _groups(node, images.shape[-1], weights.shape)
        dims = (images.shape[0], *[axis.output for axis in axes], weights.shape[-1])
        if 0 in dims:
            out = xp.zeros(dims, dtype=images.dtype, device=context.device)
        elif 0 in weights.shape:
            raise InvalidArgumentError(
                f"filter must not have zero elements, got shape {list(weights.shape)}", node
            )
        else:
            out = convolve(images, weights, axes, groups)
        return channels_first(xp, out) if layout.channels_first else out

    return widened(run, node, context)


def depthwise_convolution(node: Node, context: Context, convolve: Convolve) -> Function:
    """Return the function of DepthwiseConv2dNative: as many groups as channels.

    `convolve` gets the filter as TensorFlow has it: (height, width, channels, multiplier).
    """
    layout = layout_of(node)
    xp = context.xp

    def run(images: Any, weights: Any) -> Any:
        if layout.channels_first:
            images = channels_last(xp, images)
        channels = images.shape[-1]
        if weights.shape[2] != channels:
            raise InvalidArgumentError(
                f"input and filter must have the same depth: {channels} vs {weights.shape[2]}", node
            )
        axes = _axes(node, layout, images, weights)
        dims = (images.shape[0], *[axis.output for axis in axes], channels * weights.shape[3])
        if 0 in weights.shape or 0 in dims:  # the sum over no elements
            out = xp.zeros(dims, dtype=images.dtype, device=context.device)
        else:
            out = convolve(images, weights, axes, channels)
        return channels_first(xp, out) if layout.channels_first else out

    return widened(run, node, context)


def transposed_convolution(node: Node, context: Context, spread: Spread) -> Function:
    """Return the function of Conv2DBackpropInput."""
    layout = layout_of(node)
    xp = context.xp

    def run(sizes: Any, weights: Any, gradient: Any) -> Any:
        if layout.channels_first:
            gradient = channels_last(xp, gradient)
        shape = _input_shape(layout, sizes, weights, gradient)
        is_empty = 0 in shape or 0 in weights.shape or 0 in gradient.shape
        groups = _groups(node, shape[-1], weights.shape) if shape[-1] else 0
        axes = tuple(
            [
                layout.axis(dimension, size, window)
                for dimension, size, window in zip(
                    layout.spatial, shape[1:3], weights.shape[:2], strict=True
                )
            ]
        )
        wanted = (shape[0], *[axis.output for axis in axes], weights.shape[3])
        if tuple(gradient.shape) != wanted:
            raise InvalidArgumentError(
                f"Conv2DBackpropInput: out_backprop must have the shape {list(wanted)} (channels "
                f"last), got {list(gradient.shape)}",
                node,
            )
        if is_empty:  # of nothing comes no gradient
            out = xp.zeros(shape, dtype=gradient.dtype, device=context.device)
        else:
            out = spread(gradient, weights, axes, groups)
        return channels_first(xp, out) if layout.channels_first else out

    return widened(run, node, context)


def _input_shape(layout: Layout, sizes: Any, weights: Any, gradient: Any) -> tuple[int, ...]:
    """Return the shape of the images, channels last, that the first input states."""
    given = [int(size) for size in sizes]
    if len(given) == 2:
        return (gradient.shape[0], *given, weights.shape[2])
    if layout.channels_first:
        given = [given[0], given[2], given[3], given[1]]
    return tuple(given)


def _axes(node: Node, layout: Layout, images: Any, weights: Any) -> tuple[Axis, ...]:
    rank = len(images.shape)
    if rank != layout.rank or len(weights.shape) != rank:
        raise InvalidArgumentError(
            f"{node.type}: input and filter must be {layout.rank}-dimensional, got shapes "
            f"{list(images.shape)} and {list(weights.shape)}",
            node,
        )
    try:
        return tuple(
            [
                layout.axis(dimension, size, window)
                for dimension, size, window in zip(
                    layout.spatial, images.shape[1:-1], weights.shape[:-2], strict=True
                )
            ]
        )
    except not_from_handler(ValueError) as error:
        raise InvalidArgumentError(str(error), node) from None


def _groups(node: Node, channels: int, shape: Sequence[int]) -> int:
    depth, count = shape[-2:]
    if depth == 0 or channels % depth:
        raise InvalidArgumentError(
            f"input depth must be evenly divisible by filter depth: {channels} vs {depth}", node
        )
    groups = channels // depth
    if not groups:
        raise InvalidArgumentError("Number of groups must not be 0: the images have no channels",
                                   node)  # fmt: skip
    if count % groups:
        raise InvalidArgumentError(
            f"output depth must be evenly divisible by number of groups: {count} vs {groups}", node
        )
    return groups


# ---- on the array API --------------------------------------------------------------------------


@kernel("Conv2D", "Conv3D")
def conv(node: Node, context: Context) -> Function:
    return convolution(node, context, by_columns(context))


@kernel("DepthwiseConv2dNative")
def depthwise(node: Node, context: Context) -> Function:
    return depthwise_convolution(node, context, by_taps(context))


@kernel("Conv2DBackpropInput", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    return transposed_convolution(node, context, by_dilation(context))


def by_taps(context: Context) -> Convolve:
    """Return what convolves each channel with filters of its own: a sum over the taps."""
    xp = context.xp

    def convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        images = padded(xp, images, axes, context.device)[..., None]
        out: Any = None
        for indices in product(*[range(axis.window) for axis in axes]):
            part = tap(images, axes, indices) * weights[indices]
            out = part if out is None else out + part
        return xp.reshape(out, (*out.shape[:-2], groups * weights.shape[-1]))

    return convolve


def by_columns(context: Context) -> Convolve:
    """Return `convolve` on the array API."""
    xp = context.xp

    def convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        images = padded(xp, images, axes, context.device)
        taps = [
            tap(images, axes, indices)
            for indices in product(*[range(axis.window) for axis in axes])
        ]
        if groups > 1:
            return _grouped(xp, taps, weights, groups)
        columns = xp.concat(taps, axis=-1) if len(taps) > 1 else taps[0]
        return xp.matmul(columns, xp.reshape(weights, (-1, weights.shape[-1])))

    return convolve


def _grouped(xp: Any, taps: list[Any], weights: Any, groups: int) -> Any:
    """Return the products of each group's columns with its filters."""
    *spatial, channels = taps[0].shape
    depth, count = channels // groups, weights.shape[-1] // groups
    rows = math.prod(spatial)
    columns = xp.stack([xp.reshape(each, (rows, groups, depth)) for each in taps], axis=2)
    columns = xp.permute_dims(columns, (1, 0, 2, 3))
    columns = xp.reshape(columns, (groups, rows, len(taps) * depth))
    filters = xp.permute_dims(xp.reshape(weights, (-1, groups, count)), (1, 0, 2))
    out = xp.permute_dims(xp.matmul(columns, filters), (1, 0, 2))
    return xp.reshape(out, (*spatial, groups * count))


def by_dilation(context: Context) -> Spread:
    """Return `spread` on the array API: each tap's share is padded to where it belongs."""
    xp = context.xp

    def spread(gradient: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        parts = shares(xp, gradient, weights, groups)
        total: Any = None
        for indices in product(*[range(axis.window) for axis in axes]):
            part = parts[indices]
            for dimension, (axis, index) in enumerate(zip(axes, indices, strict=True), 1):
                part = _placed(xp, part, dimension, axis, index, context.device)
            total = part if total is None else total + part
        return total

    return spread


def shares(xp: Any, gradient: Any, weights: Any, groups: int) -> Any:
    """Return what each tap gives the input: (*windows, batch, *outputs, channels)."""
    *windows, depth, count = weights.shape
    *spatial, _ = gradient.shape
    each = count // groups
    parts = xp.reshape(gradient, (-1, groups, each))
    parts = xp.permute_dims(parts, (1, 0, 2))
    filters = xp.reshape(weights, (-1, depth, groups, each))
    filters = xp.permute_dims(filters, (0, 2, 3, 1))
    out = xp.matmul(parts, filters)  # taps, groups, positions, depth
    out = xp.permute_dims(out, (0, 2, 1, 3))
    return xp.reshape(out, (*windows, *spatial, groups * depth))


def _placed(xp: Any, x: Any, dimension: int, axis: Axis, index: int, device: object) -> Any:
    """Return `x` with zeros between its elements, and as many at the ends as the input has."""
    if axis.stride > 1:
        others = [xp.zeros(x.shape, dtype=x.dtype, device=device)] * (axis.stride - 1)
        spaced = xp.stack([x, *others], axis=dimension + 1)
        x = xp.reshape(spaced, (*x.shape[:dimension], -1, *x.shape[dimension + 1 :]))
    start = index * axis.dilation - axis.before
    rest = max(axis.size - start - x.shape[dimension], 0)
    x = extended(xp, x, dimension, max(start, 0), rest, 0, device)
    first = max(-start, 0)
    return x[(slice(None),) * dimension + (slice(first, first + axis.size),)]


# ---- pooling: a window is reduced along one dimension after the other ----------------------------


# reduce(images, axes): one Axis for each dimension, trivial ones included.
Reduce = Callable[[Any, Sequence[Axis]], Any]


# ---- what every framework does -----------------------------------------------------------------


def pool(node: Node, context: Context, reduce: Reduce) -> Function:
    """Return the function of a pool whose windows are attributes."""
    windows = node.attrs["ksize"]
    layout = _pool_layout(node, node.attrs["strides"])

    def run(images: Any) -> Any:
        return reduce(images, _pool_axes(node, layout, images, windows))

    return widened(run, node, context)


def pool_of_inputs(node: Node, context: Context, reduce: Reduce) -> Function:
    """Return the function of MaxPoolV2, whose windows and strides are inputs."""

    def run(images: Any, windows: Any, strides: Any) -> Any:
        layout = _pool_layout(node, strides.tolist())
        return reduce(images, _pool_axes(node, layout, images, windows.tolist()))

    return widened(run, node, context)


def register_pools(
    maximum: Callable[[Node, Context], Reduce],
    mean: Callable[[Node, Context], Reduce],
    framework: str | None = None,
) -> None:
    """Register the pools of a framework, or of any, given what reduces the windows."""
    registered = partial(kernel, framework=framework)
    registered("MaxPool", "MaxPool3D")(lambda n, c: pool(n, c, maximum(n, c)))
    registered("MaxPoolV2", host=(1, 2))(lambda n, c: pool_of_inputs(n, c, maximum(n, c)))
    registered("AvgPool", "AvgPool3D")(lambda n, c: pool(n, c, mean(n, c)))


def _pool_layout(node: Node, strides: Sequence[int]) -> Layout:
    if node.attrs.get("data_format") == b"NCHW_VECT_C":
        raise UnimplementedError(
            f"{node.type}: data_format NCHW_VECT_C is for cuDNN's int8 alone; use NHWC or NCHW",
            node,
        )
    return layout_of(node, strides)


def _pool_axes(node: Node, layout: Layout, images: Any, windows: Sequence[int]) -> tuple[Axis, ...]:
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
    except not_from_handler(ValueError) as error:
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


@kernel("MaxPoolWithArgmax")
def max_pool_with_argmax(node: Node, context: Context) -> Function:
    """The maxima, and where in the image they are: a number for each (row, column, channel)."""
    windows, xp = node.attrs["ksize"], context.xp
    layout = _pool_layout(node, node.attrs["strides"])
    counted = node.attrs["include_batch_in_index"]
    bottom, kind = lowest(context, node), context.dtype(node.output_types[1])

    def run(images: Any) -> tuple[Any, Any]:
        batch, rows, columns, channels = _pool_axes(node, layout, images, windows)
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


def mean(node: Node, context: Context) -> Reduce:
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


register_pools(maximum, mean)
