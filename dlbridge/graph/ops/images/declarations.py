"""Op types that normalise channels, resize images, and move blocks of them around."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.nn.declarations import NUMBERS
from dlbridge.shape import Dims


def _batch_norm(c: Inference) -> list[Dims | None]:
    """The input's shape, then vectors of its channels; one reserve of V3 has no shape."""
    data_format = c.attrs["data_format"]
    dims = require_rank(c.dims(0), len(data_format), c)
    axis = 1 if data_format[1:2] == b"C" else len(dims) - 1
    channels = dims[axis]
    statistics = (1, 2) if c.attrs["is_training"] else (1, 2, 3, 4)
    for index in statistics:  # in training mean and variance may be empty
        (length,) = require_rank(c.dims(index), 1, c)
        channels = merge_dim(channels, length, c)
    out = (*dims[:axis], channels, *dims[axis + 1 :])
    return [out, *[(channels,)] * 4, *[None] * (c.output_count - 5)]


def _lrn(c: Inference) -> list[Dims | None]:
    return [require_rank(c.dims(0), 4, c)]


def _resize(c: Inference) -> list[Dims | None]:
    batch, _, _, channels = require_rank(c.dims(0), 4, c)
    height, width = require_rank(c.constant_dims(1), 2, c)
    return [(batch, height, width, channels)]


def _space_to_depth(c: Inference) -> list[Dims | None]:
    dims, channel, size = _blocks(c)
    spatial = {1, 2, 3} - {channel}
    out = [_divided(c, dim, size) if i in spatial else dim for i, dim in enumerate(dims)]
    depth = dims[channel]
    out[channel] = None if depth is None else depth * size * size
    return [tuple(out)]


def _depth_to_space(c: Inference) -> list[Dims | None]:
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


def _global_norm(c: Inference) -> list[Dims | None]:
    dims = require_rank(c.dims(0), 4, c)
    channels = dims[3]
    for index in range(1, 5):
        (length,) = require_rank(c.dims(index), 1, c)
        channels = merge_dim(channels, length, c)
    return [(*dims[:3], channels)]


def _crop(c: Inference) -> list[Dims | None]:
    channels = require_rank(c.dims(0), 4, c)[3]
    boxes, four = require_rank(c.dims(1), 2, c)
    (count,) = require_rank(c.dims(2), 1, c)
    merge_dim(four, 4, c)
    height, width = require_rank(c.constant_dims(3), 2, c)
    return [(merge_dim(boxes, count, c), height, width, channels)]


_LAYOUT = 'data_format: {"NHWC", "NCHW"} = "NHWC"'
_TRAINING = "epsilon: float = 0.0001, exponential_avg_factor: float = 1.0"
_BLOCKS = 'T: type, block_size: int >= 2, data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC"'

define(
    "FusedBatchNorm(x: T, scale: T, offset: T, mean: T, variance: T, *, T: {float32}, "
    f"{_TRAINING}, {_LAYOUT}, is_training: bool = true) "
    "-> (y: T, batch_mean: T, batch_variance: T, reserve_space_1: T, reserve_space_2: T)",
    shape=_batch_norm,
)
define(
    "FusedBatchNormV2(x: T, scale: U, offset: U, mean: U, variance: U, *, "
    "T: {float16, bfloat16, float32}, U: {float32}, "
    f"{_TRAINING}, {_LAYOUT}, is_training: bool = true) "
    "-> (y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U)",
    shape=_batch_norm,
)
define(
    "FusedBatchNormV3(x: T, scale: U, offset: U, mean: U, variance: U, *, "
    "T: {float16, bfloat16, float32}, U: {bfloat16, float32}, "
    f'{_TRAINING}, data_format: {{"NHWC", "NCHW", "NDHWC", "NCDHW"}} = "NHWC", '
    "is_training: bool = true) -> (y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, "
    "reserve_space_2: U, reserve_space_3: U)",
    shape=_batch_norm,
)
define(
    "LRN(input: T, *, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, "
    "beta: float = 0.5, T: {float16, bfloat16, float32} = float32) -> output: T",
    shape=_lrn,
)
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
    f"BatchNormWithGlobalNormalization(t: T, m: T, v: T, beta: T, gamma: T, *, T: {NUMBERS}, "
    "variance_epsilon: float, scale_after_normalization: bool) -> result: T",
    shape=_global_norm,
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
