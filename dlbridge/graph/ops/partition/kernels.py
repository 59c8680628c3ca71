"""Dynamic partition and dynamic stitch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, text


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
