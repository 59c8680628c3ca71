"""Images resized, and boxes cropped from them."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.shape import Dims


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


LAYOUT = 'data_format: {"NHWC", "NCHW"} = "NHWC"'
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
