"""More elements than came in, and blocks of space that become depth or batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.array.functions import as_tensor
from dlbridge.graph.ops.windows.pools import depth_to_space, space_to_depth
from dlbridge.proto.datatypes import DataType, as_dtype, float32

__all__ = [
    "batch_to_space",
    "batch_to_space_nd",
    "depth_to_space",
    "one_hot",
    "pad",
    "space_to_batch",
    "space_to_batch_nd",
    "space_to_depth",
    "tile",
]


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """Return the tensor repeated along each axis.

    Args:
        input: of any shape.
        multiples: a vector with a count for each axis.
        name: of the operation.
    """
    return apply("Tile", (input, multiples), None, name).outputs[0]


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> Tensor:
    """Return the tensor with elements added around it.

    Args:
        tensor: of any shape.
        paddings: shape [rank, 2]: how many come before and after along each axis.
        mode: "CONSTANT", "REFLECT" (mirrored at the outermost element) or "SYMMETRIC" (mirrored
            behind it), in any case.
        name: of the operation.
        constant_values: the scalar to add.
    """
    how = mode.upper()
    if how == "CONSTANT":
        is_zero = np.isscalar(constant_values) and constant_values == 0
        if is_zero:
            return apply("Pad", (tensor, paddings), None, name).outputs[0]
        return apply("PadV2", (tensor, paddings, constant_values), None, name).outputs[0]
    if how not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(
            "Value of argument `mode` expected to be one of CONSTANT, REFLECT, or SYMMETRIC. "
            f"Received `mode` = {mode}"
        )
    return apply("MirrorPad", (tensor, paddings), {"mode": how.encode()}, name).outputs[0]


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """Return a tensor with an axis more, along which one element is on and the others are off.

    Args:
        indices: integers; those outside of [0, depth) give no element that is on.
        depth: a scalar, the extent of the new axis.
        on_value: a scalar, 1 by default.
        off_value: a scalar of the same dtype, 0 by default.
        axis: of the result, the last one by default.
        dtype: of the result; float32 unless a value says otherwise.
        name: of the operation.

    Raises:
        TypeError: a value is not of `dtype`, or they differ.
    """
    graph = graph_of((indices, depth, on_value, off_value))
    with graph.as_default(), graph.name_scope(name or "one_hot") as scope:
        wanted = None if dtype is None else as_dtype(dtype)
        on = None if on_value is None else as_tensor(on_value, "Const", wanted)
        off = None if off_value is None else as_tensor(off_value, "Const", wanted)
        kinds = {each.dtype.base_dtype for each in (on, off) if each is not None}
        if wanted is not None:
            kinds.add(wanted)
        if len(kinds) > 1:
            raise TypeError(
                "one_hot: dtype, on_value and off_value must agree, got "
                + ", ".join(sorted(each.name for each in kinds))
            )
        kind: DataType = kinds.pop() if kinds else float32
        on = as_tensor(1, "on_value", kind) if on is None else on
        off = as_tensor(0, "off_value", kind) if off is None else off
        attrs = {"axis": -1 if axis is None else axis}
        return apply("OneHot", (indices, depth, on, off), attrs, scope).outputs[0]


# ---- blocks ------------------------------------------------------------------------------------


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
