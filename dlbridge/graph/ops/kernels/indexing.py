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

from dlbridge.execution.errors import InvalidArgumentError, UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, normalize_axis, require_rank, text, vector
from dlbridge.proto.datatypes import int64, string

# ---- gather ------------------------------------------------------------------------------------


@kernel("GatherV2", host=(2,))
def gather_v2(node: Node, context: Context) -> Function:
    batch = node.attrs["batch_dims"]

    def gather(params: Any, indices: Any, axis: Any) -> Any:
        place = normalize_axis(int(axis), len(params.shape), node)
        if batch:
            count = batch + len(indices.shape) if batch < 0 else batch
            return _gather_batches(context, node, params, indices, place, count)
        return _gather(context, node, params, indices, place)

    return gather


@kernel("Gather")
def gather(node: Node, context: Context) -> Function:
    return lambda params, indices: _gather(context, node, params, indices, 0)


def _gather(context: Context, node: Node, params: Any, indices: Any, axis: int) -> Any:
    """Return the slices of `params` along an axis that the indices choose."""
    if not params.shape:
        raise InvalidArgumentError("params must be at least 1 dimensional", node)
    extent = params.shape[axis]
    if context.framework == "jax":
        xp = context.xp
        indices = xp.where(indices < 0, extent, indices)
        return xp.take(params, indices, axis=axis, mode="fill", fill_value=0)
    if context.framework == "numpy":
        return _numpy_gather(context, node, params, indices, axis)
    if context.checks:
        check_range(context, node, indices, extent)
    dims = tuple(params.shape)
    numbers = context.xp.astype(context.xp.reshape(indices, (-1,)), context.dtype(int64))
    flat = _take(context, params, numbers, axis)
    return context.xp.reshape(flat, (*dims[:axis], *indices.shape, *dims[axis + 1 :]))


def _numpy_gather(context: Context, node: Node, params: Any, indices: Any, axis: int) -> Any:
    """NumPy itself refuses indices that are too large; negative ones are checked here."""
    if indices.size and indices.min() >= 0:
        try:
            return params.take(indices, axis)
        except IndexError:
            pass
    check_range(context, node, indices, params.shape[axis])
    return params.take(indices, axis)


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
    found = _take(context, table, xp.reshape(numbers, (-1,)))
    chosen = len(wanted) - batch
    result = xp.reshape(found, (*dims[:batch], *wanted[batch:], *middle, *tail))
    order = [
        *range(batch),
        *range(batch + chosen, batch + chosen + len(middle)),
        *range(batch, batch + chosen),
        *range(batch + chosen + len(middle), len(result.shape)),
    ]
    return xp.permute_dims(result, tuple(order))


def _take(context: Context, params: Any, numbers: Any, axis: int = 0) -> Any:
    """Return slices of an array; where values are not checked, one out of range is zero."""
    xp = context.xp
    if context.checks:
        return xp.take(params, numbers, axis=axis)
    if context.framework == "jax":
        return xp.take(params, numbers, axis=axis, mode="fill", fill_value=0)
    extent = params.shape[axis]
    if not extent:
        dims = (*params.shape[:axis], numbers.shape[0], *params.shape[axis + 1 :])
        return xp.zeros(dims, dtype=params.dtype, device=context.device)
    inside = (numbers >= 0) & (numbers < extent)
    found = xp.take(params, xp.where(inside, numbers, xp.zeros_like(numbers)), axis=axis)
    mask = xp.reshape(inside, (-1, *(1,) * (len(params.shape) - axis - 1)))
    return xp.where(mask, found, xp.zeros_like(found))


# ---- rows: the first `depth` axes as one -------------------------------------------------------


def row_numbers(context: Context, node: Node, indices: Any, dims: Sequence[int]) -> Any:
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
    if not context.checks:
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


def _check_policy(node: Node) -> None:
    policy = node.attrs.get("bad_indices_policy", b"")
    if policy not in (b"", b"DEFAULT", b"ERROR"):
        raise UnimplementedError(
            f"{node.type}: bad_indices_policy {policy.decode()!r}; leave it out", node
        )


@kernel("GatherNd")
def gather_nd(node: Node, context: Context) -> Function:
    _check_policy(node)
    xp = context.xp

    def gather(params: Any, indices: Any) -> Any:
        dims, depth = tuple(params.shape), indices.shape[-1]
        if depth > len(dims):
            raise InvalidArgumentError(
                f"index innermost dimension length must be <= params rank; saw: {depth} vs. "
                f"{len(dims)}",
                node,
            )
        numbers = row_numbers(context, node, indices, dims)
        table = xp.reshape(params, (prod(dims[:depth]), prod(dims[depth:])))
        found = _take(context, table, numbers)
        return xp.reshape(found, (*indices.shape[:-1], *dims[depth:]))

    return gather


# ---- scatter -----------------------------------------------------------------------------------


@kernel("ScatterNd", host=(2,))
def scatter_nd(node: Node, context: Context) -> Function:
    _check_policy(node)
    put, is_text = PUTTERS[context.framework]("Add"), node.output_types[0] is string

    def scatter(indices: Any, updates: Any, shape: Any) -> Any:
        dims = tuple(vector(shape, "shape", node))
        if min(dims, default=0) < 0:
            raise InvalidArgumentError(f"Invalid shape: {text(dims)}", node)
        if is_text:
            empty = np.full(dims, b"", object)
        else:
            empty = context.xp.zeros(dims, dtype=updates.dtype, **_same_device(context, updates))
        return _scatter(context, node, put, empty, indices, updates)

    return scatter


@kernel(
    "TensorScatterUpdate",
    "TensorScatterAdd",
    "TensorScatterSub",
    "TensorScatterMax",
    "TensorScatterMin",
)
def tensor_scatter(node: Node, context: Context) -> Function:
    _check_policy(node)
    put = PUTTERS[context.framework](node.type.removeprefix("TensorScatter"))

    def scatter(x: Any, indices: Any, updates: Any) -> Any:
        fresh = x if context.framework == "jax" else context.xp.asarray(x, copy=True)
        return _scatter(context, node, put, fresh, indices, updates)

    return scatter


def _same_device(context: Context, x: Any) -> dict[str, Any]:
    return {} if context.framework in ("numpy", "jax") else {"device": x.device}


def _scatter(context: Context, node: Node, put: Any, fresh: Any, indices: Any, updates: Any) -> Any:
    """Put rows of updates into `fresh`, an array of our own."""
    xp, dims, depth = context.xp, tuple(fresh.shape), indices.shape[-1]
    wanted = (*indices.shape[:-1], *dims[depth:])
    if depth > len(dims) or tuple(updates.shape) != wanted:
        raise InvalidArgumentError(
            f"{node.type}: indices {text(indices.shape)} into {text(dims)} need updates of shape "
            f"{text(wanted)}, got {text(updates.shape)}",
            node,
        )
    numbers = row_numbers(context, node, indices, dims)
    inner = prod(dims[depth:])
    table = xp.reshape(fresh, (prod(dims[:depth]), inner))
    rows = xp.reshape(updates, (prod(indices.shape[:-1]), inner))
    if context.checks or context.framework == "jax":
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
        except ValueError as error:
            raise InvalidArgumentError(
                f"index is out of bound as with dims: {error}", node
            ) from None
        return np.stack(found).astype(dims.dtype)

    return unravel


# ---- rows of an array, in the way of each framework ----------------------------------------------
# Indices are a vector of the framework. Where they repeat, "add" adds all updates and "update"
# keeps one of them. `SCATTER` makes a new array; `PUTTERS` write into one that the caller owns.


def _changed(old: Any, write: Callable[..., Any], indices: Any, updates: Any) -> Any:
    result = old.copy()
    write(result, indices, updates)
    return result


def _accumulated(old: Any, indices: Any, updates: Any) -> Any:
    result = old.copy()
    np.add.at(result, indices, updates)  # which is CuPy's for its arrays
    return result


# Framework -> how the slices change -> (old, indices, updates) -> new.
SCATTER: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {
        "add": lambda old, at, new: _changed(old, np.add.at, at, new),
        "update": lambda old, at, new: _changed(old, np.ndarray.__setitem__, at, new),
    },
    "cupy": {
        "add": lambda old, at, new: _accumulated(old, at, new),
        "update": lambda old, at, new: _changed(old, type(old).__setitem__, at, new),
    },
    "torch": {
        "add": lambda old, at, new: old.index_put((at,), new, accumulate=True),
        "update": lambda old, at, new: old.index_put((at,), new),
    },
    "jax": {
        "add": lambda old, at, new: old.at[at].add(new),
        "update": lambda old, at, new: old.at[at].set(new),
    },
}


def _numpy_put(how: str) -> Any:
    ufunc = {
        "Add": np.add, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum
    }.get(how)  # fmt: skip

    def put(table: Any, numbers: Any, rows: Any) -> Any:
        if ufunc is None:
            table[numbers] = rows
        else:
            ufunc.at(table, numbers, rows)
        return table

    return put


def _torch_put(how: str) -> Any:
    reduction = {"Max": "amax", "Min": "amin"}.get(how)

    def put(table: Any, numbers: Any, rows: Any) -> Any:
        if how == "Update":
            table[numbers] = rows
        elif reduction:
            table.scatter_reduce_(0, numbers[:, None].expand_as(rows), rows, reduction)
        else:
            table.index_add_(0, numbers, rows, alpha=-1 if how == "Sub" else 1)
        return table

    return put


def _jax_put(how: str) -> Any:
    method = {"Update": "set", "Sub": "subtract"}.get(how, how.lower())
    return lambda table, numbers, rows: getattr(table.at[numbers], method)(rows, mode="drop")


PUTTERS = {"numpy": _numpy_put, "cupy": _numpy_put, "torch": _torch_put, "jax": _jax_put}


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
