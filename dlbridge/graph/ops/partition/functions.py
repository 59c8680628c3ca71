"""Dynamic partition and dynamic stitch: what users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor

__all__ = [
    "dynamic_partition",
    "dynamic_stitch",
]


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Return the slices of a tensor split into several tensors by partition numbers.

    Args:
        data: its shape starts with that of `partitions`.
        partitions: int32, for each slice the number of the result that it goes to.
        num_partitions: how many results.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, there is no result of that number.
    """
    attrs = {"num_partitions": num_partitions}
    return list(apply("DynamicPartition", (data, partitions), attrs, name).outputs)


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Return one tensor put together of slices: what `dynamic_partition` undoes.

    Args:
        indices: a list of int32 tensors: where each slice goes. The last one to name a place wins.
        data: a list of tensors whose shapes start with those of `indices`.
        name: of the operation.
    """
    return apply("DynamicStitch", (indices, data), None, name).outputs[0]
