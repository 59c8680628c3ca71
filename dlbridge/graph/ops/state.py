"""Variables."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, nothing, require_rank, scalars
from dlbridge.graph.ops.indexing import check_scatter
from dlbridge.graph.ops.shared import NUMBER, Shapes, define
from dlbridge.shape import Dims

# ==== op types: resources and references ==========================================================


# ---- static shapes -----------------------------------------------------------------------------


def variable_dims(c: Inference, index: int = 0) -> Dims | None:
    """Return the static shape of the variable behind an input, whose dtype is checked."""
    op = c.inputs[index].op
    while op.type in ("Identity", "Assign", "AssignAdd", "AssignSub") and op.inputs:
        op = op.inputs[0].op
    asked = c.attrs.get("dtype", c.attrs.get("T"))
    if op.type == "VarHandleOp" and asked is not None and asked is not op.attrs["dtype"]:
        raise c.error(
            "Trying to access variable with wrong dtype. Expected "
            f"{op.attrs['dtype'].name} got {asked.name}"
        )
    shape = op.attrs.get("shape")
    return None if shape is None else shape.dims


def _declared(c: Inference) -> Shapes:
    return [c.attrs["shape"].dims]


def _read(c: Inference) -> Shapes:
    return [variable_dims(c)]


def _assigned(c: Inference) -> Shapes:
    merge(variable_dims(c), c.dims(1), c)
    return []


def _assigned_reference(c: Inference) -> Shapes:
    if not c.attrs.get("validate_shape", True):
        return [c.dims(1)]
    return [merge(c.dims(0), c.dims(1), c)]


def _scattered(c: Inference) -> Shapes:
    _check_updates(c, variable_dims(c))
    return []


def _scattered_reference(c: Inference) -> Shapes:
    _check_updates(c, c.dims(0))
    return [c.dims(0)]


def _check_updates(c: Inference, variable: Dims | None) -> None:
    """Check that updates have the shape of the indices and then of the variable's slices."""
    indices, updates = c.dims(1), c.dims(2)
    if variable is None or indices is None or updates == ():
        return
    if not variable:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    merge((*indices, *variable[1:]), updates, c)


def _gathered(c: Inference) -> Shapes:
    variable, indices = variable_dims(c), c.dims(1)
    if variable is None or indices is None:
        return [None]
    if not variable:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    batch = c.attrs["batch_dims"]
    return [(*variable[: batch + 1][:-1], *indices[batch:], *variable[batch + 1 :])]


def _scattered_nd(c: Inference) -> Shapes:
    check_scatter(variable_dims(c), c.dims(1), c.dims(2), c)
    return []


def _scattered_nd_reference(c: Inference) -> Shapes:
    check_scatter(c.dims(0), c.dims(1), c.dims(2), c)
    return [c.dims(0)]


def _gathered_nd(c: Inference) -> Shapes:
    variable, indices = variable_dims(c), c.dims(1)
    if variable is None or not indices or indices[-1] is None:
        return [None]
    if indices[-1] > len(variable):
        raise c.error(f"indices.shape[-1] must be <= params.rank, but saw {indices[-1]}")
    return [(*indices[:-1], *variable[indices[-1] :])]


def _variable_shape(c: Inference) -> Shapes:
    dims = variable_dims(c)
    return [(None,) if dims is None else (len(dims),)]


def _descended(c: Inference) -> Shapes:
    require_rank(c.dims(1), 0, c)
    merge(variable_dims(c), c.dims(2), c)
    return []


# ---- behind a resource handle ------------------------------------------------------------------

define(
    'VarHandleOp(*, container: string = "", shared_name: string = "", debug_name: string = "", '
    "dtype: type, shape: shape, allowed_devices: list(string) = []) -> resource: resource",
    shape=scalars,
    stateful=True,
)
define(
    "ReadVariableOp(resource: resource, *, dtype: type) -> value: dtype", shape=_read, stateful=True
)
define(
    "AssignVariableOp(resource: resource, value: dtype, *, dtype: type, "
    "validate_shape: bool = false)",
    shape=_assigned,
    stateful=True,
)
for _name in ("AssignAddVariableOp", "AssignSubVariableOp"):
    define(
        f"{_name}(resource: resource, value: dtype, *, dtype: type)", shape=_assigned, stateful=True
    )
define(
    "VarIsInitializedOp(resource: resource) -> is_initialized: bool", shape=scalars, stateful=True
)
define(
    "DestroyResourceOp(resource: resource, *, ignore_lookup_error: bool = true)",
    shape=nothing,
    stateful=True,
)
define(
    "VariableShape(input: resource, *, out_type: {int32, int64} = int32) -> output: out_type",
    shape=_variable_shape,
    stateful=True,
)
define(
    "ResourceGather(resource: resource, indices: Tindices, *, batch_dims: int = 0, "
    "validate_indices: bool = true, dtype: type, Tindices: {int32, int64}) -> output: dtype",
    shape=_gathered,
    stateful=True,
)
define(
    "ResourceScatterUpdate(resource: resource, indices: Tindices, updates: dtype, *, dtype: type, "
    "Tindices: {int32, int64})",
    shape=_scattered,
    stateful=True,
)
for _name in ("ResourceScatterAdd", "ResourceScatterSub"):
    define(
        f"{_name}(resource: resource, indices: Tindices, updates: dtype, *, dtype: {NUMBER}, "
        "Tindices: {int32, int64})",
        shape=_scattered,
        stateful=True,
    )
define(
    "ResourceGatherNd(resource: resource, indices: Tindices, *, dtype: type, "
    "Tindices: {int32, int64}) -> output: dtype",
    shape=_gathered_nd,
    stateful=True,
)
for _name in ("Update", "Add", "Sub", "Min", "Max"):
    define(
        f"ResourceScatterNd{_name}(ref: resource, indices: Tindices, updates: T, *, T: type, "
        'Tindices: {int32, int64}, use_locking: bool = true, bad_indices_policy: string = "")',
        shape=_scattered_nd,
        stateful=True,
    )
define(
    f"ResourceApplyGradientDescent(var: resource, alpha: T, delta: T, *, T: {NUMBER}, "
    "use_locking: bool = false)",
    shape=_descended,
    stateful=True,
)

# ---- references --------------------------------------------------------------------------------

for _name in ("VariableV2", "Variable"):
    define(
        f'{_name}(*, shape: shape, dtype: type, container: string = "", '
        'shared_name: string = "") -> ref: ref dtype',
        shape=_declared,
        stateful=True,
    )
define(
    "Assign(ref: ref T, value: T, *, T: type, validate_shape: bool = true, "
    "use_locking: bool = true) -> output_ref: ref T",
    shape=_assigned_reference,
    allows_uninitialized_input=True,
)
for _name in ("AssignAdd", "AssignSub"):
    define(
        f"{_name}(ref: ref T, value: T, *, T: {NUMBER}, use_locking: bool = false) "
        "-> output_ref: ref T",
        shape=_assigned_reference,
    )
define(
    "IsVariableInitialized(ref: ref dtype, *, dtype: type) -> is_initialized: bool",
    shape=scalars,
    allows_uninitialized_input=True,
)
define(
    "ScatterUpdate(ref: ref T, indices: Tindices, updates: T, *, T: type, "
    "Tindices: {int32, int64}, use_locking: bool = true) -> output_ref: ref T",
    shape=_scattered_reference,
)
for _name in ("ScatterAdd", "ScatterSub"):
    define(
        f"{_name}(ref: ref T, indices: Tindices, updates: T, *, T: {NUMBER}, "
        "Tindices: {int32, int64}, use_locking: bool = false) -> output_ref: ref T",
        shape=_scattered_reference,
    )
define(
    f"ApplyGradientDescent(var: ref T, alpha: T, delta: T, *, T: {NUMBER}, "
    "use_locking: bool = false) -> out: ref T",
    shape=lambda c: [merge(c.dims(0), c.dims(2), c)],
)
define(
    "ScatterNdUpdate(ref: ref T, indices: Tindices, updates: T, *, T: type, "
    "Tindices: {int32, int64}, use_locking: bool = true, "
    'bad_indices_policy: string = "") -> output_ref: ref T',
    shape=_scattered_nd_reference,
)
for _name in ("ScatterNdAdd", "ScatterNdSub"):
    define(
        f"{_name}(ref: ref T, indices: Tindices, updates: T, *, T: {NUMBER}, "
        "Tindices: {int32, int64}, use_locking: bool = false, "
        'bad_indices_policy: string = "") -> output_ref: ref T',
        shape=_scattered_nd_reference,
    )
