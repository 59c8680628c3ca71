"""Shapes, and elements in another order: what users call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import apply, constant, graph_of
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_tensor, at_most_one
from dlbridge.proto.datatypes import DataType, as_dtype, int32
from dlbridge.shape import TensorShape, as_shape

__all__ = [
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "ensure_shape",
    "expand_dims",
    "identity_n",
    "invert_permutation",
    "rank",
    "reshape",
    "reverse",
    "reverse_sequence",
    "reverse_v2",
    "roll",
    "shape",
    "shape_n",
    "size",
    "squeeze",
    "transpose",
]


# ---- shapes as values --------------------------------------------------------------------------


def shape(input: Any, name: str | None = None, out_type: object = int32) -> Tensor:
    """Return the shape of a tensor as a vector of integers.

    A constant where the shape is known while the graph is built.

    Args:
        input: a tensor of any shape.
        name: of the operation.
        out_type: int32 or int64.
    """
    return _of_shape("Shape", input, name, out_type, lambda dims: dims)


def size(input: Any, name: str | None = None, out_type: object = int32) -> Tensor:
    """Return the number of elements of a tensor as a scalar of `out_type`, int32 or int64."""
    return _of_shape("Size", input, name, out_type, math.prod)


def _of_shape(op_type: str, value: Any, name: str | None, out_type: object, of: Any) -> Tensor:
    graph = graph_of((value,))
    kind: DataType = int32 if out_type is None else as_dtype(out_type)
    with graph.as_default(), graph.name_scope(name or op_type) as scope:
        tensor = as_tensor(value, None, "input")
        dims = tensor._dims
        if dims is not None and None not in dims:
            return constant(of(dims) if dims else np.array(of(dims), kind.numpy), kind, name=scope)
        return apply(op_type, (tensor,), {"out_type": kind}, scope).outputs[0]


def rank(input: Any, name: str | None = None) -> Tensor:
    """Return the number of axes of a tensor as an int32 scalar; a constant where it is known."""
    graph = graph_of((input,))
    with graph.as_default(), graph.name_scope(name or "Rank") as scope:
        tensor = as_tensor(input, None, "input")
        if tensor._dims is not None:
            return constant(len(tensor._dims), int32, name=scope)
        return apply("Rank", (tensor,), None, scope).outputs[0]


def shape_n(input: Any, out_type: object = int32, name: str | None = None) -> list[Tensor]:
    """Return the shapes of several tensors of one dtype, a vector of `out_type` for each."""
    return list(apply("ShapeN", (input,), {"out_type": as_dtype(out_type)}, name).outputs)


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """Return the shape that two shapes, vectors of integers, are broadcast to."""
    return apply("BroadcastArgs", (shape_x, shape_y)).outputs[0]


def identity_n(input: Any, name: str | None = None) -> list[Tensor]:
    """Return tensors of the same values as a list of tensors has; all run together."""
    return list(apply("IdentityN", (input,), None, name).outputs)


def ensure_shape(x: Any, shape: object, name: str | None = None) -> Tensor:
    """Return the same tensor, whose shape is checked in each run and known from here on.

    Raises:
        InvalidArgumentError: when run, of another shape.
    """
    return apply("EnsureShape", (x,), {"shape": as_shape(shape)}, name).outputs[0]


# ---- the same elements in another shape --------------------------------------------------------


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """Return the same elements, in row-major order, in another shape.

    Args:
        tensor: of any shape.
        shape: a vector of int32 or int64; one entry may be -1 and is worked out.
        name: of the operation.

    Raises:
        ValueError: the number of elements is known to differ.
        InvalidArgumentError: when run, if it differs.
    """
    return apply("Reshape", (tensor, shape), None, name).outputs[0]


def squeeze(
    input: Any,
    axis: int | Sequence[int] | None = None,
    name: str | None = None,
    squeeze_dims: int | Sequence[int] | None = None,
) -> Tensor:
    """Return the tensor without its axes of extent 1, or without those in `axis`.

    Args:
        input: of any shape.
        axis: an index or several; negative ones count from the end.
        name: of the operation.
        squeeze_dims: the older name of `axis`.
    """
    axes = at_most_one("squeeze", (), axis=axis, squeeze_dims=squeeze_dims)
    if isinstance(axes, int | np.integer):
        axes = (axes,)
    attrs = {"squeeze_dims": [int(each) for each in axes]}
    return apply("Squeeze", (input,), attrs, name).outputs[0]


def expand_dims(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dim: Any = None,
) -> Tensor:
    """Return the tensor with an axis of extent 1 more, at index `axis`.

    Args:
        input: of any shape.
        axis: an index in the result's shape; negative ones count from the end.
        name: of the operation.
        dim: the older name of `axis`.
    """
    place = at_most_one("expand_dims", None, axis=axis, dim=dim)
    if place is None:
        raise ValueError("Must specify an axis argument to tf.expand_dims()")
    return apply("ExpandDims", (input, place), None, name).outputs[0]


# ---- axes and elements in another order --------------------------------------------------------


def transpose(
    a: Any, perm: Any = None, name: str | None = "transpose", conjugate: bool = False
) -> Tensor:
    """Return the tensor with its axes in another order.

    Args:
        a: of any shape.
        perm: for each axis of the result, the axis of `a`; by default all in reverse order.
        name: of the operation.
        conjugate: whether to conjugate complex elements.
    """
    graph = graph_of((a, perm))
    with graph.as_default(), graph.name_scope(name or "transpose") as scope:
        tensor = as_tensor(a, None, "a")
        if perm is None:
            if tensor._dims is not None:
                perm = np.arange(len(tensor._dims) - 1, -1, -1, dtype=np.int32)
            else:
                count = apply("Rank", (tensor,)).outputs[0]
                last = apply("Sub", (count, 1), None, "sub").outputs[0]
                perm = apply("Range", (last, -1, -1)).outputs[0]
        is_conjugate = conjugate and tensor.dtype.is_complex
        op_type = "ConjugateTranspose" if is_conjugate else "Transpose"
        return apply(op_type, (tensor, perm), None, scope).outputs[0]


def invert_permutation(x: Any, name: str | None = None) -> Tensor:
    """Return the vector y with y[x[i]] = i, for x a permutation of 0 to n - 1."""
    return apply("InvertPermutation", (x,), None, name).outputs[0]


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """Return the tensor with the order along some axes reversed.

    Args:
        tensor: of rank 8 or less.
        axis: a vector of axes; negative ones count from the end.
        name: of the operation.
    """
    return apply("ReverseV2", (tensor, axis), None, name).outputs[0]


reverse_v2 = reverse


def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """Return the tensor with the first elements of each sequence reversed, the rest as they are.

    Args:
        input: rank 2 or more.
        seq_lengths: for each entry along `batch_axis`, how many elements are reversed.
        seq_axis: the axis along which they are reversed.
        batch_axis: the axis of the entries, 0 by default.
        name: of the operation.
        seq_dim: the older name of `seq_axis`.
        batch_dim: the older name of `batch_axis`.
    """
    attrs = {
        "seq_dim": at_most_one("reverse_sequence", None, seq_axis=seq_axis, seq_dim=seq_dim),
        "batch_dim": at_most_one("reverse_sequence", 0, batch_axis=batch_axis, batch_dim=batch_dim),
    }
    if attrs["seq_dim"] is None:
        raise ValueError("reverse_sequence: required seq_axis, got none")
    return apply("ReverseSequence", (input, seq_lengths), attrs, name).outputs[0]


# ---- broadcast ---------------------------------------------------------------------------------


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """Return the tensor repeated along axes of extent 1, or new leading axes, to a shape."""
    return apply("BroadcastTo", (input, shape), None, name).outputs[0]


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """Return the tensor with its elements moved along axes; those pushed out come in again.

    Args:
        input: rank 1 or more.
        shift: how far along each axis, an integer or a vector.
        axis: which axes, of the shape of `shift`.
        name: of the operation.
    """
    return apply("Roll", (input, shift, axis), None, name).outputs[0]


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
