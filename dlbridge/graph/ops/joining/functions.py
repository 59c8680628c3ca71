"""Concatenate, stack and split: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, convert_to_tensor, graph_of
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_tensor

__all__ = ["concat", "parallel_stack", "split", "stack", "unstack"]


def concat(values: Any, axis: Any, name: str | None = "concat") -> Tensor:
    """Return tensors joined along an axis that they have.

    Args:
        values: tensors of one dtype and rank, whose other extents agree.
        axis: a scalar; negative ones count from the end.
        name: of the operation.
    """
    if not isinstance(values, list | tuple):
        values = [values]
    if len(values) > 1:
        return apply("ConcatV2", (values, axis), None, name or "concat").outputs[0]
    graph = graph_of((values, axis))
    with graph.as_default(), graph.name_scope(name or "concat"):
        place = as_tensor(axis, None, "concat_dim")
        if place._dims:
            raise ValueError(f"concat: axis must be a scalar, got shape {place.shape}")
        return apply("Identity", (values[0],), None, name or "concat").outputs[0]


def stack(values: Any, axis: int = 0, name: str | None = "stack") -> Tensor:
    """Return tensors of one shape joined along a new axis.

    Args:
        values: a list of tensors; numbers alone become a constant.
        axis: of the result; negative ones count from the end.
        name: of the operation.
    """
    name = name or "stack"
    if axis == 0:
        return convert_to_tensor(values, name=name)
    if isinstance(values, Tensor):
        values = unstack(values)
    return apply("Pack", (values,), {"axis": axis}, name).outputs[0]


def parallel_stack(values: Any, name: str | None = "parallel_stack") -> Tensor:
    """Return tensors of one known shape joined along a new first axis."""
    return apply("Pack", (values,), None, name or "parallel_stack").outputs[0]


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = "unstack"
) -> list[Tensor]:
    """Return the parts of a tensor along an axis, which they no longer have.

    Args:
        value: rank 1 or more.
        num: the extent of the axis; needed only where it is not known.
        axis: negative ones count from the end.
        name: of the operation.

    Raises:
        ValueError: `num` is needed, or differs from the extent.
    """
    name = name or "unstack"
    tensor = value
    if num is None:
        tensor = convert_to_tensor(value)
        num = _extent(tensor, axis)
    return list(apply("Unpack", (tensor,), {"num": num, "axis": axis}, name).outputs)


def _extent(tensor: Tensor, axis: int) -> int:
    dims = tensor._dims
    if dims is not None and not -len(dims) <= axis < len(dims):
        raise ValueError(f"Argument `axis` = {axis} not in range [{-len(dims)}, {len(dims)})")
    extent = None if dims is None else dims[axis]
    if extent is None:
        raise ValueError(f"Cannot infer argument `num` from shape {tensor.shape}")
    return extent


def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Tensor]:
    """Return a tensor cut along an axis.

    Args:
        value: rank 1 or more.
        num_or_size_splits: how many equal parts, or a vector of the parts' extents, one of which
            may be -1.
        axis: a scalar; negative ones count from the end.
        num: how many parts, where the vector's length is not known.
        name: of the operation.
    """
    name = name or "split"
    if isinstance(num_or_size_splits, int | np.integer):
        attrs = {"num_split": int(num_or_size_splits)}
        return list(apply("Split", (axis, value), attrs, name).outputs)
    with graph_of((value, num_or_size_splits, axis)).as_default():
        sizes = convert_to_tensor(num_or_size_splits)
    if sizes._dims == ():
        raise ValueError(
            "Rank-0 tensors are not supported as the num_or_size_splits argument to split. "
            f"Argument provided: {num_or_size_splits}"
        )
    if num is None:
        num = _extent(sizes, 0)
    return list(apply("SplitV", (value, sizes, axis), {"num_split": num}, name).outputs)
