"""Elements moved around an axis, and tensors dealt out and put together by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype, float32, int32
from dlbridge.shape import TensorShape, as_shape

__all__ = [
    "broadcast_static_shape",
    "dynamic_partition",
    "dynamic_stitch",
    "guarantee_const",
    "roll",
    "setdiff1d",
    "string_to_number",
    "unravel_index",
]


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """Return the tensor with its elements moved along axes; those pushed out come in again.

    Args:
        input: rank 1 or more.
        shift: how far along each axis, an integer or a vector.
        axis: which axes, of the shape of `shift`.
        name: of the operation.
    """
    return apply("Roll", (input, shift, axis), None, name).outputs[0]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Return the slices of a tensor dealt out to several.

    Args:
        data: its shape starts with that of `partitions`.
        partitions: int32, for each slice the number of the result that it goes to.
        num_partitions: how many results.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, there is no result of that number.
    """
    attrs = {"num_partitions": num_partitions}
    return list(apply("DynamicPartition", (data, partitions), attrs, name).outputs)


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Return one tensor put together of slices: what `dynamic_partition` undoes.

    Args:
        indices: a list of int32 tensors: where each slice goes. The last one to name a place wins.
        data: a list of tensors whose shapes start with those of `indices`.
        name: of the operation.
    """
    return apply("DynamicStitch", (indices, data), None, name).outputs[0]


def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Tensor:
    """Return row-major positions as vectors of indices, one column for each.

    Args:
        indices: a scalar or a vector of integers.
        dims: the shape that they are positions in.
        name: of the operation.
    """
    return apply("UnravelIndex", (indices, dims), None, name).outputs[0]


def setdiff1d(
    x: Any, y: Any, index_dtype: object = int32, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the elements of vector x that are not in vector y, in order, and their positions."""
    op = apply("ListDiff", (x, y), {"out_idx": as_dtype(index_dtype)}, name)
    return op.outputs[0], op.outputs[1]


def guarantee_const(input: Any, name: str | None = None) -> Tensor:
    """Return the same tensor, of which the caller promises that it never changes."""
    return apply("GuaranteeConst", (input,), None, name).outputs[0]


def string_to_number(
    string_tensor: Any = None,
    out_type: object = float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return numbers that stand in strings.

    Args:
        string_tensor: strings.
        out_type: the dtype of the numbers.
        name: of the operation.
        input: the newer name of `string_tensor`.
    """
    value = input if string_tensor is None else string_tensor
    attrs = {"out_type": as_dtype(out_type)}
    return apply("StringToNumber", (value,), attrs, name).outputs[0]


def broadcast_static_shape(shape_x: object, shape_y: object) -> TensorShape:
    """Return the shape that two shapes are broadcast to, as far as it is known.

    Raises:
        ArgumentError: a ValueError; they do not fit.
    """
    one, other = as_shape(shape_x).dims, as_shape(shape_y).dims
    if one is None or other is None:
        return as_shape(None)
    rank = max(len(one), len(other))
    pairs = zip(_padded(one, rank), _padded(other, rank), strict=True)
    dims = []
    for a, b in pairs:
        if a == 1 or b == 1 or a == b:
            dims.append(b if a == 1 else a)
        elif a is None or b is None:
            dims.append(b if a is None else a)
        else:
            raise ArgumentError(f"Incompatible shapes for broadcasting: {shape_x} and {shape_y}")
    return as_shape(dims)


def _padded(dims: Sequence[int | None], rank: int) -> tuple[int | None, ...]:
    return (1,) * (rank - len(dims)) + tuple(dims)
