"""Sharding rules: the dimensions along which a call may be split between devices.

`sharding="m, n"` of `mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]` means that some rows of `x`
and all of `y` give the same rows of the result, and likewise for the columns of `y`. Tensors
without the dimension are needed whole. A pack (`...`, `*batch`) stands for each of its dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema import Schema, join_parts


def read_names(given: object) -> tuple[str, ...] | None:
    """Return the names of dimensions in `sharding=`: a comma-separated string, or an iterable.

    Raises:
        ArgumentError: it is neither.
    """
    if given is None:
        return None
    several = given.split(",") if isinstance(given, str) else given
    names = tuple(several) if isinstance(several, Iterable) else (several,)
    if not all(isinstance(each, str) for each in names):
        raise ArgumentError(
            f"wrap: sharding must be names of dimensions, as in 'm, n' or '...', got {given!r}"
        )
    return tuple(dict.fromkeys(each.strip().removeprefix("*") for each in names))


def may_be_split(schema: Schema) -> bool:
    """Return whether calls on parts of the arguments can give parts of the results."""
    is_unusual = schema.mutated or schema.has_lists or schema.counts or schema.has_optional_results
    return bool(schema.tensors and schema.results) and not is_unusual


def check_names(schema: Schema, names: Sequence[str]) -> None:
    """Refuse dimensions along which calls of a kernel cannot be split.

    Raises:
        ArgumentError: the schema writes, or has lists or optional results; a name is not one of its
            dimensions, is used in an expression or is an argument; a result lacks it, or a tensor
            has it twice.
    """
    where = f"wrap: {schema.qualified}: sharding="
    if not may_be_split(schema):
        raise ArgumentError(
            f"{where} is for kernels from tensors to new tensors: not for those that write into "
            "arguments, have lists of tensors or optional results, or determine the size of one"
        )
    parts = join_parts(schema.tensors, schema.results)
    for place, name in enumerate(names):
        why = ""
        if name not in (*schema.names, *schema.packs):
            known = ", ".join((*schema.names, *schema.packs)) or "none"
            why = f"is not a dimension of the schema; it has {known}"
        elif any(name == each for _, each in (*schema.sizes, *schema.spread)):
            why = "is a scalar argument"
        elif any(name in dim.names for part in parts for dim in part.dims if dim.kind != "name"):
            why = "is used in an expression"
        else:
            counts = {part.name: len(_places(part, name)) for part in parts}
            lacking = [part.name for part in schema.results if counts[part.name] == 0]
            twice = [each for each, count in counts.items() if count > 1]
            if lacking:
                why = f"is not a dimension of the result {lacking[0]!r}"
            elif twice:
                why = f"occurs twice in {twice[0]!r}"
        if why:
            column = sum(len(each) + 2 for each in names[:place])
            text = f"    {', '.join(names)}\n    {' ' * column}^"
            raise ArgumentError(f"{where} names {name!r}, which {why}\n{text}")


class Split(NamedTuple):
    """One way to split a call: for each tensor argument, and each result, an axis or None."""

    tensors: tuple[int | None, ...]
    results: tuple[int | None, ...]


def splits(schema: Schema, names: Iterable[str], ranks: Iterable[int | None]) -> list[Split]:
    """Return the ways to split a call along dimensions.

    Args:
        schema: of the kernel.
        names: the dimensions and packs, as `check_names` allows them.
        ranks: the rank of each tensor argument; None if it is omitted.
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
    """Return the axis of a dimension in a tensor, or of the one at `offset` in a pack."""
    places = _places(part, name)
    if not places:
        return None
    before = part.dims[: places[0]]
    return sum(packs.get(dim.value, 0) if dim.kind == "pack" else 1 for dim in before) + offset
