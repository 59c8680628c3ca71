"""Kernels with torch's DTensors: which parts of their arguments calls need, as `sharding=` says.

DTensor calls the operator with the parts of each process, and before that moves them as far as it
must. Without a rule all of them are gathered, and each process computes the whole. The rules are
registered once torch.distributed.tensor is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from dlbridge import registry
from dlbridge.kernels.schema import Schema
from dlbridge.kernels.sharding import splits
from dlbridge.signals import not_from_handler

_DTENSOR = "torch.distributed.tensor"
_PENDING: list[tuple[Any, Schema, Schema, tuple[str, ...]]] = []


def offer(overload: Any, schema: Schema, layout: Schema, names: tuple[str, ...]) -> None:
    """Have DTensor know an operator.

    Args:
        overload: the functional one.
        schema: the kernel's.
        layout: the schema with its arguments as the operator has them.
        names: the dimensions along which calls may be split.
    """
    if not _may_be_parts(schema):
        return
    _PENDING.append((overload, schema, layout, names))
    if _DTENSOR in sys.modules:
        _register_all()
    else:
        registry.after_import(_DTENSOR, _register_all)


def _may_be_parts(schema: Schema) -> bool:
    """Return whether calls on parts are the same; DTensor copies what it moves.

    It remembers the shapes and dtypes of results by the tensors and integers of a call alone.
    """
    plain = all(part.kind in ("int", "float", "bool", "str") for part in schema.scalars)
    unusual = schema.mutated or schema.has_lists or schema.counts or schema.has_optional_results
    return plain and not unusual and bool(schema.tensors) and bool(schema.results)


def _register_all() -> None:
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except not_from_handler(ImportError):  # torch without distributed
        return
    while _PENDING:
        overload, schema, layout, names = _PENDING.pop()
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
