"""Tile, pad and one-hot: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.blocks.functions import depth_to_space, space_to_depth
from dlbridge.graph.ops.functions import as_tensor
from dlbridge.proto.datatypes import DataType, as_dtype, float32

__all__ = [
    "depth_to_space",
    "one_hot",
    "pad",
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
        on = None if on_value is None else as_tensor(on_value, wanted, "Const")
        off = None if off_value is None else as_tensor(off_value, wanted, "Const")
        kinds = {each.dtype.base_dtype for each in (on, off) if each is not None}
        if wanted is not None:
            kinds.add(wanted)
        if len(kinds) > 1:
            raise TypeError(
                "one_hot: dtype, on_value and off_value must agree, got "
                + ", ".join(sorted(each.name for each in kinds))
            )
        kind: DataType = kinds.pop() if kinds else float32
        on = as_tensor(1, kind, "on_value") if on is None else on
        off = as_tensor(0, kind, "off_value") if off is None else off
        attrs = {"axis": -1 if axis is None else axis}
        return apply("OneHot", (indices, depth, on, off), attrs, scope).outputs[0]
