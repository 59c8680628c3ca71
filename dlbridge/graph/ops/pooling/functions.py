"""Pooling: what users call in `tf.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import one_of, padding_attributes, per_dimension
from dlbridge.proto.datatypes import as_dtype

__all__ = [
    "avg_pool",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_argmax",
]


def max_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return the maximum in each window of images.

    Args:
        value: images; `input` is its new name.
        ksize, strides: extents and distances of the windows: one number, two, or four.
        padding: "SAME", "VALID", or pairs for each dimension.
        data_format: "NHWC" or "NCHW".
        name: of the operation.
    """
    return _pool("MaxPool", value, ksize, strides, padding, data_format or "NHWC", name, input)


def avg_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str | None = None,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return the mean in each window of images without the padding; arguments as of `max_pool`."""
    return _pool("AvgPool", value, ksize, strides, padding, data_format or "NHWC", name, input)


avg_pool2d = avg_pool


def _pool_of(op_type: str, name: str, layout: str, images: str) -> Callable[..., Tensor]:
    def pool(
        input: Any,
        ksize: Any,
        strides: Any,
        padding: Any,
        data_format: str | None = layout,
        name: str | None = None,
    ) -> Tensor:
        return _pool(op_type, input, ksize, strides, padding, data_format or layout, name)

    what, like = ("maximum", "max_pool") if op_type.startswith("Max") else ("mean", "avg_pool")
    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""Return the {what} in each window of {images}; arguments as of `{like}`."""
    return pool


max_pool2d = _pool_of("MaxPool", "max_pool2d", "NHWC", "images")
max_pool3d = _pool_of("MaxPool3D", "max_pool3d", "NDHWC", "volumes")
avg_pool3d = _pool_of("AvgPool3D", "avg_pool3d", "NDHWC", "volumes")


def _pool(
    op_type: str,
    value: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str,
    name: str | None,
    input: Any = None,
) -> Tensor:
    x = one_of(op_type, value=value, input=input)
    count = len(data_format) - 2
    attrs = {
        "ksize": per_dimension(ksize, count, data_format, f"{op_type}: ksize"),
        "strides": per_dimension(strides, count, data_format, f"{op_type}: strides"),
        "data_format": data_format.encode(),
        **padding_attributes(padding, op_type),
    }
    return apply(op_type, (x,), attrs, name).outputs[0]


def max_pool_with_argmax(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NHWC",
    Targmax: object = None,  # noqa: N803
    name: str | None = None,
    output_dtype: object = None,
    include_batch_in_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maximum in each window of images, and where it is.

    Args:
        input: images, channels last.
        ksize, strides: extents and distances of the windows, four each.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        Targmax: dtype of the places, int64 by default; `output_dtype` is its new name.
        name: of the operation.
        include_batch_in_index: whether places are counted through the batch, or in each image.

    Returns:
        (maxima, places); a place is (row * width + column) * channels + channel.

    Raises:
        ValueError: another data format.
    """
    if data_format != "NHWC":
        raise ValueError("Data formats other than 'NHWC' are not yet supported")
    kind = as_dtype(Targmax or output_dtype or "int64")
    attrs = {
        "ksize": per_dimension(ksize, 2, data_format, "max_pool_with_argmax: ksize"),
        "strides": per_dimension(strides, 2, data_format, "max_pool_with_argmax: strides"),
        "padding": padding.encode(),
        "Targmax": kind,
        "include_batch_in_index": include_batch_in_index,
    }
    outputs = apply("MaxPoolWithArgmax", (input,), attrs, name).outputs
    return outputs[0], outputs[1]
