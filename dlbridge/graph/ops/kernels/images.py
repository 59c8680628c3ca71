"""Images resized, and boxes cropped from them, on the array API."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError, OutOfRangeError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function
from dlbridge.proto.datatypes import float32, int64

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


def sizes(node: Node, x: Any, size: Any) -> tuple[int, int]:
    """Return the height and the width that images get.

    Raises:
        InvalidArgumentError: there are no images, or they get no pixels.
    """
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
        for dimension, wanted in enumerate(sizes(node, x, size), 1):
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
        height, width = sizes(node, x, size)
        x = xp.astype(x, kind)
        for dimension, wanted in ((2, width), (1, height)):
            if is_resized(x.shape[dimension], wanted, node):
                x = _between(x, dimension, wanted, node, context)
        return x

    return run


def neighbours(extent: int, wanted: int, node: Node) -> tuple[Any, Any, Any]:
    """Return which two pixels each resized one lies between, and how near it is to the second."""
    where = positions(extent, wanted, node)
    low = np.floor(where)
    first = np.clip(low, 0, extent - 1).astype(np.int64)
    second = np.clip(np.ceil(where), 0, extent - 1).astype(np.int64)
    return first, second, where - low


def is_resized(extent: int, wanted: int, node: Node) -> bool:
    """Return whether a dimension has other pixels afterwards."""
    return extent != wanted or node.attrs["align_corners"]


def _between(x: Any, dimension: int, wanted: int, node: Node, context: Context) -> Any:
    """Return pixels between those of one dimension, each weighted by its nearness."""
    take = context.xp.take
    first, second, part = neighbours(x.shape[dimension], wanted, node)
    part = context.asarray(part.reshape((-1,) + (1,) * (3 - dimension)))
    left = take(x, context.asarray(first), axis=dimension)
    right = take(x, context.asarray(second), axis=dimension)
    return left + (right - left) * part


# ---- blocks ------------------------------------------------------------------------------------


@kernel("CropAndResize", host=(3,))
def crop_and_resize(node: Node, context: Context) -> Function:
    """Crop boxes in normalized coordinates and resize each; pixels outside have one value."""
    xp = context.xp
    fill, kind = node.attrs["extrapolation_value"], context.dtype(float32)
    read = _nearest if node.attrs["method"] == b"nearest" else _bilinear

    def run(image: Any, boxes: Any, owners: Any, size: Any) -> Any:
        _check(node, context, image, boxes, owners, size)
        count, height, width, channels = image.shape
        y, inside_y = _places(boxes[:, 0], boxes[:, 2], height, int(size[0]), context)
        x, inside_x = _places(boxes[:, 1], boxes[:, 3], width, int(size[1]), context)
        pixels = xp.reshape(image, (count * height * width, channels))
        known = (owners >= 0) & (owners < count)
        if not context.checks:  # nobody has refused them
            owners = xp.where(known, owners, xp.zeros_like(owners))
        first = xp.astype(owners, context.dtype(int64))[:, None, None] * (height * width)

        def at(row: Any, column: Any) -> Any:
            where = first + row[:, :, None] * width + column[:, None, :]
            found = xp.take(pixels, xp.reshape(where, (-1,)), axis=0)
            return xp.astype(xp.reshape(found, (*where.shape, channels)), kind)

        out = read(xp, at, y, x)
        inside = (inside_y[:, :, None] & inside_x[:, None, :])[..., None]
        out = xp.where(inside, out, xp.full_like(out, fill))
        if context.checks:
            return out
        return xp.where(known[:, None, None, None], out, xp.nan)

    return run


def _check(node: Node, context: Context, image: Any, boxes: Any, owners: Any, size: Any) -> None:
    if len(image.shape) != 4 or tuple(boxes.shape) != (owners.shape[0], 4) or min(size) < 1:
        raise InvalidArgumentError(
            "CropAndResize: required an image of rank 4, boxes of shape [n,4], box_index of shape "
            f"[n] and a positive crop_size, got {list(image.shape)}, {list(boxes.shape)}, "
            f"{list(owners.shape)} and {size.tolist()}",
            node,
        )
    if 0 in image.shape[1:3]:
        raise InvalidArgumentError("CropAndResize: image dimensions must be positive", node)
    if not context.checks or not owners.shape[0]:
        return
    low, high = int(context.xp.min(owners)), int(context.xp.max(owners))
    if low < 0 or high >= image.shape[0]:
        raise OutOfRangeError(
            f"CropAndResize: box_index has values outside [0, batch_size): {low} … {high}, batch "
            f"size {image.shape[0]}",
            node,
        )


def _places(low: Any, high: Any, extent: int, count: int, context: Context) -> tuple[Any, Any]:
    """Return where the pixels of each box lie along a dimension, and whether that is inside."""
    xp, last = context.xp, extent - 1
    if count == 1:
        places = (0.5 * (low + high) * last)[:, None]
    else:
        step = (high - low) * last / (count - 1)
        numbers = xp.arange(count, dtype=low.dtype, device=context.device)
        places = (low * last)[:, None] + numbers[None, :] * step[:, None]
    inside = (places >= 0) & (places <= last)
    return xp.where(inside, places, xp.zeros_like(places)), inside


def _nearest(xp: Any, at: Function, y: Any, x: Any) -> Any:
    row, column = (xp.astype(xp.floor(place + 0.5), xp.int64) for place in (y, x))
    return at(row, column)


def _bilinear(xp: Any, at: Function, y: Any, x: Any) -> Any:
    """Between columns first, then between rows."""
    top, bottom, left, right = (
        xp.astype(bound(place), xp.int64) for place in (y, x) for bound in (xp.floor, xp.ceil)
    )
    down = (y - xp.floor(y))[:, :, None, None]
    along = (x - xp.floor(x))[:, None, :, None]
    above = at(top, left) + (at(top, right) - at(top, left)) * along
    below = at(bottom, left) + (at(bottom, right) - at(bottom, left)) * along
    return above + (below - above) * down
