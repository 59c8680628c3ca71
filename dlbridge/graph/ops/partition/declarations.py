"""Dynamic partition and dynamic stitch."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.shape import Dims


def _dynamic_partition(c: Inference) -> Shapes:
    data, partitions = c.dims(0), c.dims(1)
    if partitions is None or data is None:
        return [None] * c.output_count
    rank = len(partitions)
    if rank > len(data):
        raise c.error(f"Shape must be at least rank {rank} but is rank {len(data)}")
    merge(data[:rank], partitions, c)
    return [(None, *data[rank:])] * c.output_count


define(
    "DynamicPartition(data: T, partitions: int32, *, num_partitions: int >= 1, T: type) "
    "-> outputs: num_partitions * T",
    shape=_dynamic_partition,
)


def _dynamic_stitch(c: Inference) -> Shapes:
    count = len(c.inputs) // 2
    rest: Dims | None = None
    most: int | None = -1
    for i in range(count):
        indices, data, value = c.dims(i), c.dims(count + i), c.constant(i)
        if value is None:
            most = None
        elif most is not None:
            most = max(most, int(value.max(initial=-1)))
        if indices is None or data is None:
            continue
        if len(data) < len(indices):
            raise c.error(f"data {i} has fewer axes than its indices")
        merge(data[: len(indices)], indices, c)
        rest = merge(rest, data[len(indices) :], c)
    return [None if rest is None else (None if most is None else most + 1, *rest)]


for _type in ("DynamicStitch", "ParallelDynamicStitch"):
    define(
        f"{_type}(indices: N * int32, data: N * T, *, N: int >= 1, T: type) -> merged: T",
        shape=_dynamic_stitch,
    )
