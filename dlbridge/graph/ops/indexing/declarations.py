"""Gather and scatter."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.array.declarations import requested_dims
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.shape import Dims

_POLICY = 'bad_indices_policy: string = ""'


# ---- gather ------------------------------------------------------------------------------------


def _gather(c: Inference) -> Shapes:
    params, indices = c.dims(0), c.dims(1)
    if params is not None and not params:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    return [None if params is None or indices is None else indices + params[1:]]


def _gather_v2(c: Inference) -> Shapes:
    params, indices, axis = c.dims(0), c.dims(1), c.constant(2)
    require_rank(c.dims(2), 0, c)
    batch = c.attrs["batch_dims"]
    if params is None or indices is None:
        return [None]
    if batch < 0:
        batch += len(indices)
    if not 0 <= batch <= len(indices):
        raise c.error(f"batch_dims {c.attrs['batch_dims']} not in the rank {len(indices)} of "
                      "indices")  # fmt: skip
    if axis is None:
        return [(None,) * (len(params) + len(indices) - 1 - batch)]
    place = int(axis)
    if not -len(params) <= place < len(params):
        least = place + 1 if place >= 0 else -place
        raise c.error(f"Shape must be at least rank {least} but is rank {len(params)}")
    place %= len(params)
    if batch > place:
        raise c.error(f"batch_dims ({batch}) must be less than or equal to axis ({place})")
    head = merge(params[:batch], indices[:batch], c)
    assert head is not None
    return [head + params[batch:place] + indices[batch:] + params[place + 1 :]]


define(
    "Gather(params: Tparams, indices: Tindices, *, validate_indices: bool = true, Tparams: type, "
    "Tindices: {int32, int64}) -> output: Tparams",
    shape=_gather,
)
define(
    "GatherV2(params: Tparams, indices: Tindices, axis: Taxis, *, batch_dims: int = 0, "
    "Tparams: type, Tindices: {int16, int32, int64}, Taxis: {int32, int64}) -> output: Tparams",
    shape=_gather_v2,
)


def _gather_nd(c: Inference) -> Shapes:
    params, indices = c.dims(0), c.dims(1)
    if indices is not None and not indices:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if params is None or indices is None or indices[-1] is None:
        return [None]
    if indices[-1] > len(params):
        raise c.error(
            f"indices.shape[-1] must be <= params.rank, but saw indices shape: {list(indices)} "
            f"and params shape: {list(params)}"
        )
    return [indices[:-1] + params[indices[-1] :]]


define(
    "GatherNd(params: Tparams, indices: Tindices, *, Tparams: type, "
    f"Tindices: {{int16, int32, int64}}, {_POLICY}) -> output: Tparams",
    shape=_gather_nd,
)


# ---- scatter -----------------------------------------------------------------------------------


def check_scatter(
    dims: Dims | None, indices: Dims | None, updates: Dims | None, c: Inference
) -> None:
    """Raise where updates do not fit the slices that the indices choose."""
    if indices is not None and not indices:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if indices is None or updates is None:
        return
    outer = len(indices) - 1
    merge(indices[:-1], updates[:outer], c)
    depth = indices[-1]
    if dims is None or depth is None:
        return
    if depth > len(dims):
        raise c.error(f"indices choose {depth} axes, but the tensor has {len(dims)}")
    merge(dims[depth:], updates[outer:], c)


def _scatter_nd(c: Inference) -> Shapes:
    dims = requested_dims(c, 2)
    require_rank(c.dims(2), 1, c)
    check_scatter(dims, c.dims(0), c.dims(1), c)
    return [dims]


def _tensor_scatter(c: Inference) -> Shapes:
    dims = c.dims(0)
    if dims is not None and not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    check_scatter(dims, c.dims(1), c.dims(2), c)
    return [dims]


define(
    "ScatterNd(indices: Tindices, updates: T, shape: Tindices, *, T: type, "
    f"Tindices: {{int16, int32, int64}}, {_POLICY}) -> output: T",
    shape=_scatter_nd,
)
for _type, _indices in (
    ("Update", "int16, int32, int64, uint16"),
    ("Add", "int32, int64"),
    ("Sub", "int32, int64"),
    ("Max", "int32, int64"),
    ("Min", "int32, int64"),
):
    define(
        f"TensorScatter{_type}(tensor: T, indices: Tindices, updates: T, *, T: type, "
        f"Tindices: {{{_indices}}}, {_POLICY}) -> output: T",
        shape=_tensor_scatter,
    )


define(
    "UnravelIndex(indices: Tidx, dims: Tidx, *, Tidx: {int32, int64} = int32) -> output: Tidx",
    shape=lambda c: [_unraveled(c)],
)


def _unraveled(c: Inference) -> Dims | None:
    indices, count = c.dims(0), require_rank(c.dims(1), 1, c)[0]
    return None if indices is None else (count, *indices[:1])
