"""Sharding rules of kernels in JAX's compiled programs, from `sharding=`.

XLA replicates the operands of a foreign function on all devices. Calls of a kernel that has
`sharding=` are partitioned by `jax.experimental.custom_partitioning` instead: along the named
dimensions, operands (or else results) stay sharded as they are, and each device calls the kernel
with its shard. Where shardings are part of types, as under `jax.set_mesh` with `Explicit` axes, a
`shard_map` does the same, and the type of the result has the sharding. Within the user's own
`shard_map`, and on one device, the call is as it would be without `sharding=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dlbridge.kernels.schema import Schema
from dlbridge.kernels.sharding import splits
from dlbridge.signals import not_from_handler

try:
    from jax.experimental import custom_partitioning as partitioning
except not_from_handler(ImportError):  # experimental: without it, arguments are gathered
    partitioning = None

_OPTIONS: Any = (
    inspect.signature(partitioning.custom_partitioning.def_partition).parameters
    if partitioning is not None
    else {}
)
# Shardy asks for a rule before it partitions; older versions of JAX ask the callbacks alone.
_HAS_RULES = "sharding_rule" in _OPTIONS
_HAS_REPLICATION = "need_replication_factors" in _OPTIONS
_HAS_EXPLICIT = hasattr(jax.sharding, "AxisType") and hasattr(jax, "shard_map")


class Way(NamedTuple):
    """One way to split a call: for each operand, and each result, an axis or None."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


def partitioned(
    call: Callable[..., tuple[Any, ...]],
    schema: Schema,
    names: Sequence[str],
    tensors: Sequence[Any],
    operands: Sequence[Any],
) -> Callable[..., tuple[Any, ...]]:
    """Return a function like `call` for operands of these shapes, which XLA can split.

    Args:
        call: a function of the tensors that are present and of scalars behind them.
        schema: of the kernel.
        names: the dimensions along which calls may be split.
        tensors: for each tensor of the schema, its operand, or None.
        operands: what `call` is to be called with.
    """
    ways = _ways(schema, names, tensors, operands)
    if not ways or not operands:
        return call

    mesh = _explicit_mesh()
    if mesh is not None:
        return _mapped(call, ways, mesh)
    if partitioning is None:
        return call

    def place(mesh: Any, arguments: Any, outcome: Any) -> tuple[Any, list[Any], list[Any]]:
        return _place(ways, mesh, list(arguments), list(outcome))

    def partition(mesh: Any, arguments: Any, outcome: Any) -> Any:
        mesh, taken, made = place(mesh, arguments, outcome)
        return mesh, call, tuple(made), tuple(taken)

    def infer(mesh: Any, arguments: Any, outcome: Any) -> Any:
        return tuple(place(mesh, arguments, outcome)[2])

    made = partitioning.custom_partitioning(call)
    options: dict[str, Any] = {}
    if _HAS_RULES:
        shapes = jax.eval_shape(call, *operands)
        options["sharding_rule"] = _rule(ways, operands, shapes)
    made.def_partition(partition, infer_sharding_from_operands=infer, **options)
    split: Callable[..., tuple[Any, ...]] = made
    return split


@cache
def needs_devices() -> Any:
    """Return a parameter for primitives whose lowering may contain partitioned calls.

    It is a program with such a call. JAX searches the parameters of primitives for one to decide
    whether to lower a program for its devices.
    """
    if partitioning is None:
        return None
    made = partitioning.custom_partitioning(lambda x: x)
    made.def_partition(lambda *_: None, infer_sharding_from_operands=None)
    return jax.make_jaxpr(made)(np.float32(0))


def sharding_of(array: Any) -> Any:
    """Return the sharding in the type of an array, if its mesh has Explicit axes, else None."""
    sharding = getattr(getattr(array, "aval", array), "sharding", None)
    if not _HAS_EXPLICIT or not isinstance(sharding, NamedSharding):
        return None
    return sharding if jax.sharding.AxisType.Explicit in sharding.mesh.axis_types else None


def with_sharding(array: Any, sharding: Any) -> Any:
    """Return an array whose type has this sharding of `sharding_of`."""
    is_same = sharding is None or sharding_of(array) == sharding
    return array if is_same else jax.sharding.reshard(array, sharding)


def stacked(sharding: Any, axis: Any) -> Any:
    """Return a sharding of `sharding_of` with one more dimension in front, sharded along `axis`."""
    return sharding and NamedSharding(sharding.mesh, PartitionSpec(axis, *sharding.spec))


def _explicit_mesh() -> Any:
    """Return the current mesh if all its axes are Explicit, else None."""
    if not _HAS_EXPLICIT:
        return None
    mesh = jax.sharding.get_abstract_mesh()
    kinds = set(mesh.axis_types)
    return mesh if kinds == {jax.sharding.AxisType.Explicit} else None


def _mapped(
    call: Callable[..., tuple[Any, ...]], ways: Sequence[Way], mesh: Any
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that calls `call` with shards; the types of its results are sharded."""

    def run(*operands: Any) -> tuple[Any, ...]:
        types = [jax.typeof(each) for each in operands]
        _, taken, made = _place(ways, mesh, types, jax.eval_shape(call, *types))
        mapped = jax.shard_map(
            call,
            in_specs=tuple(each.spec for each in taken),
            out_specs=tuple(each.spec for each in made),
            check_vma=False,
        )
        outcome: tuple[Any, ...] = mapped(*map(jax.sharding.reshard, operands, taken))
        return outcome

    return run


def _ways(
    schema: Schema, names: Sequence[str], tensors: Sequence[Any], operands: Sequence[Any]
) -> list[Way]:
    ranks = [None if each is None else each.ndim for each in tensors]
    scalars = (None,) * (len(operands) - len(tensors) + ranks.count(None))
    present = [place for place, each in enumerate(tensors) if each is not None]
    return [
        Way((*[split.tensors[place] for place in present], *scalars), split.results)
        for split in splits(schema, names, ranks)
    ]


def _rule(ways: Sequence[Way], operands: Sequence[Any], outcome: Sequence[Any]) -> Any:
    """Return Shardy's rule: one factor for each way, and one for each axis that is not split."""
    whole: list[str] = []

    def mapping(axes: Sequence[int | None], rank: int) -> Any:
        factors = []
        for axis in range(rank):
            if axis in axes:
                factors.append(f"way{axes.index(axis)}")
            else:
                whole.append(f"whole{len(whole)}")
                factors.append(whole[-1])
        return partitioning.ArrayMapping(*factors)

    taken = [mapping([way.operands[at] for way in ways], x.ndim) for at, x in enumerate(operands)]
    made = [mapping([way.results[at] for way in ways], x.ndim) for at, x in enumerate(outcome)]
    options: Any = {"need_replication_factors": tuple(whole)} if _HAS_REPLICATION else {}
    return partitioning.SdyShardingRule(tuple(taken), tuple(made), **options)


def _place(
    ways: Sequence[Way], mesh: Any, arguments: Sequence[Any], outcome: Sequence[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """Return the mesh, and the shardings of operands and results, along the same mesh axes."""
    if mesh.empty:  # the shardings are not of a mesh
        devices = [*arguments[0].sharding.device_set]
        mesh = Mesh(np.array(devices), ("devices",))
    chosen: list[Any] = []
    free = set(mesh.axis_names)
    for way in ways:
        pairs = [
            *zip(arguments, way.operands, strict=True),
            *zip(outcome, way.results, strict=True),
        ]
        found = [_axes(mesh, each, axis) for each, axis in pairs if axis is not None]
        axes = next((each for each in found if each and free.issuperset(each)), ())
        free.difference_update(axes)
        chosen.append(axes)

    def sharding(array: Any, axes: Sequence[int | None]) -> Any:
        spec: list[Any] = [None] * len(array.shape)
        for axis, names in zip(axes, chosen, strict=True):
            if axis is not None and names:
                spec[axis] = names
        return NamedSharding(mesh, PartitionSpec(*spec))

    return (
        mesh,
        [sharding(x, [way.operands[at] for way in ways]) for at, x in enumerate(arguments)],
        [sharding(x, [way.results[at] for way in ways]) for at, x in enumerate(outcome)],
    )


def _axes(mesh: Any, array: Any, axis: int) -> tuple[Any, ...]:
    """Return the mesh axes along which an axis of an array is sharded into equal parts."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or axis >= len(sharding.spec):
        return ()
    spec = sharding.spec[axis]
    names = (spec,) if isinstance(spec, str) else spec
    if not isinstance(names, tuple):
        return ()
    return names if array.shape[axis] % prod(mesh.shape[name] for name in names) == 0 else ()
