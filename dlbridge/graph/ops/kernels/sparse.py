"""Kernels of sparse tensors. Indices and shapes are NumPy arrays in host memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import refuse_zero, require_rank, require_shape, vector
from dlbridge.graph.ops.kernels.arithmetic import truncated_quotient


def flat_indices(indices: Any, shape: Any, node: Node, *, ordered: bool) -> Any:
    """Return the row-major position of each row of `indices` [N, R] in `shape` [R].

    Raises:
        InvalidArgumentError: the ranks are others; the shape is negative or has more than 2**63 - 1
            elements; an index is out of bounds; with `ordered`, they are not in increasing
            lexicographic order without repetition.
    """
    extents = np.asarray(shape, np.int64)
    require_rank(extents, 1, node, "the shape")
    require_shape(indices, (len(indices), len(extents)), node, "indices")
    if (extents < 0).any() or math.prod(extents.tolist()) >= 2**63:
        raise InvalidArgumentError(
            f"the shape {extents.tolist()} must not be negative or have 2**63 elements", node
        )
    wrong = ((indices < 0) | (indices >= extents)).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidArgumentError(
            f"indices[{row}] = {indices[row].tolist()} is out of bounds: need 0 <= index < "
            f"{extents.tolist()}",
            node,
        )
    weights = np.concatenate([np.cumprod(extents[:0:-1])[::-1], [1]]).astype(np.int64)
    flat = indices.astype(np.int64) @ weights[: len(extents)]
    if ordered and len(flat) > 1:
        steps = np.diff(flat)
        if (steps <= 0).any():
            row = int(np.argmax(steps <= 0)) + 1
            what = "repeated" if steps[row - 1] == 0 else "out of order"
            raise InvalidArgumentError(
                f"indices[{row}] = {indices[row].tolist()} is {what}; tf.sparse.reorder sorts them",
                node,
            )
    return flat


@kernel("SparseToDense", host=(0, 1), traceable=False)
def to_dense(node: Node, context: Context) -> Callable[..., Any]:
    xp, write = context.xp, context.backend.scatter("Update")
    ordered = node.attrs["validate_indices"]

    def run(indices: Any, shape: Any, values: Any, default: Any) -> Any:
        extents = tuple(vector(np.atleast_1d(shape), "output_shape", node))
        rows = _as_rows(indices, len(extents))
        flat = flat_indices(rows, extents, node, ordered=ordered)
        require_rank(default, 0, node, "default_value")
        if values.ndim:
            _check_values(rows, values, node)
        dense = xp.broadcast_to(default, (int(np.prod(extents)),))
        spread = xp.broadcast_to(values, flat.shape)
        return xp.reshape(write(dense, context.asarray(flat), spread), extents)

    return run


def _check_values(indices: Any, values: Any, node: Node) -> None:
    """Require a value for each row of the indices."""
    require_rank(indices, 2, node, "indices")
    require_shape(values, tuple(indices.shape[:1]), node, "values")


def _as_rows(indices: Any, rank: int) -> Any:
    """Return indices as [N, R]: a scalar is one index, a vector is N of them (of rank 1)."""
    if indices.ndim == 2:
        return indices
    return indices.reshape(-1, 1) if rank == 1 else indices.reshape(1, -1)


@kernel("SparseTensorDenseMatMul", host=(0, 2), traceable=False)
def matmul(node: Node, context: Context) -> Callable[..., Any]:
    xp, add = context.xp, context.backend.scatter("Add")
    adjoint_a, adjoint_b = node.attrs["adjoint_a"], node.attrs["adjoint_b"]
    is_complex = node.output_types[0].is_complex

    def run(indices: Any, values: Any, shape: Any, b: Any) -> Any:
        _check_values(indices, values, node)
        require_shape(shape, (2,), node, "the shape of a")
        require_rank(b, 2, node, "b")
        flat_indices(indices, shape, node, ordered=False)
        row, column = (1, 0) if adjoint_a else (0, 1)
        if adjoint_a and is_complex:
            values = xp.conj(values)
        if adjoint_b:
            b = xp.matrix_transpose(xp.conj(b) if is_complex else b)
        if b.shape[0] != shape[column]:
            raise InvalidArgumentError(
                f"Cannot multiply: the sparse matrix has {shape[column]} columns, the dense one "
                f"{b.shape[0]} rows",
                node,
            )
        rows = context.asarray(np.ascontiguousarray(indices[:, row]))
        columns = context.asarray(np.ascontiguousarray(indices[:, column]))
        product = xp.zeros((int(shape[row]), b.shape[1]), dtype=b.dtype, device=context.device)
        return add(product, rows, values[:, None] * b[columns])

    return run


@kernel("SparseTensorDenseAdd", host=(0, 2), traceable=False)
def add_dense(node: Node, context: Context) -> Callable[..., Any]:
    xp, write = context.xp, context.backend.scatter("Add")

    def run(indices: Any, values: Any, shape: Any, b: Any) -> Any:
        _check_values(indices, values, node)
        if tuple(b.shape) != tuple(shape.tolist()):
            raise InvalidArgumentError(
                f"Shapes differ: the sparse tensor has {shape.tolist()}, the dense one "
                f"{list(b.shape)}",
                node,
            )
        flat = flat_indices(indices, shape, node, ordered=False)
        total = write(xp.reshape(b, (-1,)), context.asarray(flat), values)
        return xp.reshape(total, tuple(b.shape))

    return run


@kernel("SparseDenseCwiseMul", "SparseDenseCwiseDiv", host=(0, 2), traceable=False)
def with_dense(node: Node, context: Context) -> Callable[..., Any]:
    """Products or quotients with the dense elements at the same places.

    Quotients of integers are rounded towards zero; a zero anywhere in the dense tensor is refused.
    """
    xp, check = context.xp, None
    combine: Callable[..., Any] = xp.multiply
    if node.type == "SparseDenseCwiseDiv":
        is_integer = node.output_types[0].is_integer
        combine = truncated_quotient(xp) if is_integer else xp.divide
        check = refuse_zero(node, context) if is_integer else None

    def run(indices: Any, values: Any, shape: Any, dense: Any) -> Any:
        _check_values(indices, values, node)
        require_rank(shape, 1, node, "the shape")
        dims = (1,) * (len(shape) - len(dense.shape)) + tuple(dense.shape)
        if len(dims) != len(shape) or any(
            dim not in (1, extent) for dim, extent in zip(dims, shape.tolist(), strict=True)
        ):
            raise InvalidArgumentError(
                f"{node.type} broadcasts dense to sparse only; got incompatible shapes: "
                f"{shape.tolist()} vs. {list(dense.shape)}",
                node,
            )
        flat_indices(indices, shape, node, ordered=False)
        if check is not None:
            check(dense)
        places = np.where(np.asarray(dims) == 1, 0, indices)
        flat = flat_indices(places, dims, node, ordered=False)
        chosen = xp.take(xp.reshape(dense, (-1,)), context.asarray(flat), axis=0)
        return combine(values, chosen)

    return run


@kernel("SparseReorder", only=("numpy",))
def reorder(node: Node, context: Context) -> Callable[..., Any]:
    def run(indices: Any, values: Any, shape: Any) -> tuple[Any, Any]:
        _check_values(indices, values, node)
        order = np.argsort(flat_indices(indices, shape, node, ordered=False), kind="stable")
        return indices[order], values[order]

    return run


@kernel("SparseReshape", only=("numpy",))
def reshape(node: Node, context: Context) -> Callable[..., Any]:
    def run(indices: Any, shape: Any, wanted: Any) -> tuple[Any, Any]:
        require_rank(indices, 2, node, "indices")
        require_rank(wanted, 1, node, "new_shape")
        flat = flat_indices(indices, shape, node, ordered=False)
        new = _settle(wanted, math.prod(shape.tolist()), node)
        places = np.unravel_index(flat, tuple(new.tolist()))
        return np.stack(places, axis=1).astype(np.int64), new

    return run


def _settle(wanted: Any, count: int, node: Node) -> Any:
    """Return the new shape with a -1 replaced."""
    new = np.array(wanted, np.int64)
    open_ = np.flatnonzero(new == -1)
    if len(open_) == 1:
        known = math.prod(new[new != -1].tolist())
        new[open_[0]] = count // known if known else 0
    if len(open_) > 1 or (new < 0).any() or math.prod(new.tolist()) != count:
        raise InvalidArgumentError(
            f"Input to reshape is a SparseTensor with {count} dense values, but the requested "
            f"shape is {np.asarray(wanted).tolist()}",
            node,
        )
    return new


@kernel("SparseAdd", only=("numpy",))
def add(node: Node, context: Context) -> Callable[..., Any]:
    def run(
        a_indices: Any, a: Any, a_shape: Any, b_indices: Any, b: Any, b_shape: Any, threshold: Any
    ) -> tuple[Any, Any, Any]:
        if not np.array_equal(a_shape, b_shape):
            raise InvalidArgumentError(
                f"operands' shapes do not match; got {a_shape.tolist()}, {b_shape.tolist()}", node
            )
        _check_values(a_indices, a, node)
        _check_values(b_indices, b, node)
        require_rank(threshold, 0, node, "thresh")
        indices = np.concatenate([a_indices, b_indices])
        flat = flat_indices(indices, a_shape, node, ordered=False)
        _, first, place = np.unique(flat, return_index=True, return_inverse=True)
        total = np.zeros(len(first), a.dtype)
        np.add.at(total, place, np.concatenate([a, b]))
        kept = ~(np.abs(total) < threshold)  # NaN stays
        return indices[first][kept], total[kept], a_shape

    return run
