"""Convolutions: what users call in `tf.nn`."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.default_graph import apply, convert_to_tensor, name_scope
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import one_of, padding_attributes, per_dimension

__all__ = [
    "atrous_conv2d", "conv1d", "conv2d", "conv2d_backprop_input", "conv2d_transpose", "conv3d",
    "convolution", "depthwise_conv2d", "depthwise_conv2d_native", "separable_conv2d",
]  # fmt: skip

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
    numbers = [int(each) for each in value] if isinstance(value, list | tuple) else [value or 1]
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
    rates = dilations if dilation_rate is None else dilation_rate
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
    rates = dilations if rate is None else rate
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
    rates = dilations if rate is None else rate
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
