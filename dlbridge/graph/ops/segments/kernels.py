"""Segment sums and bin counts: kernels whose shapes depend on values."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, element, is_half
from dlbridge.proto.datatypes import DataType

_UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Mean": np.add,
    "Prod": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
}


def _work(kind: DataType) -> Any:
    """The NumPy dtype in which segments are reduced."""
    return np.dtype(np.float32) if is_half(kind) else kind.numpy


@kernel(*[f"Segment{name}" for name in _UFUNCS], only=("numpy",))
def segments(node: Node, context: Context) -> Function:
    """Reduce rows of equal identifiers, which do not decrease.

    A segment without rows is 0, or 1 for Prod.
    """
    name = node.type.removeprefix("Segment")
    kind = element(node)
    ufunc, work = _UFUNCS[name], _work(kind)

    def reduce(data: Array, identifiers: Array) -> Array:
        _check_segments(data, identifiers, node)
        count = int(identifiers[-1]) + 1 if len(identifiers) else 0
        out = np.full((count, *data.shape[1:]), name == "Prod", work)
        if count:
            starts = np.flatnonzero(np.diff(identifiers, prepend=-1))
            rows = ufunc.reduceat(data.astype(work, copy=False), starts, axis=0, dtype=work)
            if name == "Mean":
                rows = _divided(rows, np.diff(starts, append=len(identifiers)))
            out[identifiers[starts]] = rows
        return out.astype(kind.numpy, copy=False)

    return reduce


def _divided(rows: Array, counts: Array) -> Array:
    """Divide each row by its count, integers towards zero."""
    counts = counts.astype(rows.dtype).reshape(-1, *(1,) * (rows.ndim - 1))
    if rows.dtype.kind in "iu":
        return np.floor_divide(np.subtract(rows, np.fmod(rows, counts)), counts)
    return np.divide(rows, counts)


def _check_segments(data: Array, identifiers: Array, node: Node) -> None:
    if identifiers.ndim != 1 or data.shape[:1] != identifiers.shape:
        raise InvalidArgumentError(
            "segment_ids should be a vector of the same size as dimension 0 of input: "
            f"{list(identifiers.shape)} and {list(data.shape)}",
            node,
        )
    if len(identifiers) and identifiers[0] < 0:
        raise InvalidArgumentError("segment ids must be >= 0", node)
    if bool((identifiers[1:] < identifiers[:-1]).any()):
        raise InvalidArgumentError("segment ids are not increasing", node)


@kernel(*[f"UnsortedSegment{name}" for name in ("Sum", "Prod", "Max", "Min")], only=("numpy",))
def unsorted_segments(node: Node, context: Context) -> Function:
    """Reduce rows with equal identifiers; negative ones are left out."""
    name = node.type.removeprefix("UnsortedSegment")
    kind = element(node)
    ufunc, work = _UFUNCS[name], _work(kind)
    neutral = {"Sum": 0, "Prod": 1, "Max": kind.min, "Min": kind.max} if not kind.is_complex else {
        "Sum": 0, "Prod": 1,
    }  # fmt: skip

    def reduce(data: Array, identifiers: Array, number: Array) -> Array:
        count, rank = int(number), identifiers.ndim
        if data.shape[:rank] != identifiers.shape:
            raise InvalidArgumentError(
                f"data.shape = {list(data.shape)} does not start with segment_ids.shape = "
                f"{list(identifiers.shape)}",
                node,
            )
        flat = identifiers.reshape(-1)
        _check_range(flat, count, node)
        rows = data.reshape(len(flat), *data.shape[rank:])
        out = np.full((count, *data.shape[rank:]), neutral[name], work)
        kept = flat >= 0
        ufunc.at(out, flat[kept], rows[kept].astype(work, copy=False))
        return out.astype(kind.numpy, copy=False)

    return reduce


def _check_range(identifiers: Array, count: int, node: Node) -> None:
    if count < 0:
        raise InvalidArgumentError(f"Input num_segments == {count} must not be negative.", node)
    wrong = np.flatnonzero(identifiers >= count)
    if len(wrong):
        first = int(wrong[0])
        raise InvalidArgumentError(
            f"segment_ids[{first}] = {identifiers[first]} is out of range [0, {count})", node
        )


@kernel("Bincount", only=("numpy",))
def bincount(node: Node, context: Context) -> Function:
    """Count, or add up the weights of, each number from 0 to less than the size."""
    kind = node.output_types[0].numpy

    def count(numbers: Array, size: Array, weights: Array) -> Array:
        length = int(size)
        if length < 0:
            raise InvalidArgumentError(f"size ({length}) must be non-negative", node)
        flat = numbers.reshape(-1)
        if len(flat) and flat.min() < 0:
            raise InvalidArgumentError("Input arr must be non-negative!", node)
        if weights.size not in (0, flat.size):
            raise InvalidArgumentError(
                f"weights must have the shape of arr or be empty: {list(weights.shape)} and "
                f"{list(numbers.shape)}",
                node,
            )
        kept = flat < length
        out = np.zeros(length, kind)
        values = weights.reshape(-1)[kept] if weights.size else np.ones(1, kind)
        np.add.at(out, flat[kept], values)
        return out

    return count
