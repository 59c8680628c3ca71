"""Convolutions in PyTorch: its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn import functional

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.convolution import kernels
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.windows import Axis

CONVOLUTIONS = {1: functional.conv2d, 2: functional.conv2d, 3: functional.conv3d}


def _symmetric(x: Any, axes: Sequence[Axis], value: float = 0) -> tuple[Any, list[int]]:
    """Return images, channels first, padded where both ends differ, and the padding left."""
    if all(axis.before == axis.after for axis in axes):
        return x, [axis.before for axis in axes]
    pairs = [each for axis in reversed(axes) for each in (axis.before, axis.after)]
    return functional.pad(x, pairs, value=value), [0] * len(axes)


def _convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Convolve in the memory format of the images, which is PyTorch's channels_last."""
    rank = weights.ndim
    x, padding = _symmetric(images.movedim(-1, 1), axes)
    filters = weights.permute(rank - 1, rank - 2, *range(rank - 2))
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    out = CONVOLUTIONS[len(axes)](x, filters, None, strides, padding, dilations, groups)
    return out.movedim(1, -1)


def _depthwise(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    *windows, depth, multiplier = weights.shape
    return _convolve(images, weights.reshape(*windows, 1, depth * multiplier), axes, groups)


def _spread(gradient: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Return the gradient of `_convolve` for its images: all that the taps reach, cut to size."""
    filters = weights.permute(3, 2, 0, 1)
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    x = gradient.movedim(-1, 1)
    out = functional.conv_transpose2d(x, filters, None, strides, 0, 0, groups, dilations)
    pairs = []
    for axis, reached in zip(reversed(axes), reversed(out.shape[2:]), strict=True):
        pairs += [-axis.before, axis.before + axis.size - reached]
    return functional.pad(out, pairs).movedim(1, -1)


@kernel("Conv2D", "Conv3D", framework="torch")
def conv(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return kernels.conv(node, context)
    return kernels.convolution(node, context, _guarded(_convolve, context))


@kernel("DepthwiseConv2dNative", framework="torch")
def depthwise(node: Node, context: Context) -> Function:
    return kernels.depthwise_convolution(node, context, _guarded(_depthwise, context))


@kernel("Conv2DBackpropInput", framework="torch", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return kernels.backprop_input(node, context)
    return kernels.transposed_convolution(node, context, _guarded(_spread, context))


def _guarded(convolve: Function, context: Context) -> Function:
    """Leave empty images and results to the kernel for all, as PyTorch refuses some of them."""
    general = {
        _convolve: kernels.by_columns,
        _depthwise: kernels.by_taps,
        _spread: kernels.by_dilation,
    }[convolve](context)

    def run(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        empty = 0 in images.shape or any(axis.output == 0 or axis.size == 0 for axis in axes)
        return (general if empty else convolve)(images, weights, axes, groups)

    return run
