"""Gather and scatter: what users call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.graph.core.default_graph import apply, constant, graph_of
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array.functions import reshape, shape
from dlbridge.graph.ops.functions import as_tensor
from dlbridge.graph.ops.joining.functions import concat

__all__ = [
    "batch_gather",
    "gather",
    "gather_nd",
    "scatter_nd",
    "tensor_scatter_add",
    "tensor_scatter_max",
    "tensor_scatter_min",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensor_scatter_sub",
    "tensor_scatter_update",
    "unravel_index",
]


def gather(
    params: Any,
    indices: Any,
    validate_indices: bool | None = None,  # noqa: ARG001
    name: str | None = None,
    axis: Any = None,
    batch_dims: int = 0,
) -> Tensor:
    """Return the slices of `params` along an axis that `indices` choose.

    Args:
        params: rank 1 or more.
        indices: integers from 0, of any shape.
        validate_indices: without effect: indices are checked where they can be.
        name: of the operation.
        axis: a scalar, `batch_dims` by default.
        batch_dims: how many leading axes of both belong together.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX gives zeros instead.
    """
    place = batch_dims if axis is None else axis
    attrs = {"batch_dims": batch_dims}
    return apply("GatherV2", (params, indices, place), attrs, name).outputs[0]


def batch_gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """Return `gather` along the last axis of the indices, the axes before it being batches.

    Raises:
        ValueError: the rank of the indices is not known.
    """
    graph = graph_of((params, indices))
    with graph.as_default(), graph.name_scope(name or "BatchGather"):
        chosen, table = as_tensor(indices, None, "indices"), as_tensor(params, None, "params")
        if chosen._dims is None:
            raise ValueError("batch_gather does not allow indices with unknown shape.")
        last = len(chosen._dims) - 1
        return gather(table, chosen, axis=last, batch_dims=last)


def gather_nd(
    params: Any,
    indices: Any,
    name: str | None = None,
    batch_dims: int = 0,
    bad_indices_policy: str = "",
) -> Tensor:
    """Return the slices of `params` that vectors of indices choose.

    Args:
        params: of any shape.
        indices: shape [..., depth]: each vector indexes the first `depth` axes.
        name: of the operation.
        batch_dims: how many leading axes of both belong together.
        bad_indices_policy: "" or "ERROR".

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX gives zeros instead.
    """
    attrs = {"bad_indices_policy": bad_indices_policy.encode()}
    if not batch_dims:
        return apply("GatherNd", (params, indices), attrs, name).outputs[0]
    graph = graph_of((params, indices))
    with graph.as_default(), graph.name_scope(name or "GatherNd") as scope:
        chosen = _with_batches(as_tensor(indices, None, "indices"), batch_dims)
        return apply("GatherNd", (params, chosen), attrs, scope).outputs[0]


def _with_batches(indices: Tensor, batch_dims: int) -> Tensor:
    """Return vectors of indices with the numbers of their batches in front."""
    if indices._dims is None:
        raise ValueError("gather_nd: batch_dims needs indices of known rank")
    outer = len(indices._dims) - 1
    if not 0 < batch_dims <= outer:
        raise ValueError(f"gather_nd: batch_dims must be at most {outer}, got {batch_dims}")
    extents = shape(indices, out_type=indices.dtype)
    column = concat([extents[:outer], constant([1], indices.dtype)], 0)  # type: ignore[index]
    parts = []
    for axis in range(batch_dims):
        numbers = apply("Range", (0, extents[axis], 1)).outputs[0]  # type: ignore[index]
        dims = [1] * (outer + 1)
        dims[axis] = -1
        parts.append(apply("BroadcastTo", (reshape(numbers, dims), column)).outputs[0])
    return concat([*parts, indices], outer)


# ---- scatter -----------------------------------------------------------------------------------


def scatter_nd(
    indices: Any, updates: Any, shape: Any, bad_indices_policy: str = "", name: str | None = None
) -> Tensor:
    """Return zeros of a shape to which slices were added.

    Args:
        indices: shape [..., depth]: each vector indexes the first `depth` axes of the result.
        updates: a slice for each vector; those for the same place are added up.
        shape: a vector, of the indices' dtype.
        bad_indices_policy: "" or "ERROR".
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX leaves it out instead.
    """
    attrs = {"bad_indices_policy": bad_indices_policy.encode()}
    return apply("ScatterNd", (indices, updates, shape), attrs, name).outputs[0]


def _tensor_scatter(how: str, summary: str) -> Callable[..., Tensor]:
    def scatter(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        inputs = (tensor, indices, updates)
        return apply(f"TensorScatter{how}", inputs, None, name).outputs[0]

    scatter.__name__ = scatter.__qualname__ = f"tensor_scatter_nd_{how.lower()}"
    scatter.__doc__ = f"""Return a copy of a tensor {summary}.

    Args:
        tensor: of any shape.
        indices: shape [..., depth]: each vector indexes the first `depth` axes of the tensor.
        updates: a slice for each vector.
        name: of the operation, of type TensorScatter{how}.

    Raises:
        InvalidArgumentError: when run, an index is out of range. JAX leaves it out instead.
    """
    return scatter


tensor_scatter_nd_update = _tensor_scatter("Update", "whose slices at `indices` are `updates`")
tensor_scatter_nd_add = _tensor_scatter("Add", "with `updates` added to its slices at `indices`")
tensor_scatter_nd_sub = _tensor_scatter(
    "Sub", "with `updates` subtracted from its slices at `indices`"
)
tensor_scatter_nd_max = _tensor_scatter(
    "Max", "with the element-wise maximum of `updates` and its slices at `indices`"
)
tensor_scatter_nd_min = _tensor_scatter(
    "Min", "with the element-wise minimum of `updates` and its slices at `indices`"
)
tensor_scatter_update = tensor_scatter_nd_update
tensor_scatter_add = tensor_scatter_nd_add
tensor_scatter_sub = tensor_scatter_nd_sub
tensor_scatter_max = tensor_scatter_nd_max
tensor_scatter_min = tensor_scatter_nd_min


def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Tensor:
    """Return row-major positions as vectors of indices, one column for each.

    Args:
        indices: a scalar or a vector of integers.
        dims: the shape that they are positions in.
        name: of the operation.
    """
    return apply("UnravelIndex", (indices, dims), None, name).outputs[0]
