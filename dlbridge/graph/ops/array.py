"""Shapes, and elements in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import apply, constant, graph_of
from dlbridge.graph.core.inference import (
    Inference,
    broadcast_dims,
    merge,
    merge_dim,
    require_rank,
    scalars,
    unchanged,
)
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Shapes, as_tensor, at_most_one, define, result, scope
from dlbridge.graph.ops.sparse_tensor import SparseTensor
from dlbridge.proto.datatypes import DataType, as_dtype, int32
from dlbridge.shape import Dims, TensorShape, as_shape

__all__ = [
    "broadcast_dynamic_shape", "broadcast_static_shape", "broadcast_to", "ensure_shape",
    "expand_dims", "identity_n", "invert_permutation", "rank", "reshape", "reverse",
    "reverse_sequence", "reverse_v2", "roll", "shape", "shape_n", "size", "squeeze", "transpose",
]  # fmt: skip


# ==== op types ====================================================================================


# ---- shapes as values --------------------------------------------------------------------------


def _shape(c: Inference) -> Shapes:
    return [(None if (dims := c.dims(i)) is None else len(dims),) for i in range(c.output_count)]


define(
    "Shape(input: T, *, T: type, out_type: {int32, int64} = int32) -> output: out_type",
    shape=_shape,
)
define(
    "ShapeN(input: N * T, *, N: int >= 1, T: type, out_type: {int32, int64} = int32) "
    "-> output: N * out_type",
    shape=_shape,
)
define(
    "Size(input: T, *, T: type, out_type: {int32, int64} = int32) -> output: out_type",
    shape=scalars,
)
define("Rank(input: T) -> output: int32", shape=scalars)
define(
    "IdentityN(input: list(T), *, T: list(type) >= 1) -> output: list(T)",
    shape=lambda c: [each._dims for each in c.inputs],
)


define(
    "EnsureShape(input: T, *, shape: shape, T: type) -> output: T",
    shape=lambda c: [merge(c.dims(0), c.attrs["shape"].dims, c)],
)


# ---- the same elements in another shape --------------------------------------------------------


def requested_dims(c: Inference, index: int) -> Dims | None:
    """Return the shape that an input asks for; raise where it cannot be one."""
    require_rank(c.dims(index), 1, c)
    value = c.constant(index)
    if value is None:
        return c.constant_dims(index)
    for dim in value:
        if dim < -1:
            raise c.error(f"Invalid value in tensor used for shape: {dim}")
    return tuple([None if dim < 0 else int(dim) for dim in value])


def _known_product(dims: Dims) -> int:
    """Return the product of the extents known; 0 where one is 0."""
    return prod([dim for dim in dims if dim is not None])


def _reshape(c: Inference) -> Shapes:
    before, after = c.dims(0), requested_dims(c, 1)
    if before is None or after is None:
        return [after]
    count, wanted = _known_product(before), _known_product(after)
    before_unknown = before.count(None) if count else 0
    after_unknown = after.count(None) if wanted else 0
    if not before_unknown and not after_unknown:
        if count != wanted and not (None in after and not wanted and not count):
            raise c.error(
                f"Cannot reshape a tensor with {count} elements to shape {list(after)} "
                f"({wanted} elements)"
            )
    elif not before_unknown and after_unknown == 1:
        missing = _divide(count, wanted, c)
        return [tuple([missing if dim is None else dim for dim in after])]
    elif before_unknown == 1 and not after_unknown:
        _divide(wanted, count, c)
    return [after]


def _divide(count: int, divisor: int, c: Inference) -> int:
    if count % divisor:
        raise c.error(f"Dimension size must be evenly divisible by {divisor} but is {count}")
    return count // divisor


define(
    "Reshape(tensor: T, shape: Tshape, *, T: type, Tshape: {int32, int64} = int32) -> output: T",
    shape=_reshape,
)


def normalize_axis(axis: int, rank: int, c: Inference) -> int:
    """Return an axis counted from the front; raise where there is none of that number."""
    if not -rank <= axis < rank:
        raise c.error(f"axis {axis} not in [{-rank}, {rank})")
    return axis % rank


def _squeeze(c: Inference) -> Shapes:
    dims = c.dims(0)
    if dims is None:
        return [None]
    rank = len(dims)
    axes = {normalize_axis(axis, rank, c) for axis in c.attrs["squeeze_dims"]}
    for axis in sorted(axes):
        if dims[axis] not in (1, None):
            raise c.error(
                f"Can not squeeze dim[{axis}], expected a dimension of 1, got {dims[axis]}"
            )
    if axes:
        return [tuple([dim for i, dim in enumerate(dims) if i not in axes])]
    return [None] if None in dims else [tuple([dim for dim in dims if dim != 1])]


define("Squeeze(input: T, *, T: type, squeeze_dims: list(int) >= 0 = []) -> output: T",
       shape=_squeeze)  # fmt: skip


def _expand_dims(c: Inference) -> Shapes:
    axis_dims, dims = c.dims(1), c.dims(0)
    if axis_dims is not None and None not in axis_dims and _known_product(axis_dims) != 1:
        raise c.error("'dim' input must be a tensor with a single value")
    if dims is None:
        return [None]
    axis = c.constant(1)
    rank = len(dims)
    if axis is None:
        return [(None,) * (rank + 1)]
    place = int(axis.reshape(-1)[0])
    if not -rank - 1 <= place <= rank:
        raise c.error(f"dim {place} not in the interval [{-rank - 1}, {rank}].")
    place %= rank + 1
    return [(*dims[:place], 1, *dims[place:])]


define(
    "ExpandDims(input: T, dim: Tdim, *, T: type, Tdim: {int32, int64} = int32) -> output: T",
    shape=_expand_dims,
)


# ---- axes in another order ---------------------------------------------------------------------


def _transpose(c: Inference) -> Shapes:
    dims, perm_dims, perm = c.dims(0), c.dims(1), c.constant(1)
    if perm_dims is not None and len(perm_dims) != 1:
        raise c.error(f"perm must be a vector, got a shape of rank {len(perm_dims)}")
    length = None if perm_dims is None else perm_dims[0]
    if dims is None:
        if length is None:
            return [None]
        dims = require_rank(None, length, c)
    rank = len(dims)
    if length is not None and length != rank:
        raise c.error(f"perm must have {rank} elements, one for each axis, but has {length}")
    if perm is None:
        return [(None,) * rank]
    for axis in perm:
        if not -rank <= axis < rank:
            raise c.error(f"perm dim {axis} is out of range of input rank {rank}")
    return [tuple([dims[axis] for axis in perm])]


for _type in ("Transpose", "ConjugateTranspose"):
    define(
        f"{_type}(x: T, perm: Tperm, *, T: type, Tperm: {{int32, int64}} = int32) -> y: T",
        shape=_transpose,
    )


define(
    "InvertPermutation(x: T, *, T: {int32, int64} = int32) -> y: T",
    shape=lambda c: [require_rank(c.dims(0), 1, c)],
)

_REVERSIBLE = (
    "bool, bfloat16, float16, float32, float64, complex64, complex128, string, "
    "uint8, int8, uint16, int16, uint32, int32, uint64, int64"
)


def _reverse(c: Inference) -> Shapes:
    dims, flags = c.dims(0), require_rank(c.dims(1), 1, c)[0]
    if dims is not None and len(dims) > 8:
        raise c.error("reverse does not work on tensors with more than 8 dimensions")
    if dims is None:
        return [None if flags is None else require_rank(None, flags, c)]
    return [dims if flags is None else require_rank(dims, flags, c)]


def _reverse_v2(c: Inference) -> Shapes:
    dims, axes = c.dims(0), c.constant(1)
    require_rank(c.dims(1), 1, c)
    if dims is None:
        return [None]
    if len(dims) > 8:
        raise c.error("reverse does not work on tensors with more than 8 dimensions")
    found = [normalize_axis(int(axis), len(dims), c) for axis in (() if axes is None else axes)]
    if len(set(found)) < len(found):
        raise c.error(f"axis {found} names an axis twice")
    return [dims]


define(f"Reverse(tensor: T, dims: bool, *, T: {{{_REVERSIBLE}}}) -> output: T", shape=_reverse)
define(
    f"ReverseV2(tensor: T, axis: Tidx, *, Tidx: {{int32, int64}} = int32, T: {{{_REVERSIBLE}}}) "
    "-> output: T",
    shape=_reverse_v2,
)


def _reverse_sequence(c: Inference) -> Shapes:
    dims, lengths = c.dims(0), require_rank(c.dims(1), 1, c)
    if dims is None:
        return [None]
    for name in ("seq_dim", "batch_dim"):
        if not 0 <= c.attrs[name] < len(dims):
            raise c.error(f"{name} must be < input rank, {c.attrs[name]} vs. {len(dims)}")
    batch = c.attrs["batch_dim"]
    merged = merge((dims[batch],), lengths, c)
    assert merged is not None
    return [(*dims[:batch], *merged, *dims[batch + 1 :])]


define(
    "ReverseSequence(input: T, seq_lengths: Tlen, *, seq_dim: int, batch_dim: int = 0, T: type, "
    "Tlen: {int32, int64} = int64) -> output: T",
    shape=_reverse_sequence,
)


# ---- broadcast ---------------------------------------------------------------------------------


def _broadcast_to(c: Inference) -> Shapes:
    dims, wanted = c.dims(0), requested_dims(c, 1)
    if dims is None or wanted is None:
        return [wanted]
    if len(dims) > len(wanted):
        raise c.error(f"Shape of rank {len(dims)} cannot be broadcast to rank {len(wanted)}")
    found = list(wanted)
    for i, dim in enumerate(reversed(dims), 1):
        if dim not in (1, None):
            found[-i] = merge_dim(dim, found[-i], c)
    return [tuple(found)]


define(
    "BroadcastTo(input: T, shape: Tidx, *, T: type, Tidx: {int32, int64} = int32) -> output: T",
    shape=_broadcast_to,
)


def _broadcast_args(c: Inference) -> Shapes:
    one, other = require_rank(c.dims(0), 1, c)[0], require_rank(c.dims(1), 1, c)[0]
    first, second = c.constant_dims(0), c.constant_dims(1)
    if first is not None and second is not None and None not in first + second:
        broadcast_dims(first, second, c)
    return [(None if one is None or other is None else max(one, other),)]


define("BroadcastArgs(s0: T, s1: T, *, T: {int32, int64} = int32) -> r0: T", shape=_broadcast_args)


def _roll(c: Inference) -> Shapes:
    dims = c.dims(0)
    if dims is not None and not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    for i in (1, 2):
        other = c.dims(i)
        if other is not None and len(other) > 1:
            raise c.error(f"Shape must be at most rank 1 but is rank {len(other)}")
    merge(c.dims(1), c.dims(2), c)
    return unchanged(c)


define(
    "Roll(input: T, shift: Tshift, axis: Taxis, *, T: type, Tshift: {int32, int64}, "
    "Taxis: {int32, int64}) -> output: T",
    shape=_roll,
)


# ==== functions ===================================================================================


# ---- shapes as values --------------------------------------------------------------------------


def shape(input: Any, name: str | None = None, out_type: object = int32) -> Tensor:
    """Return the shape of a tensor as a vector of integers.

    A constant where the shape is known while the graph is built.

    Args:
        input: a tensor of any shape, or a SparseTensor.
        name: of the operation.
        out_type: int32 or int64.
    """
    return _of_shape("Shape", input, name, out_type, lambda dims: dims)


def size(input: Any, name: str | None = None, out_type: object = int32) -> Tensor:
    """Return the number of elements of a tensor as a scalar of `out_type`, int32 or int64."""
    return _of_shape("Size", input, name, out_type, math.prod)


def _of_shape(op_type: str, value: Any, name: str | None, out_type: object, of: Any) -> Tensor:
    kind: DataType = int32 if out_type is None else as_dtype(out_type)
    if isinstance(value, SparseTensor):
        with scope(name, op_type, (value.values,)) as full:
            extents = result("Cast", (value.dense_shape,), DstT=kind)
            return extents if op_type == "Shape" else result("Prod", (extents, 0), full)
    with scope(name, op_type, (value,)) as full:
        tensor = as_tensor(value, None, "input")
        dims = tensor._dims
        if dims is not None and None not in dims:
            return constant(of(dims) if dims else np.array(of(dims), kind.numpy), kind, name=full)
        return result(op_type, (tensor,), full, out_type=kind)


def rank(input: Any, name: str | None = None) -> Tensor:
    """Return the number of axes of a tensor as an int32 scalar; a constant where it is known."""
    if isinstance(input, SparseTensor):
        return result("Size", (input.dense_shape,), name or "Rank")
    with scope(name, "Rank", (input,)) as full:
        tensor = as_tensor(input, None, "input")
        if tensor._dims is not None:
            return constant(len(tensor._dims), int32, name=full)
        return result("Rank", (tensor,), full)


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
