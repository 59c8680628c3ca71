"""Boolean masks, sequence masks and grids: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import apply, constant, graph_of
from dlbridge.graph.core.inference import constant_value
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array.functions import expand_dims, reshape, shape, size, squeeze
from dlbridge.graph.ops.functions import as_tensor
from dlbridge.graph.ops.indexing.functions import gather
from dlbridge.graph.ops.joining.functions import concat, stack
from dlbridge.proto.datatypes import as_dtype
from dlbridge.proto.datatypes import bool_ as bool_type

__all__ = ["boolean_mask", "meshgrid", "sequence_mask"]


def boolean_mask(
    tensor: Any, mask: Any, name: str | None = "boolean_mask", axis: Any = None
) -> Tensor:
    """Return the slices of a tensor where the mask is true.

    Args:
        tensor: of any shape.
        mask: of known rank, 1 or more; its shape is that of the axes of `tensor` from `axis` on,
            which become one.
        name: of the operations.
        axis: the first of them, 0 by default; known while the graph is built.
    """
    graph = graph_of((tensor, mask))
    with graph.as_default(), graph.name_scope(name or "boolean_mask"):
        values, chosen = as_tensor(tensor, None, "tensor"), as_tensor(mask, bool_type, "mask")
        first, count = _mask_axes(values, chosen, axis)
        after = first + count
        known = values.shape
        extents = shape(values)
        inside = apply("Prod", (extents[first:after], [0])).outputs[0]  # type: ignore[index]
        target = concat([extents[:first], [inside], shape(values)[after:]], 0)  # type: ignore[index]
        rows = reshape(values, target)
        if known.dims is not None:
            merged = known[first:after].num_elements()
            rows.set_shape(known[:first].concatenate([merged]).concatenate(known[after:]))
        places = apply("Where", (reshape(chosen, [-1]),)).outputs[0]
        return gather(rows, squeeze(places, axis=[1]), axis=first)


def _mask_axes(values: Tensor, mask: Tensor, axis: Any) -> tuple[int, int]:
    """Return the first axis that a mask is for, and how many there are."""
    if mask._dims is None:
        raise ValueError(
            "Number of mask dimensions must be specified, even if some dimensions are None.  "
            "E.g. shape=[None] is ok, but shape=None is not."
        )
    if not mask._dims:
        raise ValueError("mask cannot be scalar.")
    first = constant_value(axis) if isinstance(axis, Tensor) else axis
    if isinstance(axis, Tensor) and first is None:
        raise ValueError(f"boolean_mask: axis must be known when the graph is built, got {axis}")
    first = 0 if first is None else int(first)
    if first < 0 and values._dims is not None:
        first += len(values._dims)
    count = len(mask._dims)
    if values._dims is not None and not values.shape[first : first + count].is_compatible_with(
        mask.shape
    ):
        raise ValueError(
            f"Shapes {values.shape[first : first + count]} and {mask.shape} are incompatible"
        )
    return first, count


def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: object = bool_type, name: str | None = None
) -> Tensor:
    """Return for each length a row that is true in so many places, then false.

    Args:
        lengths: integers of any shape.
        maxlen: a scalar, the extent of the rows; the greatest length by default.
        dtype: of the result; true is 1.
        name: of the operations.
    """
    graph = graph_of((lengths, maxlen))
    with graph.as_default(), graph.name_scope(name or "SequenceMask"):
        counts = as_tensor(lengths, None, "lengths")
        if maxlen is None:
            axes = np.arange(len(counts._dims)) if counts._dims is not None else _all_axes(counts)
            longest = apply("Max", (counts, axes)).outputs[0]
            zero = constant(0, counts.dtype)
            longest = apply("Maximum", (zero, longest)).outputs[0]
        else:
            longest = as_tensor(maxlen, counts.dtype, "maxlen")
        if longest._dims:
            raise ValueError(
                "Argument `maxlen` must be scalar for sequence_mask, received `maxlen` = "
                f"{longest} with shape '{longest.shape}'."
            )
        if longest.dtype is not counts.dtype:
            longest = apply("Cast", (longest,), {"DstT": counts.dtype}).outputs[0]
        limits = (constant(0, counts.dtype), longest, constant(1, counts.dtype))
        row = apply("Range", limits).outputs[0]
        result = apply("Less", (row, expand_dims(counts, -1))).outputs[0]
        kind = as_dtype(dtype)
        if kind is bool_type:
            return result
        return apply("Cast", (result,), {"DstT": kind}).outputs[0]


def _all_axes(tensor: Tensor) -> Tensor:
    count = apply("Rank", (tensor,)).outputs[0]
    return apply("Range", (0, count, 1), None, "range").outputs[0]


def meshgrid(*args: Any, indexing: str = "xy", name: str | None = "meshgrid") -> list[Tensor]:
    """Return for each vector a grid in which it runs along an axis of its own.

    Args:
        args: vectors of one dtype.
        indexing: "xy", where the first two axes change places, or "ij".
        name: of the operations.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(
            f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'"
        )
    graph = graph_of(args)
    count = len(args)
    with graph.as_default(), graph.name_scope(name or "meshgrid"):
        rows = []
        for i, each in enumerate(args):
            dims = [1] * count
            dims[i] = -1
            rows.append(reshape(stack(each), dims))
        extents = [size(each) for each in args]
        if indexing == "xy" and count > 1:
            swapped = [1, 0, *range(2, count)]
            extents = [extents[i] for i in swapped]
            for i, order in ((0, (1, -1)), (1, (-1, 1))):
                rows[i] = reshape(rows[i], [*order, *([1] * (count - 2))])
        if not rows:
            return []
        ones = apply("Fill", (stack(extents), constant(1, rows[0].dtype)), None, "ones").outputs[0]
        return [apply("Mul", (each, ones), None, "mul").outputs[0] for each in rows]
