"""Elements chosen by an index that is a tensor: gather, scatter.

NumPy and torch refuse an index out of range, as TensorFlow does on the CPU. In JAX and on devices
values are not checked: there, as TensorFlow does on a GPU, gathering gives zeros and scattering
leaves out what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, normalize_axis, require_rank, text, vector
from dlbridge.proto.datatypes import int64, string
from dlbridge.signals import not_from_handler

# ---- gather ------------------------------------------------------------------------------------


# (params, indices, axis of params) -> the slices that the indices choose
Slices = Callable[[Any, Any, int], Any]


@kernel("GatherV2", host=(2,))
def gather_v2(node: Node, context: Context, slices: Slices | None = None) -> Function:
    batch, slices = node.attrs["batch_dims"], slices or _slices(node, context)

    def gather(params: Any, indices: Any, axis: Any) -> Any:
        place = normalize_axis(int(axis), len(params.shape), node)
        if batch:
            count = batch + len(indices.shape) if batch < 0 else batch
            return _gather_batches(context, node, params, indices, place, count)
        return slices(params, indices, place)

    return gather


@kernel("Gather")
def gather(node: Node, context: Context, slices: Slices | None = None) -> Function:
    slices = slices or _slices(node, context)
    return lambda params, indices: slices(params, indices, 0)


def _slices(node: Node, context: Context) -> Slices:
    xp = context.xp

    def slices(params: Any, indices: Any, axis: int) -> Any:
        extent = extent_of(params, axis, node)
        if context.checks:
            check_range(context, node, indices, extent)
        dims = tuple(params.shape)
        numbers = xp.astype(xp.reshape(indices, (-1,)), context.dtype(int64))
        flat = _take(context, params, numbers, axis, checks=context.checks)
        return xp.reshape(flat, (*dims[:axis], *indices.shape, *dims[axis + 1 :]))

    return slices


def extent_of(params: Any, axis: int, node: Node) -> int:
    """Return how many slices an array has along an axis.

    Raises:
        InvalidArgumentError: it is a scalar.
    """
    if not params.shape:
        raise InvalidArgumentError("params must be at least 1 dimensional", node)
    return int(params.shape[axis])


def check_range(context: Context, node: Node, indices: Any, extent: int) -> None:
    """Raise for the first index outside of [0, extent)."""
    if not prod(indices.shape):
        return
    xp = context.xp
    if int(xp.min(indices)) < 0 or int(xp.max(indices)) >= extent:
        host = np.asarray(indices.tolist())
        at = tuple(np.argwhere((host < 0) | (host >= extent))[0].tolist())
        place = f"[{','.join(map(str, at))}]" if at else ""
        raise InvalidArgumentError(f"indices{place} = {host[at]} is not in [0, {extent})", node)


def _gather_batches(
    context: Context, node: Node, params: Any, indices: Any, axis: int, batch: int
) -> Any:
    """Gather where the leading `batch` axes of both belong together: one row after the other."""
    xp = context.xp
    dims, wanted = tuple(params.shape), tuple(indices.shape)
    if not batch <= axis or dims[:batch] != wanted[:batch]:
        raise InvalidArgumentError(
            f"batch_dims {batch}: the leading shapes must be equal, and axis {axis} after them; "
            f"got {text(dims)} and {text(wanted)}",
            node,
        )
    rows, extent = prod(dims[:batch]), dims[axis]
    if context.checks:
        check_range(context, node, indices, extent)
    ahead = xp.moveaxis(params, axis, batch)
    middle, tail = dims[batch:axis], dims[axis + 1 :]
    table = xp.reshape(ahead, (rows * extent, prod(middle) * prod(tail)))
    starts = context.asarray(np.arange(rows, dtype=np.int64)[:, None] * extent)
    numbers = xp.reshape(indices, (rows, prod(wanted[batch:])))
    if context.checks:
        numbers = numbers + starts
    else:
        numbers = xp.where((numbers < 0) | (numbers >= extent), rows * extent, numbers + starts)
    found = _take(context, table, xp.reshape(numbers, (-1,)), checks=context.checks)
    chosen = len(wanted) - batch
    result = xp.reshape(found, (*dims[:batch], *wanted[batch:], *middle, *tail))
    order = [
        *range(batch),
        *range(batch + chosen, batch + chosen + len(middle)),
        *range(batch, batch + chosen),
        *range(batch + chosen + len(middle), len(result.shape)),
    ]
    return xp.permute_dims(result, tuple(order))


def _take(context: Context, params: Any, numbers: Any, axis: int = 0, *, checks: bool) -> Any:
    """Return slices of an array; where values are not checked, one out of range is zero."""
    if checks:
        return context.xp.take(params, numbers, axis=axis)
    return context.backend.take_filled(context.xp, params, numbers, axis)


# ---- rows: the first `depth` axes as one -------------------------------------------------------


def row_numbers(
    context: Context, node: Node, indices: Any, dims: Sequence[int], *, checks: bool
) -> Any:
    """Return, for each vector in `indices`, the number of the row it means; checked on the way.

    Where values are not checked, one out of range becomes the number after the last.
    """
    xp, depth = context.xp, indices.shape[-1]
    flat = xp.reshape(indices, (prod(indices.shape[:-1]), depth))
    extents = np.array(dims[:depth], np.int64)
    steps = np.array([prod(dims[i + 1 : depth]) for i in range(depth)], np.int64)
    flat = xp.astype(flat, context.dtype(int64))
    outside = (flat < 0) | (flat >= context.asarray(extents))
    numbers = xp.sum(flat * context.asarray(steps), axis=1)
    if not checks:
        return xp.where(xp.any(outside, axis=1), int(prod(dims[:depth])), numbers)
    if bool(xp.any(outside)):
        host = np.asarray(indices.tolist())
        bad = (host < 0) | (host >= extents)
        at = tuple(np.argwhere(bad.any(-1))[0].tolist())
        place = f"[{','.join(map(str, at))}]" if at else ""
        raise InvalidArgumentError(
            f"indices{place} = {text(host[at].tolist())} does not index into shape {text(dims)}",
            node,
        )
    return numbers


def _refuses_bad_indices(node: Node, context: Context) -> bool:
    """Return whether an index out of range ends the run: where values are checked, by default.

    Raises:
        InvalidArgumentError: the node has a policy that there is not.
    """
    policy = node.attrs.get("bad_indices_policy", b"")
    if policy not in (b"", b"DEFAULT", b"ERROR", b"IGNORE"):
        raise InvalidArgumentError(
            f"{node.type}: bad_indices_policy must be '', 'DEFAULT', 'ERROR' or 'IGNORE', got "
            f"{policy.decode(errors='replace')!r}",
            node,
        )
    return context.checks and policy != b"IGNORE"


@kernel("GatherNd")
def gather_nd(node: Node, context: Context) -> Function:
    xp, checks = context.xp, _refuses_bad_indices(node, context)

    def gather(params: Any, indices: Any) -> Any:
        dims, depth = tuple(params.shape), indices.shape[-1]
        if depth > len(dims):
            raise InvalidArgumentError(
                f"index innermost dimension length must be <= params rank; saw: {depth} vs. "
                f"{len(dims)}",
                node,
            )
        count, inner = prod(dims[:depth]), prod(dims[depth:])
        if not count and inner and prod(indices.shape[:-1]):
            raise InvalidArgumentError(
                f"Requested more than 0 entries, but params is empty: {text(dims)}", node
            )
        numbers = row_numbers(context, node, indices, dims, checks=checks)
        table = xp.reshape(params, (count, inner))
        found = _take(context, table, numbers, checks=checks)
        return xp.reshape(found, (*indices.shape[:-1], *dims[depth:]))

    return gather


# ---- scatter -----------------------------------------------------------------------------------


@kernel("ScatterNd", host=(2,))
def scatter_nd(node: Node, context: Context) -> Function:
    put, is_text = context.backend.put("Add"), node.output_types[0] is string
    checks = _refuses_bad_indices(node, context)

    def scatter(indices: Any, updates: Any, shape: Any) -> Any:
        dims = tuple(vector(shape, "shape", node))
        if min(dims, default=0) < 0:
            raise InvalidArgumentError(f"Invalid shape: {text(dims)}", node)
        if is_text:
            empty = np.full(dims, b"", object)
        else:
            empty = context.xp.zeros(dims, dtype=updates.dtype, device=context.device)
        return _scatter(context, node, put, empty, indices, updates, checks)

    return scatter


@kernel(
    "TensorScatterUpdate",
    "TensorScatterAdd",
    "TensorScatterSub",
    "TensorScatterMax",
    "TensorScatterMin",
)
def tensor_scatter(node: Node, context: Context) -> Function:
    put = context.backend.put(node.type.removeprefix("TensorScatter"))
    checks = _refuses_bad_indices(node, context)

    def scatter(x: Any, indices: Any, updates: Any) -> Any:
        return _scatter(context, node, put, context.backend.own(x), indices, updates, checks)

    return scatter


def _scatter(
    context: Context, node: Node, put: Any, fresh: Any, indices: Any, updates: Any, checks: bool
) -> Any:
    """Put rows of updates into `fresh`, an array of our own."""
    xp, dims, depth = context.xp, tuple(fresh.shape), indices.shape[-1]
    wanted = (*indices.shape[:-1], *dims[depth:])
    if depth > len(dims) or tuple(updates.shape) != wanted:
        raise InvalidArgumentError(
            f"{node.type}: indices {text(indices.shape)} into {text(dims)} need updates of shape "
            f"{text(wanted)}, got {text(updates.shape)}",
            node,
        )
    numbers = row_numbers(context, node, indices, dims, checks=checks)
    inner = prod(dims[depth:])
    table = xp.reshape(fresh, (prod(dims[:depth]), inner))
    rows = xp.reshape(updates, (prod(indices.shape[:-1]), inner))
    if checks or context.backend.immutable:
        return xp.reshape(put(table, numbers, rows), dims)
    spare = xp.zeros((1, inner), dtype=table.dtype, device=context.device)
    return xp.reshape(put(xp.concat([table, spare], axis=0), numbers, rows)[:-1], dims)


@kernel("UnravelIndex", only=("numpy",), traceable=False)
def unravel_index(node: Node, context: Context) -> Function:
    def unravel(indices: Any, dims: Any) -> Any:
        if indices.ndim:
            require_rank(indices, 1, node, "indices")
        try:
            found = np.unravel_index(indices, tuple(vector(dims, "dims", node)))
        except not_from_handler(ValueError) as error:
            raise InvalidArgumentError(
                f"index is out of bound as with dims: {error}", node
            ) from None
        return np.stack(found).astype(dims.dtype)

    return unravel


# ---- partitions ----------------------------------------------------------------------------------


@kernel("DynamicPartition", traceable=False)
def dynamic_partition(node: Node, context: Context) -> Function:
    """How many elements each part has depends on values."""
    count = node.attrs["num_partitions"]

    def deal(data: Any, partitions: Any) -> Any:
        dims, outer = tuple(data.shape), tuple(partitions.shape)
        if dims[: len(outer)] != outer:
            raise InvalidArgumentError(
                f"data.shape must start with partitions.shape, got data.shape = {text(dims)}, "
                f"partitions.shape = {text(outer)}",
                node,
            )
        numbers = np.asarray(partitions.tolist(), np.int64).reshape(-1)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= count))
        if wrong.size:
            raise InvalidArgumentError(
                f"partitions[{wrong[0]}] = {numbers[wrong[0]]} is not in [0, {count})", node
            )
        rows = data.reshape((numbers.size, *dims[len(outer) :]))
        parts = [rows[context.asarray(np.flatnonzero(numbers == i))] for i in range(count)]
        return parts[0] if count == 1 else tuple(parts)

    return deal


@kernel("DynamicStitch", "ParallelDynamicStitch", only=("numpy",), traceable=False)
def dynamic_stitch(node: Node, context: Context) -> Function:
    """Later data win; rows that no index names are zero."""
    count = node.attrs["N"]

    def stitch(*values: Any) -> Any:
        indices, data = values[:count], values[count:]
        rest = np.shape(data[0])[np.ndim(indices[0]) :]
        for i, (one, other) in enumerate(zip(indices, data, strict=True)):
            if np.shape(other) != np.shape(one) + rest:
                raise InvalidArgumentError(
                    f"data[{i}].shape must be indices[{i}].shape and what all data have in "
                    f"common, {text(np.shape(one) + rest)}, got {text(np.shape(other))}",
                    node,
                )
        flat = [np.reshape(each, -1) for each in indices]
        extent = max([int(each.max(initial=-1)) for each in flat]) + 1
        merged = np.zeros((extent, *rest), data[0].dtype)
        for numbers, rows in zip(flat, data, strict=True):
            if numbers.size and numbers.min() < 0:
                raise InvalidArgumentError(f"an index is out of range: {numbers.min()}", node)
            merged[numbers] = np.reshape(rows, (numbers.size, *rest))
        return merged

    return stitch


# ---- unique values -------------------------------------------------------------------------------


@kernel("Unique", "UniqueWithCounts", only=("numpy",))
def unique(node: Node, context: Context) -> Function:
    """Elements in order of first occurrence, and for each element which of them it is."""
    index = node.output_types[1].numpy

    def find(x: Array) -> tuple[Array, ...]:
        require_rank(x, 1, node, "x")
        _, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        order = np.argsort(first)
        rank = np.empty(len(order), index)
        rank[order] = np.arange(len(order))
        found = (x[first[order]], rank[inverse.reshape(-1)], counts[order].astype(index))
        return found[: len(node.output_types)]

    return find


@kernel("ListDiff", only=("numpy",))
def difference(node: Node, context: Context) -> Function:
    """The elements of the first list that are not in the second, with positions."""
    index = node.output_types[1].numpy

    def find(x: Array, y: Array) -> tuple[Array, Array]:
        require_rank(x, 1, node, "x")
        require_rank(y, 1, node, "y")
        kept = np.flatnonzero(~np.isin(x, y))
        return x[kept], kept.astype(index)

    return find
