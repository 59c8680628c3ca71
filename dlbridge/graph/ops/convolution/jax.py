"""Convolutions in JAX: XLA's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.convolution import kernels
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.windows import Axis

# Channels last, filters as TensorFlow has them.
DIMENSIONS = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def _convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    return lax.conv_general_dilated(
        images,
        weights,
        [axis.stride for axis in axes],
        [(axis.before, axis.after) for axis in axes],
        rhs_dilation=[axis.dilation for axis in axes],
        dimension_numbers=DIMENSIONS[len(axes)],
        feature_group_count=groups,
    )


def _depthwise(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    *windows, depth, multiplier = weights.shape
    return _convolve(images, weights.reshape(*windows, 1, depth * multiplier), axes, groups)


def _spread(gradient: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Return the gradient of `_convolve` for its images: JAX transposes it."""
    depth = weights.shape[2] * groups
    shape = (gradient.shape[0], *[axis.size for axis in axes], depth)
    images = jax.ShapeDtypeStruct(shape, gradient.dtype)
    transposed = jax.linear_transpose(lambda x: _convolve(x, weights, axes, groups), images)
    return transposed(gradient)[0]


@kernel("Conv2D", "Conv3D", framework="jax")
def conv(node: Node, context: Context) -> Function:
    return kernels.convolution(node, context, _convolve)


@kernel("DepthwiseConv2dNative", framework="jax")
def depthwise(node: Node, context: Context) -> Function:
    return kernels.depthwise_convolution(node, context, _depthwise)


@kernel("Conv2DBackpropInput", framework="jax", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return kernels.backprop_input(node, context)
    return kernels.transposed_convolution(node, context, _spread)
