"""Batch and local response normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply, constant, convert_to_tensor, name_scope
from dlbridge.graph.core.inference import Inference, merge_dim, require_rank
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array import squeeze
from dlbridge.graph.ops.basic import stop_gradient
from dlbridge.graph.ops.shared import (
    LAYOUT,
    NUMBER,
    Shapes,
    at_most_one,
    define,
    one_of,
    result,
)
from dlbridge.proto.datatypes import float16, float32

__all__ = [
    "batch_norm_with_global_normalization", "batch_normalization", "fused_batch_norm",
    "l2_normalize", "local_response_normalization", "lrn", "moments",
]  # fmt: skip


# ==== op types ====================================================================================


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
    shape=lambda c: [require_rank(c.dims(0), 4, c)],
)


define(
    f"BatchNormWithGlobalNormalization(t: T, m: T, v: T, beta: T, gamma: T, *, T: {NUMBER}, "
    "variance_epsilon: float, scale_after_normalization: bool) -> result: T",
    shape=_global_norm,
)


# ==== functions ===================================================================================


# cuDNN takes no smaller one, and TensorFlow none anywhere.
_SMALLEST_EPSILON = 1.001e-5


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images with channels normalised, and the means and variances of these.

    Args:
        x: images or volumes.
        scale, offset: of each channel of the result, float32.
        mean, variance: of each channel; None in training, unless they are to be averaged.
        epsilon: added to the variance; at least 1.001e-5.
        data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW".
        is_training: whether mean and variance are those of `x`.
        name: of the operation.
        exponential_avg_factor: weight of those of `x` in an average with those given.
    """
    empty = constant([], float32) if mean is None or variance is None else None
    attrs = {
        "epsilon": max(epsilon, _SMALLEST_EPSILON),
        "data_format": data_format.encode(),
        "is_training": is_training,
        "exponential_avg_factor": float(exponential_avg_factor),
    }
    inputs = (
        x,
        convert_to_tensor(scale, float32, "scale"),
        convert_to_tensor(offset, float32, "offset"),
        empty if mean is None else mean,
        empty if variance is None else variance,
    )
    return apply("FusedBatchNormV3", inputs, attrs, name).outputs[:3]  # type: ignore[return-value]


def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any,
    scale: Any,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + offset.

    Args:
        x: floats, any shape.
        mean, variance: of a shape that broadcasts with `x`.
        offset, scale: likewise, or None.
        variance_epsilon: keeps the divisor from 0.
        name: of the scope of its operations.
    """
    with name_scope(name, "batchnorm", [x, mean, variance, scale, offset]):
        shifted = result("AddV2", (variance, variance_epsilon), "add")
        factor = result("Rsqrt", (shifted,))
        if scale is not None:
            factor = result("Mul", (factor, scale), "mul")
        if offset is None:
            scaled = result("Mul", (x, factor), "mul")
            rest = result("Mul", (result("Neg", (mean,)), factor), "mul")
        else:
            scaled = result("Mul", (x, factor), "mul")
            rest = result("Sub", (offset, result("Mul", (mean, factor), "mul")), "sub")
        return result("AddV2", (scaled, rest), "add")


def batch_norm_with_global_normalization(
    t: Any = None,
    m: Any = None,
    v: Any = None,
    beta: Any = None,
    gamma: Any = None,
    variance_epsilon: float | None = None,
    scale_after_normalization: bool | None = None,
    name: str | None = None,
    input: Any = None,
    mean: Any = None,
    variance: Any = None,
) -> Tensor:
    """Return `batch_normalization` of images, as its first form called it.

    Args:
        t, m, v: images, mean and variance; `input`, `mean` and `variance` are their new names.
        beta, gamma: offset and scale.
        variance_epsilon: keeps the divisor from 0.
        scale_after_normalization: whether `gamma` counts.
        name: of the scope of its operations.
    """
    call = "batch_norm_with_global_normalization"
    return batch_normalization(
        one_of(call, t=t, input=input),
        one_of(call, m=m, mean=mean),
        one_of(call, v=v, variance=variance),
        beta,
        gamma if scale_after_normalization else None,
        0.001 if variance_epsilon is None else variance_epsilon,
        name,
    )


def moments(
    x: Any,
    axes: Sequence[int] | int,
    shift: Any = None,  # noqa: ARG001
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a tensor along axes; float16 is computed in 32 bits.

    Args:
        x: floats.
        axes: along which to take them.
        shift: not used, as in TensorFlow.
        name: of the scope of its operations.
        keep_dims: whether the axes stay, with extent 1; `keepdims` is its new name.
    """
    keep = at_most_one("moments", False, keep_dims=keep_dims, keepdims=keepdims)
    with name_scope(name, "moments", [x, axes]):
        given = convert_to_tensor(x, name="x")
        y = given if given.dtype is not float16 else result("Cast", (given,), DstT=float32)
        mean = result("Mean", (y, _axes(axes)), "mean", keep_dims=True)
        squares = result("SquaredDifference", (y, stop_gradient(mean)))
        variance = result("Mean", (squares, _axes(axes)), "variance", keep_dims=True)
        if not keep:
            mean, variance = squeeze(mean, axes), squeeze(variance, axes)
        if y is not given:
            mean = result("Cast", (mean,), DstT=float16)
            variance = result("Cast", (variance,), DstT=float16)
        return mean, variance


def _axes(axes: Any) -> Any:
    """Return axes as an operand of a reduction."""
    return list(axes) if isinstance(axes, tuple) else axes


def l2_normalize(
    x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None
) -> Tensor:
    """Return a tensor divided by its Euclidean length along axes.

    Args:
        x: floats.
        axis: one axis or several, None for all; `dim` is its old name.
        epsilon: the least sum of squares that is divided by.
        name: of the last operation.
    """
    axis = at_most_one("l2_normalize", None, axis=axis, dim=dim)
    with name_scope(name, "l2_normalize", [x]) as full:
        x = convert_to_tensor(x, name="x")
        squares = result("Square", (x,))
        if axis is None:
            axis = list(range(x.shape.rank or 0)) if x.shape.rank is not None else _all_axes(x)
        total = result("Sum", (squares, _axes(axis)), keep_dims=True)
        factor = result("Rsqrt", (result("Maximum", (total, epsilon)),))
        return result("Mul", (x, factor), full)


def _all_axes(x: Tensor) -> Tensor:
    return result("Range", (0, result("Rank", (x,)), 1), "range")


def local_response_normalization(
    input: Any,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Return each channel, divided by (bias + alpha * squares of its neighbours) ** beta.

    Args:
        input: images, channels last.
        depth_radius: how many channels at each side count as neighbours.
        bias, alpha, beta: of the formula.
        name: of the operation.
    """
    attrs = {
        "depth_radius": depth_radius,
        "bias": float(bias),
        "alpha": float(alpha),
        "beta": float(beta),
    }
    return apply("LRN", (input,), attrs, name).outputs[0]


lrn = local_response_normalization
