"""Normalisation of channels, resizing, blocks of pixels: kernels on the array API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.precision import widened
from dlbridge.proto.datatypes import float32

Function = Callable[..., Any]


# ---- normalisation -----------------------------------------------------------------------------


@kernel("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(node: Node, context: Context) -> Function:
    """Normalised images, the statistics, and the reserves that TensorFlow's gradient takes."""
    attrs = node.attrs
    normalise = _trained(node, context) if attrs["is_training"] else _inferred(node, context)
    third = len(node.output_types) == 6
    xp = context.xp

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        out = normalise(x, scale, offset, mean, variance)
        if not third:
            return out
        return (*out, xp.zeros((0,), dtype=scale.dtype, device=context.device))

    return widened(run, node, context)


def _across(node: Node, xp: Any) -> tuple[Function, tuple[int, ...]]:
    """Return what lays a vector along the channels, and the other dimensions."""
    data_format = node.attrs["data_format"]
    rank = len(data_format)
    if data_format[1:2] != b"C":
        return (lambda vector: vector), tuple(range(rank - 1))
    shape = (-1, *(1,) * (rank - 2))
    return (lambda vector: xp.reshape(vector, shape)), (0, *range(2, rank))


def _inferred(node: Node, context: Context) -> Function:
    xp, epsilon = context.xp, node.attrs["epsilon"]
    across, _ = _across(node, xp)

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        factor = scale / xp.sqrt(variance + epsilon)
        y = (x - across(mean)) * across(factor) + across(offset)
        return y, mean, variance, mean, variance

    return run


def _trained(node: Node, context: Context) -> Function:
    """The variance that is returned has Bessel's correction, the one that normalises has not."""
    xp, attrs = context.xp, node.attrs
    epsilon, weight = attrs["epsilon"], attrs["exponential_avg_factor"]
    across, others = _across(node, xp)

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        count = 1
        for dimension in others:
            count *= x.shape[dimension]
        own_mean = xp.mean(x, axis=others)
        centred = x - across(own_mean)
        own_variance = xp.mean(centred * centred, axis=others)
        y = centred * across(scale / xp.sqrt(own_variance + epsilon)) + across(offset)
        new_mean, new_variance = own_mean, own_variance * (count / max(count - 1, 1))
        if weight != 1:
            new_mean = (1 - weight) * mean + weight * new_mean
            new_variance = (1 - weight) * variance + weight * new_variance
        return y, new_mean, new_variance, own_mean, own_variance

    return run


@kernel("BatchNormWithGlobalNormalization")
def global_norm(node: Node, context: Context) -> Function:
    """The first form of batch normalisation."""
    xp, epsilon = context.xp, node.attrs["variance_epsilon"]
    scaled = node.attrs["scale_after_normalization"]

    def run(t: Any, m: Any, v: Any, beta: Any, gamma: Any) -> Any:
        factor = 1 / xp.sqrt(v + epsilon)
        return (t - m) * (factor * gamma if scaled else factor) + beta

    return widened(run, node, context)


@kernel("LRN")
def lrn(node: Node, context: Context) -> Function:
    """Each channel divided by a power of the squares of its neighbours' sum."""
    xp, attrs = context.xp, node.attrs
    radius, bias, alpha, beta = (attrs[name] for name in ("depth_radius", "bias", "alpha", "beta"))

    def run(x: Any) -> Any:
        depth = x.shape[-1]
        reach = min(radius, max(depth - 1, 0))
        edge = xp.zeros((*x.shape[:-1], reach), dtype=x.dtype, device=context.device)
        squares = xp.concat([edge, x * x, edge], axis=-1)
        total = squares[..., :depth]
        for start in range(1, 2 * reach + 1):
            total = total + squares[..., start : start + depth]
        return x * (bias + alpha * total) ** -beta

    return widened(run, node, context)


# ---- resizing ----------------------------------------------------------------------------------


def positions(size: int, wanted: int, node: Node) -> Any:
    """Return where each pixel of a resized dimension lies in the original, as float32."""
    if node.attrs["align_corners"] and wanted > 1:
        scale = np.float32((size - 1) / np.float32(wanted - 1))
    else:
        scale = np.float32(size / np.float32(wanted))
    numbers = np.arange(wanted, dtype=np.float32)
    if not node.attrs["half_pixel_centers"]:
        return numbers * scale
    centres = (numbers + np.float32(0.5)) * scale
    return centres if node.type == "ResizeNearestNeighbor" else centres - np.float32(0.5)


def _sizes(node: Node, x: Any, size: Any) -> tuple[int, int]:
    if len(x.shape) != 4 or np.shape(size) != (2,):
        raise InvalidArgumentError(
            f"{node.type}: images must be 4-dimensional and size have two values, got shapes "
            f"{list(x.shape)} and {list(np.shape(size))}",
            node,
        )
    if min(size) <= 0 or 0 in x.shape[1:3]:
        raise InvalidArgumentError(
            f"{node.type}: output dimensions must be positive and images not empty, got size "
            f"{size.tolist()} and images of shape {list(x.shape)}",
            node,
        )
    return int(size[0]), int(size[1])


@kernel("ResizeNearestNeighbor", host=(1,))
def resize_nearest(node: Node, context: Context) -> Function:
    take = context.xp.take

    def run(x: Any, size: Any) -> Any:
        for dimension, wanted in enumerate(_sizes(node, x, size), 1):
            extent = x.shape[dimension]
            where = positions(extent, wanted, node)
            if node.attrs["align_corners"]:  # half up, as C's roundf
                where = np.floor(where + np.float32(0.5))
            chosen = np.clip(np.floor(where).astype(np.int64), 0, extent - 1)
            x = take(x, context.asarray(chosen), axis=dimension)
        return x

    return run


@kernel("ResizeBilinear", host=(1,))
def resize_bilinear(node: Node, context: Context) -> Function:
    """Between columns first, then between rows, in float32."""
    xp, kind = context.xp, context.dtype(float32)

    def run(x: Any, size: Any) -> Any:
        height, width = _sizes(node, x, size)
        x = xp.astype(x, kind)
        for dimension, wanted in ((2, width), (1, height)):
            if x.shape[dimension] != wanted or node.attrs["align_corners"]:
                x = _between(x, dimension, wanted, node, context)
        return x

    return run


def _between(x: Any, dimension: int, wanted: int, node: Node, context: Context) -> Any:
    """Return pixels between those of one dimension, each weighted by its nearness."""
    take = context.xp.take
    where = positions(x.shape[dimension], wanted, node)
    low = np.floor(where)
    part = context.asarray((where - low).reshape((-1,) + (1,) * (3 - dimension)))
    last = x.shape[dimension] - 1
    first = np.clip(low, 0, last).astype(np.int64)
    second = np.clip(np.ceil(where), 0, last).astype(np.int64)
    left = take(x, context.asarray(first), axis=dimension)
    right = take(x, context.asarray(second), axis=dimension)
    return left + (right - left) * part


# ---- blocks ------------------------------------------------------------------------------------


@kernel("SpaceToDepth")
def space_to_depth(node: Node, context: Context) -> Function:
    """Each square of pixels becomes one pixel with the channels of all."""
    xp, size, first = context.xp, *_block(node)

    def run(x: Any) -> Any:
        if first:
            n, c, h, w = x.shape
            parts = xp.reshape(x, (n, c, h // size, size, w // size, size))
            parts = xp.permute_dims(parts, (0, 3, 5, 1, 2, 4))
            return xp.reshape(parts, (n, c * size * size, h // size, w // size))
        n, h, w, c = x.shape
        parts = xp.reshape(x, (n, h // size, size, w // size, size, c))
        parts = xp.permute_dims(parts, (0, 1, 3, 2, 4, 5))
        return xp.reshape(parts, (n, h // size, w // size, c * size * size))

    return run


@kernel("DepthToSpace")
def depth_to_space(node: Node, context: Context) -> Function:
    """The inverse of SpaceToDepth."""
    xp, size, first = context.xp, *_block(node)

    def run(x: Any) -> Any:
        if first:
            n, c, h, w = x.shape
            parts = xp.reshape(x, (n, size, size, c // size**2, h, w))
            parts = xp.permute_dims(parts, (0, 3, 4, 1, 5, 2))
            return xp.reshape(parts, (n, c // size**2, h * size, w * size))
        n, h, w, c = x.shape
        parts = xp.reshape(x, (n, h, w, size, size, c // size**2))
        parts = xp.permute_dims(parts, (0, 1, 3, 2, 4, 5))
        return xp.reshape(parts, (n, h * size, w * size, c // size**2))

    return run


def _block(node: Node) -> tuple[int, bool]:
    return node.attrs["block_size"], node.attrs["data_format"] == b"NCHW"
