"""Images resized and cropped."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from dlbridge.graph.core.default_graph import convert_to_tensor, name_scope
from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array import expand_dims, squeeze
from dlbridge.graph.ops.shared import Shapes, define, one_of, result
from dlbridge.shape import Dims

__all__ = [
    "ResizeMethod", "crop_and_resize", "resize", "resize_bilinear", "resize_images",
    "resize_nearest_neighbor",
]  # fmt: skip


# ==== op types ====================================================================================


def _resize(c: Inference) -> Shapes:
    batch, _, _, channels = require_rank(c.dims(0), 4, c)
    height, width = require_rank(c.constant_dims(1), 2, c)
    return [(batch, height, width, channels)]


def _space_to_depth(c: Inference) -> Shapes:
    dims, channel, size = _blocks(c)
    spatial = {1, 2, 3} - {channel}
    out = [_divided(c, dim, size) if i in spatial else dim for i, dim in enumerate(dims)]
    depth = dims[channel]
    out[channel] = None if depth is None else depth * size * size
    return [tuple(out)]


def _depth_to_space(c: Inference) -> Shapes:
    dims, channel, size = _blocks(c)
    out = [None if dim is None else dim * size for dim in dims]
    out[0] = dims[0]
    out[channel] = _divided(c, dims[channel], size * size)
    return [tuple(out)]


def _blocks(c: Inference) -> tuple[Dims, int, int]:
    channel = 1 if c.attrs["data_format"] == b"NCHW" else 3
    return require_rank(c.dims(0), 4, c), channel, c.attrs["block_size"]


def _divided(c: Inference, dim: int | None, size: int) -> int | None:
    if dim is not None and dim % size:
        raise c.error(f"Dimension size must be evenly divisible by {size} but is {dim}")
    return None if dim is None else dim // size


def _crop(c: Inference) -> Shapes:
    channels = require_rank(c.dims(0), 4, c)[3]
    boxes, four = require_rank(c.dims(1), 2, c)
    (count,) = require_rank(c.dims(2), 1, c)
    merge_dim(four, 4, c)
    height, width = require_rank(c.constant_dims(3), 2, c)
    return [(merge_dim(boxes, count, c), height, width, channels)]


_BLOCKS = 'T: type, block_size: int >= 2, data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC"'

define(
    "ResizeBilinear(images: T, size: int32, *, T: {int8, uint8, int16, uint16, int32, int64, "
    "bfloat16, float16, float32, float64, bfloat16}, align_corners: bool = false, "
    "half_pixel_centers: bool = false) -> resized_images: float32",
    shape=_resize,
)
define(
    "ResizeNearestNeighbor(images: T, size: int32, *, T: {int8, uint8, int16, uint16, int32, "
    "int64, float16, float32, float64, bfloat16}, align_corners: bool = false, "
    "half_pixel_centers: bool = false) -> resized_images: T",
    shape=_resize,
)
define(
    "CropAndResize(image: T, boxes: float32, box_ind: int32, crop_size: int32, *, "
    "T: {uint8, uint16, int8, int16, int32, int64, float16, float32, float64}, "
    'method: {"bilinear", "nearest"} = "bilinear", extrapolation_value: float = 0.0) '
    "-> crops: float32",
    shape=_crop,
)
define(f"SpaceToDepth(input: T, *, {_BLOCKS}) -> output: T", shape=_space_to_depth)
define(f"DepthToSpace(input: T, *, {_BLOCKS}) -> output: T", shape=_depth_to_space)


# ==== functions ===================================================================================


class ResizeMethod(IntEnum):
    """How pixels between pixels are made up."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1


def resize_bilinear(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Return images of another size, float32: pixels are weighted means of their neighbours.

    Args:
        images: (batch, height, width, channels), real numbers.
        size: two integers, the new height and width.
        align_corners: whether the centres of the corner pixels stay where they are.
        name: of the operation.
        half_pixel_centers: whether a pixel's centre is half a pixel from its edge.

    Raises:
        InvalidArgumentError: when it runs: a size that is not positive, empty images.
    """
    return result(
        "ResizeBilinear",
        (images, size),
        name,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
    )


def resize_nearest_neighbor(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Return images of another size: copies of the nearest pixels; as `resize_bilinear`."""
    return result(
        "ResizeNearestNeighbor",
        (images, size),
        name,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
    )


def crop_and_resize(
    image: Any,
    boxes: Any,
    box_ind: Any = None,
    crop_size: Any = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: Any = None,
) -> Tensor:
    """Return boxes of images, each resized to one size, float32.

    Args:
        image: (batch, height, width, channels), real numbers.
        boxes: (n, 4), float32: top, left, bottom and right, 0 being the first pixel and 1 the last.
        box_ind: (n,), int32, the image of each box; `box_indices` is its new name.
        crop_size: two integers, height and width of the result.
        method: "bilinear" or "nearest".
        extrapolation_value: of pixels outside of the image.
        name: of the operation.

    Raises:
        OutOfRangeError: when it runs: an image that there is not; in JAX the crop is NaN instead.
    """
    owners = one_of("crop_and_resize", box_ind=box_ind, box_indices=box_indices)
    return result(
        "CropAndResize",
        (image, boxes, owners, crop_size),
        name,
        method=method.encode(),
        extrapolation_value=float(extrapolation_value),
    )


_METHODS = {
    ResizeMethod.BILINEAR: resize_bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: resize_nearest_neighbor,
}


def resize_images(
    images: Any,
    size: Any,
    method: int = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return one image or several of another size.

    Args:
        images: (height, width, channels) or (batch, height, width, channels).
        size: two integers, the new height and width.
        method: of `ResizeMethod`.
        align_corners: see `resize_bilinear`.
        preserve_aspect_ratio: not supported: give the size that keeps it.
        name: of the scope of its operations.

    Raises:
        ValueError: an unknown or other rank; a method that there is not.
    """
    if method not in _METHODS or preserve_aspect_ratio:
        raise ValueError(
            "resize_images: required method BILINEAR (0) or NEAREST_NEIGHBOR (1), and "
            f"preserve_aspect_ratio=False, got {method} and {preserve_aspect_ratio}"
        )
    with name_scope(name, "resize", [images]):
        x = convert_to_tensor(images, name="images")
        rank = x.shape.rank
        if rank not in {3, 4}:
            raise ValueError("'images' must have either 3 or 4 dimensions.")
        out = _METHODS[ResizeMethod(method)](
            expand_dims(x, 0) if rank == 3 else x, size, align_corners
        )
        return squeeze(out, [0]) if rank == 3 else out


resize = resize_images
