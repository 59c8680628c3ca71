"""Slices and strided slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops import slicing
from dlbridge.graph.ops.kernels import Function, cached, text, vector
from dlbridge.signals import not_from_handler

# ---- slice -------------------------------------------------------------------------------------


@kernel("Slice", host=(1, 2))
def slice_(node: Node, context: Context) -> Function:
    bounds = cached(node, (1, 2), lambda dims, begin, size: _bounds(dims, begin, size, node))
    return lambda x, begin, size: x[bounds(x.shape, begin, size)]


def _bounds(dims: Sequence[int], begin: Any, size: Any, node: Node) -> tuple[slice, ...]:
    if not (len(dims),) == begin.shape == size.shape:
        raise InvalidArgumentError(
            f"Expected begin and size arguments to be 1-D tensors of size {len(dims)}, but got "
            f"shapes {text(begin.shape)} and {text(size.shape)} instead.",
            node,
        )
    bounds = []
    for i, (dim, first, count) in enumerate(zip(dims, begin.tolist(), size.tolist(), strict=True)):
        if not 0 <= first <= dim:
            raise InvalidArgumentError(f"Expected begin[{i}] in [0, {dim}], but got {first}", node)
        if count == -1:
            count = dim - first
        elif not 0 <= count <= dim - first:
            raise InvalidArgumentError(
                f"Expected size[{i}] in [0, {dim - first}], but got {count}", node
            )
        bounds.append(slice(first, first + count))
    return tuple(bounds)


def selector(node: Node) -> Function:
    """Return the function from a shape and three vectors to the index that a StridedSlice means."""
    masks = slicing.Masks.of(node.attrs)
    return cached(
        node,
        (1, 2, 3),
        lambda dims, begin, end, strides: _selection(dims, begin, end, strides, masks, node),
    )


def _selection(
    dims: Sequence[int], begin: Any, end: Any, strides: Any, masks: slicing.Masks, node: Node
) -> tuple[Any, ...]:
    if len(begin.shape) != 1 or not begin.shape == end.shape == strides.shape:
        raise InvalidArgumentError(
            "Expected begin, end, and strides to be 1D equal size tensors, but got shapes "
            f"{text(begin.shape)}, {text(end.shape)}, and {text(strides.shape)} instead.",
            node,
        )
    first, last, steps = (vector(each, "the index", node) for each in (begin, end, strides))
    try:
        return slicing.selection(masks, first, last, steps, dims)
    except not_from_handler(ValueError) as error:
        raise InvalidArgumentError(str(error), node) from None


@kernel("StridedSlice", host=(1, 2, 3))
def strided_slice(node: Node, context: Context) -> Function:
    select = selector(node)
    return lambda x, *bounds: x[select(x.shape, *bounds)]
