"""Convolutions in NumPy: BLAS on blocks of im2col columns that fit the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from array_api_compat import numpy as xp

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.convolution import kernels
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.windows import Axis, padded, tap

Array = np.ndarray[Any, Any]

# The columns of a product, and the parts of a sum, are made for blocks of about this many bytes, so
# that the cache still has them; smaller ones would cost more calls than they save.
BLOCK_BYTES = 4 << 20


@kernel("Conv2D", "Conv3D", framework="numpy")
def conv(node: Node, context: Context) -> Function:
    general = kernels.by_columns(context)

    def convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        simple = groups == 1 and images.dtype.kind == "f" and images.size and weights.size
        return (_convolve if simple else general)(images, weights, axes, groups)

    return kernels.convolution(node, context, convolve)


def _convolve(images: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the convolution, a block of rows of the result after the other."""
    filters = weights.reshape(-1, weights.shape[-1])
    images = padded(xp, images, axes)
    shape = (images.shape[0], *[axis.output for axis in axes], weights.shape[-1])
    if all(axis.window == 1 for axis in axes):
        seen = tap(images, axes, (0,) * len(axes))
        simple: Array = np.matmul(seen.reshape(-1, len(filters)), filters)
        return simple.reshape(shape)
    windows = _windows(images, axes)
    out = np.empty(shape, np.result_type(images, weights))
    _multiply(windows, filters, out)
    return out


def _windows(images: Array, axes: Sequence[Axis]) -> Array:
    """Return a view (batch, *outputs, *windows, channels) of what each window sees."""
    batch, *spatial, channels = images.strides
    return np.lib.stride_tricks.as_strided(
        images,
        (
            images.shape[0],
            *[axis.output for axis in axes],
            *[axis.window for axis in axes],
            images.shape[-1],
        ),
        (
            batch,
            *[stride * axis.stride for stride, axis in zip(spatial, axes, strict=True)],
            *[stride * axis.dilation for stride, axis in zip(spatial, axes, strict=True)],
            channels,
        ),
        writeable=False,
    )


def _multiply(windows: Array, filters: Array, out: Array) -> None:
    """Fill `out` with the products of windows and filters; the columns of one block at a time."""
    width, channels = filters.shape
    row = math.prod(windows.shape[2:])
    buffer = np.empty(0, out.dtype)
    for block in _blocks(out, row):
        part = windows[block]
        if part.size > buffer.size:  # at the first block, which is the largest
            buffer = np.empty(part.size, out.dtype)
        columns = buffer[: part.size].reshape(part.shape)
        np.copyto(columns, part)
        np.matmul(columns.reshape(-1, width), filters, out=out[block].reshape(-1, channels))


def _blocks(out: Array, row: int) -> Iterator[tuple[slice, slice]]:
    """Yield indices of blocks of the result: some whole images, or some rows of one.

    Args:
        out: the result, (batch, rows, …).
        row: how many elements the work on one row takes.
    """
    batch, rows = out.shape[:2]
    fitting = max(BLOCK_BYTES // max(row * out.itemsize, 1), 1)
    images = max(fitting // max(rows, 1), 1)
    step = min(fitting, rows)
    for first in range(0, batch, images):
        for top in range(0, rows, step):
            yield slice(first, min(first + images, batch)), slice(top, min(top + step, rows))


@kernel("DepthwiseConv2dNative", framework="numpy")
def depthwise(node: Node, context: Context) -> Function:
    return kernels.depthwise_convolution(node, context, _depthwise)


def _depthwise(images: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the sum over the taps, block by block of rows so that it stays in cache."""
    multiplier = weights.shape[-1]
    images = padded(xp, images, axes)
    rows, columns = axes
    shape = (images.shape[0], rows.output, columns.output, groups * multiplier)
    out = np.empty(shape, images.dtype)
    if multiplier > 1:
        images = np.repeat(images, multiplier, -1)
    filters = weights.reshape(*weights.shape[:2], -1)
    for images_part, rows_part in _blocks(out, 2 * columns.output * shape[-1]):
        count = rows_part.stop - rows_part.start
        block = images[images_part, rows_part.start * rows.stride :]
        axes = rows._replace(output=count), columns
        _sum_taps(block, filters, axes, out[images_part, rows_part])
    return out


def _sum_taps(images: Array, filters: Array, axes: Sequence[Axis], out: Array) -> None:
    """Fill `out` with the sum over the taps of the window: elements times filter."""
    part = np.empty_like(out)
    for number, indices in enumerate(product(*[range(axis.window) for axis in axes])):
        seen = tap(images, axes, indices)
        if number == 0:
            np.multiply(seen, filters[indices], out=out)
        else:
            np.multiply(seen, filters[indices], out=part)
            np.add(out, part, out=out)


@kernel("Conv2DBackpropInput", framework="numpy", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    return kernels.transposed_convolution(node, context, _spread)


def _spread(gradient: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the sum of what each tap gives to the elements that it saw."""
    parts = kernels.shares(xp, gradient, weights, groups)
    out = np.zeros((gradient.shape[0], *[axis.size for axis in axes], parts.shape[-1]), parts.dtype)
    for indices in product(*[range(axis.window) for axis in axes]):
        seen = [axis.inner_tap(i) for axis, i in zip(axes, indices, strict=True)]
        target = out[(slice(None), *[where for where, _ in seen])]
        target += parts[indices][(slice(None), *[windows for _, windows in seen])]
    return out
