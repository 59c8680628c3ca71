"""Blocks of space as depth or batch: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor

__all__ = [
    "batch_to_space",
    "batch_to_space_nd",
    "depth_to_space",
    "space_to_batch",
    "space_to_batch_nd",
    "space_to_depth",
]


def space_to_batch_nd(
    input: Any,
    block_shape: Any,
    paddings: Any,
    name: str | None = None,
) -> Tensor:
    """Return the tensor, padded, with the places inside of blocks moved to the batch axis.

    Args:
        input: shape [batch, space..., rest...].
        block_shape: a vector with the extents of a block.
        paddings: shape [len(block_shape), 2], zeros before and after.
        name: of the operation.
    """
    return apply("SpaceToBatchND", (input, block_shape, paddings), None, name).outputs[0]


def batch_to_space_nd(
    input: Any,
    block_shape: Any,
    crops: Any,
    name: str | None = None,
) -> Tensor:
    """Return what `space_to_batch_nd` was given; `crops` cuts the padding off again."""
    return apply("BatchToSpaceND", (input, block_shape, crops), None, name).outputs[0]


def space_to_batch(
    input: Any,
    paddings: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """Return `space_to_batch_nd` with square blocks of two axes."""
    if block_shape is not None:
        return space_to_batch_nd(input, block_shape, paddings, name)
    return _of_images(space_to_batch_nd(input, [block_size, block_size], paddings, name))


def batch_to_space(
    input: Any,
    crops: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: Any = None,
) -> Tensor:
    """Return `batch_to_space_nd` with square blocks of two axes."""
    if block_shape is not None:
        return batch_to_space_nd(input, block_shape, crops, name)
    return _of_images(batch_to_space_nd(input, [block_size, block_size], crops, name))


def _of_images(tensor: Tensor) -> Tensor:
    """Return a tensor that is known to have four axes."""
    tensor.set_shape(tensor.shape.with_rank(4))
    return tensor


def space_to_depth(
    input: Any,
    block_size: int,
    name: str | None = None,
    data_format: str = "NHWC",
) -> Tensor:
    """Return images of which each square of pixels has become one with the channels of all.

    Args:
        input: images whose height and width are multiples of `block_size`.
        block_size: extent of a square, at least 2.
        name: of the operation.
        data_format: "NHWC" or "NCHW".
    """
    attrs = {"block_size": block_size, "data_format": data_format.encode()}
    return apply("SpaceToDepth", (input,), attrs, name).outputs[0]


def depth_to_space(
    input: Any,
    block_size: int,
    name: str | None = None,
    data_format: str = "NHWC",
) -> Tensor:
    """Return the images of which `space_to_depth` makes `input`; arguments as there."""
    attrs = {"block_size": block_size, "data_format": data_format.encode()}
    return apply("DepthToSpace", (input,), attrs, name).outputs[0]
