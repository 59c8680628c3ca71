"""Convolutions on the array API: im2col and one matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
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
        groups = _groups(node, images.shape[-1], weights.shape)
        out = convolve(images, weights, _axes(node, layout, images, weights), groups)
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
        out = convolve(images, weights, _axes(node, layout, images, weights), channels)
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
        groups = _groups(node, shape[-1], weights.shape)
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
    except ValueError as error:
        raise InvalidArgumentError(str(error), node) from None


def _groups(node: Node, channels: int, shape: Sequence[int]) -> int:
    depth, count = shape[-2:]
    if depth == 0 or channels % depth:
        raise InvalidArgumentError(
            f"input depth must be evenly divisible by filter depth: {channels} vs {depth}", node
        )
    groups = channels // depth
    if groups and count % groups:
        raise InvalidArgumentError(
            f"output depth must be evenly divisible by number of groups: {count} vs {groups}", node
        )
    return max(groups, 1)


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
