"""Sharding rules: the dimensions along which a call may be split between devices.

`sharding="m, n"` of `mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]` says that a part of the rows of
`x`, and all of `y`, give that part of the rows of the result, and that columns do likewise. Tensors
without the dimension are needed whole. A pack (`...`, `*batch`) stands for each of its dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema import Schema, join_parts


def read_names(given: object) -> tuple[str, ...] | None:
    """Return the names of dimensions as `wrap` was given them: text with commas, or several.

    Raises:
        ArgumentError: it is neither.
    """
    if given is None:
        return None
    several = given.split(",") if isinstance(given, str) else given
    if not isinstance(several, Iterable) or not all(isinstance(each, str) for each in several):
        raise ArgumentError(
            f"wrap: sharding must be names of dimensions, as in 'm, n' or '...', got {given!r}"
        )
    return tuple(dict.fromkeys(each.strip().removeprefix("*") for each in several))


def check_names(schema: Schema, names: Iterable[str]) -> None:
    """Refuse dimensions along which no call of a kernel can be split.

    Raises:
        ArgumentError: the schema writes, or has lists or optional results; a name is none of its
            dimensions, is computed with or an argument, or a result or an argument does not have it
            once.
    """
    where = f"wrap: {schema.qualified}: sharding="
    if schema.mutated or schema.has_lists or schema.counts or schema.has_optional_results:
        raise ArgumentError(
            f"{where} is for kernels that write into no argument, without lists of tensors and "
            "results that are optional or whose size the kernel says"
        )
    parts = join_parts(schema.tensors, schema.results)
    for name in names:
        why = ""
        if name not in (*schema.names, *schema.packs):
            known = ", ".join((*schema.names, *schema.packs)) or "none"
            why = f"is no dimension of the schema, which has {known}"
        elif any(name == each for _, each in (*schema.sizes, *schema.spread)):
            why = "is an argument"
        elif any(name in dim.names for part in parts for dim in part.dims if dim.kind != "name"):
            why = "is computed with"
        else:
            counts = {part.name: len(_places(part, name)) for part in parts}
            lacking = [part.name for part in schema.results if counts[part.name] == 0]
            twice = [each for each, count in counts.items() if count > 1]
            if lacking:
                why = f"is no dimension of the result {lacking[0]!r}, of which a part is no part"
            elif twice:
                why = f"is there twice in {twice[0]!r}"
        if why:
            raise ArgumentError(f"{where} names {name!r}, which {why}")


class Split(NamedTuple):
    """One way to split a call: for each tensor argument, and each result, an axis or None."""

    tensors: tuple[int | None, ...]
    results: tuple[int | None, ...]


def splits(schema: Schema, names: Iterable[str], ranks: Iterable[int | None]) -> list[Split]:
    """Return the ways to split a call along dimensions.

    Args:
        schema: of the kernel.
        names: of the dimensions and packs, as `check_names` allows them.
        ranks: of the tensor arguments; None for one that is left out.
    """
    packs: dict[Any, int] = {}
    for part, rank in zip(schema.tensors, ranks, strict=True):
        for dim in part.dims:
            if dim.kind == "pack" and rank is not None:
                packs[dim.value] = rank - len(part.dims) + 1
    ways = [
        (name, offset)
        for name in names
        for offset in range(packs.get(name, 0) if name in schema.packs else 1)
    ]
    return [
        Split(
            tuple([_axis(part, *way, packs) for part in schema.tensors]),
            tuple([_axis(part, *way, packs) for part in schema.results]),
        )
        for way in ways
    ]


def _places(part: Any, name: str) -> list[int]:
    kinds = ("name", "pack")
    return [at for at, dim in enumerate(part.dims) if dim.kind in kinds and dim.value == name]


def _axis(part: Any, name: str, offset: int, packs: dict[Any, int]) -> int | None:
    """Return which axis of a tensor the dimension is, or the one at `offset` in the pack."""
    places = _places(part, name)
    if not places:
        return None
    before = part.dims[: places[0]]
    return sum(packs.get(dim.value, 0) if dim.kind == "pack" else 1 for dim in before) + offset
