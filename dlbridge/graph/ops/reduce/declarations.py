"""Reductions, positions of extremes, and the largest elements."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import INDEX, NUMBER, REAL, REAL_QUANTIZED, Shapes


def _reduction(c: Inference) -> Shapes:
    """The axes named are gone, or 1; unless they are known only when the graph runs."""
    dims, axes = c.dims(0), c.constant(1)
    if dims is None:
        return [None]
    keep = c.attrs["keep_dims"]
    rank = len(dims)
    if axes is None:
        return [(None,) * rank if keep else None]
    gone = {_axis(int(axis), rank, c) for axis in axes.reshape(-1)}
    kept = [1 if i in gone else dim for i, dim in enumerate(dims) if keep or i not in gone]
    return [tuple(kept)]


def _axis(axis: int, rank: int, c: Inference) -> int:
    if not -rank <= axis < rank:
        raise c.error(f"Invalid reduction dimension {axis} for input with {rank} dimensions.")
    return axis % rank


def _position(c: Inference) -> Shapes:
    """Without the axis in which the position is sought."""
    dims, axis = c.dims(0), c.integer(1)
    if dims is None:
        return [None]
    rank = len(dims)
    if rank <= 1:
        return [()]
    if axis is None:
        return [(None,) * (rank - 1)]
    if not -rank <= axis < rank:
        raise c.error(f"Dimension ({axis}) must be in the range [{-rank}, {rank})")
    return [tuple([dim for i, dim in enumerate(dims) if i != axis % rank])]


def _largest(c: Inference) -> Shapes:
    """The last dimension becomes k."""
    k = c.attrs["k"] if "k" in c.attrs else c.integer(1)
    if k is not None and k < 0:
        raise c.error(f"Need k >= 0, got {k}")
    dims = c.dims(0)
    if dims is None:
        return [None, None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if k is not None and dims[-1] is not None and dims[-1] < k:
        raise c.error(f"input must have last dimension >= k = {k} but is {dims[-1]}")
    return [(*dims[:-1], k)] * 2


_INDEX = f"Tidx: {INDEX} = int32"
# Dtypes -> reductions of them.
_REDUCTIONS = {NUMBER: "Sum Mean Prod EuclideanNorm", REAL_QUANTIZED: "Max Min"}
for _types, _names in _REDUCTIONS.items():
    for _name in _names.split():
        define(
            f"{_name}(input: T, reduction_indices: Tidx, *, keep_dims: bool = false, T: {_types}, "
            f"{_INDEX}) -> output: T",
            shape=_reduction,
        )
for _name in ("All", "Any"):
    define(
        f"{_name}(input: bool, reduction_indices: Tidx, *, keep_dims: bool = false, {_INDEX}) "
        "-> output: bool",
        shape=_reduction,
    )
for _name, _positions, _axes in (
    ("ArgMax", "{int16, uint16, int32, int64}", "{int16, int32, int64}"),
    ("ArgMin", INDEX, INDEX),
):
    define(
        f"{_name}(input: T, dimension: Tidx, *, T: {REAL_QUANTIZED[:-1]}, bool}}, "
        f"Tidx: {_axes} = int32, output_type: {_positions} = int64) -> output: output_type",
        shape=_position,
    )
define(
    f"TopKV2(input: T, k: Tk, *, sorted: bool = true, T: {REAL}, "
    "Tk: {int16, int32, int64} = int32, index_type: {int16, int32, int64} = int32) "
    "-> (values: T, indices: index_type)",
    shape=_largest,
)
define(
    f"TopK(input: T, *, k: int >= 0, sorted: bool = true, T: {REAL}) "
    "-> (values: T, indices: int32)",
    shape=_largest,
)
