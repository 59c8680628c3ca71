"""Op types with windows that slide over images: convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.nn.declarations import FLOATS, REALS
from dlbridge.graph.ops.windows.geometry import Layout, output_extent, read_layout
from dlbridge.shape import Dims


def _layout(c: Inference, strides: Sequence[int] | None = None) -> Layout:
    try:
        return read_layout(c.attrs, strides)
    except ValueError as error:
        raise c.error(str(error)) from None


def _extent(
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


def _convolution(c: Inference) -> list[Dims | None]:
    layout = _layout(c)
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
        _extent(c, layout, dimension, dims[dimension], window)
        for dimension, window in zip(layout.spatial, windows, strict=True)
    ]


def _depthwise(c: Inference) -> list[Dims | None]:
    layout = _layout(c)
    dims = require_rank(c.dims(0), 4, c)
    *windows, depth, multiplier = require_rank(c.dims(1), 4, c)
    depth = merge_dim(dims[layout.channel], depth, c)
    channels = None if depth is None or multiplier is None else depth * multiplier
    return [_arrange(layout, dims[0], _spatial(c, layout, dims, windows), channels)]


def _backprop_input(c: Inference) -> list[Dims | None]:
    """The shape that the first input states; batch of the gradient, depth of the filter."""
    layout = _layout(c)
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


def _pool(c: Inference) -> list[Dims | None]:
    return [_pooled(c, c.attrs["ksize"], c.attrs["strides"])]


def _pool_of_inputs(c: Inference) -> list[Dims | None]:
    for i in (1, 2):
        require_rank(c.dims(i), 1, c)
    windows, strides = c.constant(1), c.constant(2)
    if windows is None or strides is None:
        return [require_rank(None, 4, c)]
    return [_pooled(c, windows.tolist(), strides.tolist())]


def _pool_with_argmax(c: Inference) -> list[Dims | None]:
    return _pool(c) * 2


def _pooled(c: Inference, windows: Sequence[int], strides: Sequence[int]) -> Dims:
    layout = _layout(c, strides)
    dims = require_rank(c.dims(0), layout.rank, c)
    if len(windows) != layout.rank:
        raise c.error(f"ksize: required {layout.rank} values, got {len(windows)}")
    out = list(dims)
    for dimension in (*layout.spatial, layout.channel):
        window = windows[dimension]
        out[dimension] = _extent(c, layout, dimension, dims[dimension], window)
    return tuple(out)


_INTEGERS_TOO = "{float16, bfloat16, float32, float64, int32}"
_CONVOLUTION = (
    'padding: {"SAME", "VALID", "EXPLICIT"}, explicit_paddings: list(int) = [], '
    'data_format: {"NHWC", "NCHW"} = "NHWC", dilations: list(int) = [1, 1, 1, 1]'
)
_POOLED = (
    "{float16, bfloat16, float32, float64, int32, int64, uint8, int16, int8, uint16, qint8} "
    "= float32"
)
_VOLUME = 'padding: {"SAME", "VALID"}, data_format: {"NDHWC", "NCDHW"} = "NDHWC"'

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
    f"{_VOLUME}, dilations: list(int) = [1, 1, 1, 1, 1]) -> output: T",
    shape=_convolution,
)
define(
    f"MaxPool(input: T, *, T: {_POOLED}, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'padding: {"SAME", "VALID", "EXPLICIT"}, explicit_paddings: list(int) = [], '
    'data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") -> output: T',
    shape=_pool,
)
define(
    f"MaxPoolV2(input: T, ksize: int32, strides: int32, *, T: {_POOLED}, "
    'padding: {"SAME", "VALID"}, data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") '
    "-> output: T",
    shape=_pool_of_inputs,
)
define(
    "AvgPool(value: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    f'padding: {{"SAME", "VALID"}}, data_format: {{"NHWC", "NCHW"}} = "NHWC", T: {FLOATS}) '
    "-> output: T",
    shape=_pool,
)
define(
    "MaxPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{_VOLUME}, T: {{float16, bfloat16, float32}}) -> output: T",
    shape=_pool,
)
define(
    "AvgPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{_VOLUME}, T: {FLOATS}) -> output: T",
    shape=_pool,
)
define(
    "MaxPoolWithArgmax(input: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'Targmax: {int32, int64} = int64, padding: {"SAME", "VALID"}, '
    f"include_batch_in_index: bool = false, T: {REALS}) -> (output: T, argmax: Targmax)",
    shape=_pool_with_argmax,
)
