"""Normalization by the mean and variance of channels, and over neighboring channels."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.graph.ops.images.declarations import LAYOUT
from dlbridge.graph.ops.nn.declarations import NUMBERS


def _batch_norm(c: Inference) -> Shapes:
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


def _lrn(c: Inference) -> Shapes:
    return [require_rank(c.dims(0), 4, c)]


def _global_norm(c: Inference) -> Shapes:
    dims = require_rank(c.dims(0), 4, c)
    channels = dims[3]
    for index in range(1, 5):
        (length,) = require_rank(c.dims(index), 1, c)
        channels = merge_dim(channels, length, c)
    return [(*dims[:3], channels)]


_TRAINING = "epsilon: float = 0.0001, exponential_avg_factor: float = 1.0"


define(
    "FusedBatchNorm(x: T, scale: T, offset: T, mean: T, variance: T, *, T: {float32}, "
    f"{_TRAINING}, {LAYOUT}, is_training: bool = true) "
    "-> (y: T, batch_mean: T, batch_variance: T, reserve_space_1: T, reserve_space_2: T)",
    shape=_batch_norm,
)


define(
    "FusedBatchNormV2(x: T, scale: U, offset: U, mean: U, variance: U, *, "
    "T: {float16, bfloat16, float32}, U: {float32}, "
    f"{_TRAINING}, {LAYOUT}, is_training: bool = true) "
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
    f"BatchNormWithGlobalNormalization(t: T, m: T, v: T, beta: T, gamma: T, *, T: {NUMBERS}, "
    "variance_epsilon: float, scale_after_normalization: bool) -> result: T",
    shape=_global_norm,
)
