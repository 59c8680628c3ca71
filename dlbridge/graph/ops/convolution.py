"""Convolutions and pooling: windows that slide over images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply, convert_to_tensor, name_scope
from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import (
    HALF_FIRST,
    REAL,
    Shapes,
    at_most_one,
    define,
    one_of,
    padding_attributes,
    per_dimension,
)
from dlbridge.graph.ops.windows import Layout, output_extent, read_layout
from dlbridge.proto.datatypes import as_dtype
from dlbridge.shape import Dims
from dlbridge.signals import not_from_handler

__all__ = [
    "atrous_conv2d", "avg_pool", "avg_pool2d", "avg_pool3d", "conv1d", "conv2d",
    "conv2d_backprop_input", "conv2d_transpose", "conv3d", "convolution", "depthwise_conv2d",
    "depthwise_conv2d_native", "max_pool", "max_pool2d", "max_pool3d", "max_pool_with_argmax",
    "separable_conv2d",
]  # fmt: skip


# ==== op types: convolutions ======================================================================


def layout_of_node(c: Inference, strides: Sequence[int] | None = None) -> Layout:
    try:
        return read_layout(c.attrs, strides)
    except not_from_handler(ValueError) as error:
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
    taps = 1 if window is None else window
    return output_extent(size, taps, layout.strides[dimension], dilation, layout.padding, pair)


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
    if given == 0:
        raise c.error("Number of groups must not be 0: the images have no channels")
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
    if depth and windows[2] is not None and (not windows[2] or depth % windows[2]):
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
    f"DepthwiseConv2dNative(input: T, filter: T, *, T: {HALF_FIRST}, strides: list(int), "
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
    f"Conv3D(input: T, filter: T, *, T: {HALF_FIRST}, strides: list(int) >= 5, "
    f"{VOLUME}, dilations: list(int) = [1, 1, 1, 1, 1]) -> output: T",
    shape=_convolution,
)


# ==== op types: pooling ===========================================================================


def _pool_shape(c: Inference) -> Shapes:
    return [_pooled_dims(c, c.attrs["ksize"], c.attrs["strides"])]


def _pool_of_inputs(c: Inference) -> Shapes:
    for i in (1, 2):
        require_rank(c.dims(i), 1, c)
    windows, strides = c.constant(1), c.constant(2)
    if windows is None or strides is None:
        return [require_rank(None, 4, c)]
    return [_pooled_dims(c, windows.tolist(), strides.tolist())]


def _pooled_dims(c: Inference, windows: Sequence[int], strides: Sequence[int]) -> Dims:
    layout = layout_of_node(c, strides)
    dims = require_rank(c.dims(0), layout.rank, c)
    if len(windows) != layout.rank:
        raise c.error(f"ksize: required {layout.rank} values, got {len(windows)}")
    out = list(dims)
    for dimension in (*layout.spatial, layout.channel):
        window = windows[dimension]
        out[dimension] = known_extent(c, layout, dimension, dims[dimension], window)
    return tuple(out)


_POOLED = (
    "{float16, bfloat16, float32, float64, int32, int64, uint8, int16, int8, uint16, qint8} "
    "= float32"
)


define(
    f"MaxPool(input: T, *, T: {_POOLED}, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'padding: {"SAME", "VALID", "EXPLICIT"}, explicit_paddings: list(int) = [], '
    'data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") -> output: T',
    shape=_pool_shape,
)


define(
    f"MaxPoolV2(input: T, ksize: int32, strides: int32, *, T: {_POOLED}, "
    'padding: {"SAME", "VALID"}, data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") '
    "-> output: T",
    shape=_pool_of_inputs,
)


define(
    "AvgPool(value: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    f'padding: {{"SAME", "VALID"}}, data_format: {{"NHWC", "NCHW"}} = "NHWC", T: {HALF_FIRST}) '
    "-> output: T",
    shape=_pool_shape,
)


define(
    "MaxPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{VOLUME}, T: {{float16, bfloat16, float32}}) -> output: T",
    shape=_pool_shape,
)


define(
    "AvgPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{VOLUME}, T: {HALF_FIRST}) -> output: T",
    shape=_pool_shape,
)


define(
    "MaxPoolWithArgmax(input: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'Targmax: {int32, int64} = int64, padding: {"SAME", "VALID"}, '
    f"include_batch_in_index: bool = false, T: {REAL}) -> (output: T, argmax: Targmax)",
    shape=lambda c: _pool_shape(c) * 2,
)


# ==== functions: convolutions =====================================================================


_NHWC = "NHWC"


def conv2d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str | None = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """Return the convolution of images with filters: (batch, height, width, channels).

    Args:
        input: images, float16, bfloat16, float32, float64 or int32.
        filter: (height, width, channels in, channels out), of the same dtype; with fewer channels
            in than the images have, the convolution is grouped. `filters` is its new name.
        strides, dilations: one number, two, or one for each dimension of the images.
        padding: "SAME", "VALID", or pairs for each dimension.
        use_cudnn_on_gpu: kept in the graph, without effect here.
        data_format: "NHWC" or "NCHW".
        name: of the operation.

    Raises:
        ValueError: shapes or arguments that do not fit.
    """
    filter = one_of("conv2d", filter=filter, filters=filters)
    data_format = data_format or _NHWC
    attrs = _window_attributes("conv2d", data_format, strides, padding, dilations)
    attrs["use_cudnn_on_gpu"] = use_cudnn_on_gpu
    return apply("Conv2D", (input, filter), attrs, name).outputs[0]


def _window_attributes(
    call: str, data_format: str, strides: Any, padding: Any, dilations: Any
) -> dict[str, Any]:
    count = len(data_format) - 2
    return {
        "strides": per_dimension(strides, count, data_format, f"{call}: strides"),
        "dilations": per_dimension(dilations, count, data_format, f"{call}: dilations"),
        "data_format": data_format.encode(),
        **padding_attributes(padding, call),
    }


def conv1d(
    value: Any = None,
    filters: Any = None,
    stride: Any = None,
    padding: str | None = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: str | None = None,
    name: str | None = None,
    input: Any = None,
    dilations: Any = None,
) -> Tensor:
    """Return the convolution of sequences with filters: (batch, width, channels).

    Args:
        value: sequences; `input` is its new name.
        filters: (width, channels in, channels out).
        stride, dilations: one number.
        padding: "SAME" or "VALID".
        use_cudnn_on_gpu: kept in the graph, without effect here.
        data_format: "NWC" (as for None), "NCW", "NHWC" or "NCHW".
        name: of the scope of its operations.

    Raises:
        ValueError: another data format; shapes that do not fit.
    """
    x = one_of("conv1d", value=value, input=input)
    formats = {None: "NHWC", "NWC": "NHWC", "NHWC": "NHWC", "NCW": "NCHW", "NCHW": "NCHW"}
    if data_format not in formats:
        raise ValueError(f"`data_format` must be 'NWC' or 'NCW', got {data_format!r}")
    layout = formats[data_format]
    dimension = 1 if layout == _NHWC else 2
    with name_scope(name, "conv1d", [x, filters]) as full:
        x = convert_to_tensor(x, name="value")
        image = apply("ExpandDims", (x, dimension), None, None).outputs[0]
        weights = apply("ExpandDims", (filters, 0), None, None).outputs[0]
        out = conv2d(
            image,
            weights,
            _lengthened(stride, layout),
            padding,
            True if use_cudnn_on_gpu is None else use_cudnn_on_gpu,
            layout,
            _lengthened(dilations, layout),
            full,
        )
        return apply("Squeeze", (out,), {"squeeze_dims": [dimension]}, None).outputs[0]


def _lengthened(value: Any, data_format: str) -> list[int]:
    """Return a stride or dilation of sequences as one of images of height 1."""
    given = 1 if value is None else value
    numbers = [int(each) for each in given] if isinstance(given, list | tuple) else [given]
    position = 2 if len(numbers) == 3 and data_format == "NCHW" else len(numbers) // 2
    width = numbers[position]
    return [1, 1, 1, width] if data_format == "NCHW" else [1, 1, width, 1]


def conv3d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str | None = None,
    data_format: str | None = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """Return the convolution of volumes with filters: (batch, depth, height, width, channels).

    Args:
        input: volumes of floats.
        filter: (depth, height, width, channels in, channels out); `filters` is its new name.
        strides, dilations: one for each dimension.
        padding: "SAME" or "VALID".
        data_format: "NDHWC" or "NCDHW".
        name: of the operation.
    """
    filter = one_of("conv3d", filter=filter, filters=filters)
    data_format = data_format or "NDHWC"
    attrs = _window_attributes("conv3d", data_format, strides, padding, dilations)
    return apply("Conv3D", (input, filter), attrs, name).outputs[0]


def convolution(
    input: Any,
    filter: Any = None,
    padding: Any = None,
    strides: Any = None,
    dilation_rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: Any = None,
    dilations: Any = None,
) -> Tensor:
    """Return the convolution of sequences, images or volumes: `conv1d`, `conv2d` or `conv3d`.

    Args:
        input: of rank 3, 4 or 5.
        filter: of the same rank; `filters` is its new name.
        padding: "SAME" or "VALID".
        strides, dilation_rate: for each spatial dimension; `dilations` is the new name.
        name: of the scope of its operations.
        data_format: as in those functions, None for channels last.

    Raises:
        ValueError: an unknown or other rank.
    """
    filter = one_of("convolution", filter=filter, filters=filters)
    rates = at_most_one("convolution", None, dilation_rate=dilation_rate, dilations=dilations)
    with name_scope(name, "convolution", [input, filter]) as full:
        x = convert_to_tensor(input, name="input")
        rank = x.shape.rank
        if rank == 3:
            return conv1d(x, filter, strides, padding, None, data_format, full, None, rates)
        if rank == 4:
            return conv2d(x, filter, strides, padding, True, data_format, rates, full)
        if rank == 5:
            return conv3d(x, filter, strides, padding, data_format, rates, full)
        raise ValueError(f"convolution: required an input of rank 3, 4 or 5, got {x}")


def atrous_conv2d(
    value: Any, filters: Any, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """Return `conv2d` with dilations of `rate`, strides of 1 and channels last."""
    return conv2d(value, filters, 1, padding, dilations=rate, name=name or "convolution")


def depthwise_conv2d_native(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """Return images of which each channel is convolved with filters of its own.

    Args:
        input: images of floats.
        filter: (height, width, channels, multiplier); the result has channels * multiplier.
        strides, dilations: one for each dimension of the images.
        padding: "SAME", "VALID", or pairs for each dimension.
        data_format: "NHWC" or "NCHW".
        name: of the operation.
    """
    data_format = data_format or _NHWC
    attrs = _window_attributes("depthwise_conv2d", data_format, strides, padding, dilations)
    return apply("DepthwiseConv2dNative", (input, filter), attrs, name).outputs[0]


def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """Return `depthwise_conv2d_native`; `rate` is another name of `dilations`."""
    rates = at_most_one("depthwise_conv2d", None, rate=rate, dilations=dilations)
    with name_scope(name, "depthwise", [input, filter]) as full:
        x = convert_to_tensor(input, name="tensor_in")
        weights = convert_to_tensor(filter, x.dtype, "filter_in")
        return depthwise_conv2d_native(x, weights, strides, padding, data_format, rates, full)


def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """Return `depthwise_conv2d`, then a `conv2d` with filters of height and width 1.

    Args:
        input, strides, padding, rate, data_format, dilations: of `depthwise_conv2d`.
        depthwise_filter: (height, width, channels, multiplier).
        pointwise_filter: (1, 1, channels * multiplier, channels out).
        name: of the scope of its operations.
    """
    rates = at_most_one("separable_conv2d", None, rate=rate, dilations=dilations)
    operands = [input, depthwise_filter, pointwise_filter]
    with name_scope(name, "separable_conv2d", operands) as full:
        out = depthwise_conv2d_native(
            input, depthwise_filter, strides, padding, data_format, rates, "depthwise"
        )
        return conv2d(out, pointwise_filter, 1, "VALID", data_format=data_format, name=full)


def conv2d_backprop_input(
    input_sizes: Any,
    filter: Any = None,
    out_backprop: Any = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """Return the gradient of `conv2d` for its images, given that of its result.

    Args:
        input_sizes: int32, the shape of the images, or their height and width.
        filter: of the convolution; `filters` is its new name.
        out_backprop: the gradient, of the shape of the convolution's result.
        strides, padding, use_cudnn_on_gpu, data_format, dilations: of the convolution.
        name: of the operation.
    """
    filter = one_of("conv2d_backprop_input", filter=filter, filters=filters)
    attrs = _window_attributes("conv2d_backprop_input", data_format, strides, padding, dilations)
    attrs["use_cudnn_on_gpu"] = use_cudnn_on_gpu
    inputs = (input_sizes, filter, out_backprop)
    return apply("Conv2DBackpropInput", inputs, attrs, name).outputs[0]


def conv2d_transpose(
    value: Any = None,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: Any = "SAME",
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
    dilations: Any = None,
) -> Tensor:
    """Return images that `conv2d` with the same arguments would make the size of `value`.

    Args:
        value: images; `input` is its new name.
        filter: (height, width, channels out, channels in); `filters` is its new name.
        output_shape: of the result.
        strides, padding, data_format, dilations: as of `conv2d`.
        name: of the operation.
    """
    x = one_of("conv2d_transpose", value=value, input=input)
    filter = one_of("conv2d_transpose", filter=filter, filters=filters)
    with name_scope(name, "conv2d_transpose", [x, filter, output_shape]) as full:
        return conv2d_backprop_input(
            output_shape, filter, x, strides, padding, True, data_format or _NHWC, dilations, full
        )


# ==== functions: pooling ==========================================================================


def max_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return the maximum in each window of images.

    Args:
        value: images; `input` is its new name.
        ksize, strides: extents and distances of the windows: one number, two, or four.
        padding: "SAME", "VALID", or pairs for each dimension.
        data_format: "NHWC" or "NCHW".
        name: of the operation.
    """
    return _pool("MaxPool", value, ksize, strides, padding, data_format or "NHWC", name, input)


def avg_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str | None = None,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return the mean in each window of images without the padding; arguments as of `max_pool`."""
    return _pool("AvgPool", value, ksize, strides, padding, data_format or "NHWC", name, input)


avg_pool2d = avg_pool


def _pool_of(op_type: str, name: str, layout: str, images: str) -> Callable[..., Tensor]:
    def pool(
        input: Any,
        ksize: Any,
        strides: Any,
        padding: Any,
        data_format: str | None = layout,
        name: str | None = None,
    ) -> Tensor:
        return _pool(op_type, input, ksize, strides, padding, data_format or layout, name)

    what, like = ("maximum", "max_pool") if op_type.startswith("Max") else ("mean", "avg_pool")
    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""Return the {what} in each window of {images}; arguments as of `{like}`."""
    return pool


max_pool2d = _pool_of("MaxPool", "max_pool2d", "NHWC", "images")
max_pool3d = _pool_of("MaxPool3D", "max_pool3d", "NDHWC", "volumes")
avg_pool3d = _pool_of("AvgPool3D", "avg_pool3d", "NDHWC", "volumes")


def _pool(
    op_type: str,
    value: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str,
    name: str | None,
    input: Any = None,
) -> Tensor:
    x = one_of(op_type, value=value, input=input)
    count = len(data_format) - 2
    attrs = {
        "ksize": per_dimension(ksize, count, data_format, f"{op_type}: ksize"),
        "strides": per_dimension(strides, count, data_format, f"{op_type}: strides"),
        "data_format": data_format.encode(),
        **padding_attributes(padding, op_type),
    }
    return apply(op_type, (x,), attrs, name).outputs[0]


def max_pool_with_argmax(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NHWC",
    Targmax: object = None,  # noqa: N803
    name: str | None = None,
    output_dtype: object = None,
    include_batch_in_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maximum in each window of images, and where it is.

    Args:
        input: images, channels last.
        ksize, strides: extents and distances of the windows, four each.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        Targmax: dtype of the places, int64 by default; `output_dtype` is its new name.
        name: of the operation.
        include_batch_in_index: whether places are counted through the batch, or in each image.

    Returns:
        (maxima, places); a place is (row * width + column) * channels + channel.

    Raises:
        ValueError: another data format.
    """
    if data_format != "NHWC":
        raise ValueError("Data formats other than 'NHWC' are not yet supported")
    kind = as_dtype(Targmax or output_dtype or "int64")
    attrs = {
        "ksize": per_dimension(ksize, 2, data_format, "max_pool_with_argmax: ksize"),
        "strides": per_dimension(strides, 2, data_format, "max_pool_with_argmax: strides"),
        "padding": padding.encode(),
        "Targmax": kind,
        "include_batch_in_index": include_batch_in_index,
    }
    outputs = apply("MaxPoolWithArgmax", (input,), attrs, name).outputs
    return outputs[0], outputs[1]
