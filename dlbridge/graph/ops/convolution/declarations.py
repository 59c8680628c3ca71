"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.graph.ops.nn.declarations import FLOATS
from dlbridge.graph.ops.windows import Layout, output_extent, read_layout
from dlbridge.shape import Dims


def layout_of_node(c: Inference, strides: Sequence[int] | None = None) -> Layout:
    try:
        return read_layout(c.attrs, strides)
    except ValueError as error:
        raise c.error(str(error)) from None


def known_extent(
    c: Inference, layout: Layout, dimension: int, size: int | None, window: int | None
) -> int | None:
    """Return the number of windows along a dimension, as far as it is known."""
    if size is None or (window is None and layout.padding != b"SAME"):
        return None
    dilation, pair = layout.dilations[dimension], layout.explicit[dimension]
    if layout.padding != b"SAME":  # stricter than a run, which may find no window at all
        assert window is not None
        total = size + sum(pair)
        reach = (window - 1) * dilation + 1
        if total < reach:
            raise c.error(f"Negative dimension size caused by subtracting {reach} from {total}")
    return output_extent(
        size, window or 1, layout.strides[dimension], dilation, layout.padding, pair
    )


def _arrange(
    layout: Layout, batch: int | None, spatial: Sequence[int | None], channels: int | None
) -> Dims:
    if layout.channels_first:
        return (batch, channels, *spatial)
    return (batch, *spatial, channels)


def _convolution(c: Inference) -> Shapes:
    layout = layout_of_node(c)
    dims = require_rank(c.dims(0), layout.rank, c)
    *windows, depth, channels = require_rank(c.dims(1), layout.rank, c)
    given = dims[layout.channel]
    if given is not None and depth is not None and (depth == 0 or given % depth):
        raise c.error(
            f"Depth of input ({given}) is not a multiple of input depth of filter ({depth})"
        )
    if given and depth and channels is not None and channels % (given // depth):
        raise c.error(
            f"Depth of output ({channels}) is not a multiple of the number of groups "
            f"({given // depth})"
        )
    return [_arrange(layout, dims[0], _spatial(c, layout, dims, windows), channels)]


def _spatial(
    c: Inference, layout: Layout, dims: Dims, windows: Sequence[int | None]
) -> list[int | None]:
    return [
        known_extent(c, layout, dimension, dims[dimension], window)
        for dimension, window in zip(layout.spatial, windows, strict=True)
    ]


def _depthwise(c: Inference) -> Shapes:
    layout = layout_of_node(c)
    dims = require_rank(c.dims(0), 4, c)
    *windows, depth, multiplier = require_rank(c.dims(1), 4, c)
    depth = merge_dim(dims[layout.channel], depth, c)
    channels = None if depth is None or multiplier is None else depth * multiplier
    return [_arrange(layout, dims[0], _spatial(c, layout, dims, windows), channels)]


def _backprop_input(c: Inference) -> Shapes:
    """The shape that the first input states; batch of the gradient, depth of the filter."""
    layout = layout_of_node(c)
    windows = require_rank(c.dims(1), 4, c)
    gradient = require_rank(c.dims(2), 4, c)
    sizes = c.constant_dims(0)
    if sizes is not None and len(sizes) == 2:  # extents of the image alone
        return [_arrange(layout, gradient[0], sizes, windows[2])]
    dims = require_rank(sizes, 4, c)
    depth = dims[layout.channel]
    if depth is not None and windows[2] is not None and (not windows[2] or depth % windows[2]):
        raise c.error(f"Depth of input ({depth}) is not a multiple of the filter's {windows[2]}")
    merge_dim(dims[0], gradient[0], c)
    return [(gradient[0], *dims[1:])]


_INTEGERS_TOO = "{float16, bfloat16, float32, float64, int32}"
_CONVOLUTION = (
    'padding: {"SAME", "VALID", "EXPLICIT"}, explicit_paddings: list(int) = [], '
    'data_format: {"NHWC", "NCHW"} = "NHWC", dilations: list(int) = [1, 1, 1, 1]'
)
VOLUME = 'padding: {"SAME", "VALID"}, data_format: {"NDHWC", "NCDHW"} = "NDHWC"'

define(
    f"Conv2D(input: T, filter: T, *, T: {_INTEGERS_TOO}, strides: list(int), "
    f"use_cudnn_on_gpu: bool = true, {_CONVOLUTION}) -> output: T",
    shape=_convolution,
)
define(
    f"DepthwiseConv2dNative(input: T, filter: T, *, T: {FLOATS}, strides: list(int), "
    f"{_CONVOLUTION}) -> output: T",
    shape=_depthwise,
)
define(
    "Conv2DBackpropInput(input_sizes: int32, filter: T, out_backprop: T, *, "
    f"T: {_INTEGERS_TOO}, strides: list(int), use_cudnn_on_gpu: bool = true, {_CONVOLUTION}) "
    "-> output: T",
    shape=_backprop_input,
)
define(
    f"Conv3D(input: T, filter: T, *, T: {FLOATS}, strides: list(int) >= 5, "
    f"{VOLUME}, dilations: list(int) = [1, 1, 1, 1, 1]) -> output: T",
    shape=_convolution,
)
