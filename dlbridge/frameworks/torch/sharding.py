"""Sharding rules of kernels for torch's DTensors, from `sharding=`.

DTensor redistributes the arguments as a rule requires, then calls the operator with the local part
of each process. Without `sharding=` all arguments are gathered, and each process computes the whole
result. The rules are registered once torch.distributed.tensor is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from dlbridge import registry
from dlbridge.kernels.schema import Schema
from dlbridge.kernels.sharding import may_be_split, splits
from dlbridge.signals import not_from_handler

_DTENSOR = "torch.distributed.tensor"
_PENDING: list[tuple[Any, Schema, Schema, tuple[str, ...]]] = []


def offer(overload: Any, schema: Schema, layout: Schema, names: tuple[str, ...]) -> None:
    """Register the sharding rule of an operator with DTensor.

    Args:
        overload: the functional overload of the operator.
        schema: the schema of the kernel.
        layout: the schema with its arguments as the operator has them.
        names: the dimensions along which calls may be split.
    """
    if not _is_supported(schema):
        return
    _PENDING.append((overload, schema, layout, names))
    if _DTENSOR not in sys.modules:
        registry.after_import(_DTENSOR, _register_all)
    if _DTENSOR in sys.modules:  # also if another thread has just imported it
        _register_all()


def _is_supported(schema: Schema) -> bool:
    """Return whether DTensor can call a kernel: it keys shapes of results by tensors and ints."""
    plain = all(part.kind in ("int", "float", "bool", "str") for part in schema.scalars)
    return plain and may_be_split(schema)


def _register_all() -> None:
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except not_from_handler(ImportError):  # torch without distributed
        return
    while True:
        try:
            overload, schema, layout, names = _PENDING.pop()
        except not_from_handler(IndexError):  # none is left, or another thread took the last one
            return
        register_sharding(overload)(_make_rule(schema, layout, names))


def _make_rule(schema: Schema, layout: Schema, names: tuple[str, ...]) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    by_position = [part for part in layout.parameters if not part.keyword_only]

    def placement(axis: int | None) -> Any:
        return Replicate() if axis is None else Shard(axis)

    def rule(*args: Any, **_: Any) -> list[Any]:
        given = dict(zip([part.name for part in by_position], args, strict=False))
        present = [given.get(part.name) for part in schema.tensors]
        ranks = [None if each is None else each.ndim for each in present]
        whole = (None,) * len(schema.tensors), (None,) * len(schema.results)
        found = []
        for inputs, outputs in (whole, *splits(schema, names, ranks)):
            axes = dict(zip([part.name for part in schema.tensors], inputs, strict=True))
            placed = [
                placement(axes[part.name])
                if part.is_tensor and given.get(part.name) is not None
                else None
                for part in by_position[: len(args)]
            ]
            found.append(([placement(axis) for axis in outputs], placed))
        return found

    return rule
