"""Elements moved around an axis, and tensors dealt out and put together by numbers."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, require_rank, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.shape import Dims

Shapes = list[Dims | None]


def _roll(c: Inference) -> Shapes:
    dims = c.dims(0)
    if dims is not None and not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    for i in (1, 2):
        other = c.dims(i)
        if other is not None and len(other) > 1:
            raise c.error(f"Shape must be at most rank 1 but is rank {len(other)}")
    merge(c.dims(1), c.dims(2), c)
    return unchanged(c)


define(
    "Roll(input: T, shift: Tshift, axis: Taxis, *, T: type, Tshift: {int32, int64}, "
    "Taxis: {int32, int64}) -> output: T",
    shape=_roll,
)


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
define(
    "UnravelIndex(indices: Tidx, dims: Tidx, *, Tidx: {int32, int64} = int32) -> output: Tidx",
    shape=lambda c: [_unraveled(c)],
)


def _unraveled(c: Inference) -> Dims | None:
    indices, count = c.dims(0), require_rank(c.dims(1), 1, c)[0]
    return None if indices is None else (count, *indices[:1])


define("GuaranteeConst(input: T) -> output: T", shape=unchanged, stateful=True)
define(
    "StringToNumber(string_tensor: string, *, out_type: {float32, float64, int32, int64, uint32, "
    "uint64} = float32) -> output: out_type",
    shape=unchanged,
)
