"""Shapes as values, and the same elements in another shape.

Results may be views of inputs: no kernel ever writes into what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.remembering import remember

Kernel = Callable[..., Any]


def text(dims: Sequence[int]) -> str:
    """Return a shape as TensorFlow's messages have it: `[2,3]`."""
    return f"[{','.join(map(str, dims))}]"


def vector(value: Any, name: str, node: Node) -> list[Any]:
    """Return an input that must be a vector as a list.

    Raises:
        InvalidArgumentError: it has another rank.
    """
    if len(value.shape) != 1:
        raise InvalidArgumentError(
            f"{node.type}: {name} must be a vector, got shape {text(value.shape)}", node
        )
    found: list[Any] = value.tolist()
    return found


def normalized(axis: int, rank: int, node: Node) -> int:
    """Return an axis counted from the front.

    Raises:
        InvalidArgumentError: there is none of that number.
    """
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"{node.type}: axis must be in the range [{-rank}, {rank}) of a tensor of rank {rank}, "
            f"got {axis}",
            node,
        )
    return axis % rank


# ---- shapes as values --------------------------------------------------------------------------


def _extents(values: Any, dtype: Any, node: Node) -> Any:
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise InvalidArgumentError(
            f"{node.type}: out_type is {np.dtype(dtype).name}, which {values} does not fit; "
            "use out_type=int64",
            node,
        ) from None


@kernel("Shape", host_result=True)
def shape(node: Node, context: Context) -> Kernel:
    dtype = node.attrs["out_type"].numpy
    return lambda x: _extents(tuple(x.shape), dtype, node)


@kernel("ShapeN", host_result=True)
def shape_n(node: Node, context: Context) -> Kernel:
    dtype = node.attrs["out_type"].numpy
    if len(node.output_types) == 1:
        return lambda x: _extents(tuple(x.shape), dtype, node)
    return lambda *values: tuple([_extents(tuple(x.shape), dtype, node) for x in values])


@kernel("Size", host_result=True)
def size(node: Node, context: Context) -> Kernel:
    dtype = node.attrs["out_type"].numpy
    return lambda x: _extents(prod(x.shape), dtype, node)


@kernel("Rank", host_result=True)
def rank(node: Node, context: Context) -> Kernel:
    return lambda x: np.array(len(x.shape), np.int32)


@kernel("IdentityN")
def identity_n(node: Node, context: Context) -> Kernel:
    if len(node.output_types) == 1:
        return lambda x: x
    return lambda *values: values


@kernel("EnsureShape")
def ensure_shape(node: Node, context: Context) -> Kernel:
    wanted = node.attrs["shape"]

    def ensure(x: Any) -> Any:
        if not wanted.is_compatible_with(tuple(x.shape)):
            raise InvalidArgumentError(
                f"Shape of tensor {node.name} {text(x.shape)} is not compatible with expected "
                f"shape {wanted}",
                node,
            )
        return x

    return ensure


# ---- the same elements in another shape --------------------------------------------------------


@kernel("Reshape", host=(1,))
def reshape(node: Node, context: Context) -> Kernel:
    target = remember(
        node, (1,), lambda dims, wanted: target_shape(dims, vector(wanted, "shape", node), node)
    )
    return lambda x, wanted: x.reshape(target(x.shape, wanted))


def target_shape(before: Sequence[int], wanted: list[int], node: Node) -> tuple[int, ...]:
    """Return the shape of a result of Reshape, its -1 replaced."""
    count = prod(before)
    if -1 in wanted:
        wanted = _infer(count, wanted, node)
    if prod(wanted) != count or min(wanted, default=0) < 0:
        raise InvalidArgumentError(
            f"Input to reshape is a tensor with {count} values, but the requested shape "
            f"{text(wanted)} has {prod(wanted)}",
            node,
        )
    return tuple(wanted)


def _infer(count: int, wanted: list[int], node: Node) -> list[int]:
    at = wanted.index(-1)
    others = prod(wanted[:at] + wanted[at + 1 :])
    if -1 in wanted[at + 1 :]:
        raise InvalidArgumentError(
            f"Only one input size may be -1, not both {at} and {wanted.index(-1, at + 1)}", node
        )
    if others == 0:
        raise InvalidArgumentError(
            "reshape cannot infer the missing input size for an empty tensor unless all "
            f"specified input sizes are non-zero, got {text(wanted)}",
            node,
        )
    if count % others:
        raise InvalidArgumentError(
            f"Input to reshape is a tensor with {count} values, but the requested shape "
            f"{text(wanted)} requires a multiple of {others}",
            node,
        )
    return [*wanted[:at], count // others, *wanted[at + 1 :]]


@kernel("Squeeze")
def squeeze(node: Node, context: Context) -> Kernel:
    axes = node.attrs["squeeze_dims"]
    if not axes:
        return lambda x: x.reshape(tuple([dim for dim in x.shape if dim != 1]))
    return lambda x: x.reshape(_squeezed(tuple(x.shape), axes, node))


def _squeezed(dims: tuple[int, ...], axes: Sequence[int], node: Node) -> tuple[int, ...]:
    gone = {normalized(axis, len(dims), node) for axis in axes}
    for axis in gone:
        if dims[axis] != 1:
            raise InvalidArgumentError(
                f"Can not squeeze dim[{axis}], expected a dimension of 1, got {dims[axis]}", node
            )
    return tuple([dim for i, dim in enumerate(dims) if i not in gone])


@kernel("ExpandDims", host=(1,))
def expand_dims(node: Node, context: Context) -> Kernel:
    def expanded(dims: Sequence[int], axis: Any) -> tuple[int, ...]:
        place = normalized(int(axis.item()), len(dims) + 1, node)
        return (*dims[:place], 1, *dims[place:])

    target = remember(node, (1,), expanded)
    return lambda x, axis: x.reshape(target(x.shape, axis))
