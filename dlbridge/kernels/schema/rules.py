"""What a schema must keep to, checked once when it is made, and what follows from its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from keyword import iskeyword
from typing import Any, NamedTuple

from dlbridge.kernels.schema.dims import MAX_EXTENT, MAX_STEPS, Dim, is_outside
from dlbridge.kernels.schema.parts import MISSING, Parameter, Part, Result, join_parts

# Those of kernel.h.
MAX_TENSORS = 32
MAX_SCALARS = 16
MAX_NAMES = 32
MAX_PACKS = 4
MAX_DTYPES = 16
MAX_RANK = 254

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Flaw(NamedTuple):
    """What is wrong, and with which part: parameters count from 0, results follow; None: all."""

    text: str
    part: int | None


class Names(NamedTuple):
    """What a schema's tensors have in common, each in order of first appearance."""

    names: tuple[str, ...]
    packs: tuple[str, ...]
    dtypes: tuple[str, ...]


def collect_names(parts: tuple[Part, ...]) -> Names:
    """Return the named dimensions, packs and dtype variables of parameters and results."""
    dims = [dim for part in parts for dim in part.dims]
    names = dict.fromkeys(name for dim in dims for name in dim.names)
    packs = dict.fromkeys(str(dim.value) for dim in dims if dim.kind == "pack")
    dtypes = dict.fromkeys(part.dtype.variable for part in parts if part.dtype is not None)
    return Names(tuple(names), tuple(packs), tuple(dtypes))


def find_flaw(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Flaw | None:
    """Return the first thing that is wrong, or None."""
    for check in (
        _check_names, _check_order, _check_values, _check_sizes, _check_bound, _check_limits
    ):  # fmt: skip
        for flaw in check(parameters, results):
            return flaw
    return None


def derive_fields(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> dict[str, Any]:
    """Return the fields that follow from the parts, and the parts."""
    tensors = tuple([part for part in parameters if part.is_tensor])
    parts = join_parts(tensors, results)
    found = collect_names(parts)
    variables = {part.dtype.variable: part.dtype for part in parts if part.dtype}
    scalars = [part.name for part in parameters if not part.is_tensor]
    computed = [
        place
        for place, part in enumerate(tensors)
        if any(dim.kind == "expression" for dim in part.dims)
    ]
    return {
        "parameters": parameters,
        "results": results,
        "tensors": tensors,
        "scalars": tuple([part for part in parameters if not part.is_tensor]),
        "mutated": tuple([place for place, part in enumerate(tensors) if part.mutated]),
        "names": found.names,
        "sizes": tuple(
            [(place, name) for place, name in enumerate(scalars) if name in found.names]
        ),
        "packs": found.packs,
        "dtypes": tuple([variables[variable] for variable in found.dtypes]),
        "positional": tuple([part.name for part in parameters if not part.keyword_only]),
        "by_name": {part.name: part for part in parameters},
        "computed": tuple(computed),
    }


def is_name(name: object) -> bool:
    """Tell whether Python, C++ and the frameworks all take `name` as one."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and not iskeyword(name)


def _check_names(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    seen: set[str] = set()
    for index, part in enumerate(join_parts(parameters, results)):
        what = "argument" if index < len(parameters) else "result"
        if not is_name(part.name):
            yield Flaw(f"{part.name!r} cannot be the name of an {what}", index)
        if part.name in seen:
            yield Flaw(f"the name {part.name!r} is given twice", index)
        if results and part.name == "out" and index < len(parameters):
            yield Flaw("an argument cannot be called 'out': that is where results go", index)
        seen.add(part.name)


def _check_order(parameters: tuple[Parameter, ...], _: tuple[Result, ...]) -> Iterator[Flaw]:
    with_default = ""
    keyword_only = False
    for index, parameter in enumerate(parameters):
        if keyword_only and not parameter.keyword_only:
            yield Flaw(f"{parameter.name!r} by position after arguments by name only", index)
        keyword_only = parameter.keyword_only
        if keyword_only:
            continue
        if with_default and parameter.default is MISSING:
            yield Flaw(
                f"argument {parameter.name!r} without a default after {with_default!r}, "
                "which has one",
                index,
            )
        if parameter.default is not MISSING:
            with_default = parameter.name


def _check_values(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    for index, parameter in enumerate(parameters):
        value = parameter.default
        if parameter.kind == "int" and type(value) is int and not -(2**63) <= value <= MAX_EXTENT:
            yield Flaw(f"the default {value} does not fit 64 bits", index)
        if isinstance(value, str) and not is_transferable(value):
            yield Flaw("a string must be Unicode text without NUL characters", index)
    for index, part in enumerate(join_parts(parameters, results)):
        packs = [str(dim) for dim in part.dims if dim.kind == "pack"]
        if len(packs) > 1:
            yield Flaw(f"{part.name!r} has more than one pack: {', '.join(packs)}", index)
        for dim in part.dims:
            if dim.kind == "constant" and is_outside(dim.value):
                yield Flaw(f"the dimension {dim} is no extent", index)
            if any(is_outside(value) for operation, value in dim.steps if operation == "c"):
                yield Flaw(f"a number in {dim} exceeds 63 bits", index)
            if len(dim.steps) > MAX_STEPS:
                yield Flaw(f"the expression {dim} is too long: at most 16 operands", index)


def is_transferable(text: str) -> bool:
    """Tell whether C can get `text`: UTF-8 that ends at its first NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _check_sizes(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """A scalar that has the name of a dimension is that dimension."""
    names = set(collect_names(join_parts(parameters, results)).names)
    for index, part in enumerate(parameters):
        if part.is_tensor or part.name not in names:
            continue
        if part.kind != "int" or part.optional:
            yield Flaw(f"{part.name!r} is a dimension: it must be int, not {part.type_text}", index)
        if is_outside(part.default):
            yield Flaw(f"{part.name!r} is a dimension: it cannot be {part.default}", index)


def _check_bound(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    """Everything that is computed must be known whatever optional arguments are left out."""
    required = tuple([part for part in parameters if part.is_tensor and not part.optional])
    bound = _bound_by(required)
    given = [part.name for part in parameters if not part.is_tensor]
    bound = bound._replace(names=(*bound.names, *given))
    for index, part in enumerate(parameters):
        known = {*bound.names, *_bound_by((part,)).names}
        for dim in part.dims:
            if dim.kind == "expression":
                yield from _check_dim(dim, known, "dimension", part.name, index)
    for index, result in enumerate(results, len(parameters)):
        if result.dtype.only is None and result.dtype.variable not in bound.dtypes:
            yield Flaw(_undetermined(f"dtype {str(result.dtype)!r}", result.name), index)
        for dim in result.dims:
            known = set(bound.packs if dim.kind == "pack" else bound.names)
            yield from _check_dim(dim, known, "dimension", result.name, index)


def _bound_by(parameters: tuple[Parameter, ...]) -> Names:
    """Return what these tensors determine: a name in an expression is not bound by it."""
    dims = [dim for part in parameters for dim in part.dims]
    names = tuple([str(dim.value) for dim in dims if dim.kind == "name"])
    return Names(names, *collect_names(parameters)[1:])


def _check_dim(dim: Dim, known: set[str], what: str, owner: str, index: int) -> Iterator[Flaw]:
    if dim.kind == "any":
        yield Flaw(f"{owner!r} is a result: '_' says nothing about its size", index)
    needed = (str(dim.value),) if dim.kind == "pack" else dim.names
    for name in needed:
        if name not in known:
            yield Flaw(_undetermined(f"{what} {name!r}", owner), index)


def _undetermined(what: str, owner: str) -> str:
    return f"{what} of {owner!r} is not determined by any argument that must be passed"


def _check_limits(parameters: tuple[Parameter, ...], results: tuple[Result, ...]) -> Iterator[Flaw]:
    tensors = [part for part in parameters if part.is_tensor]
    found = collect_names(join_parts(parameters, results))
    for name in set(found.names) & set(found.packs):
        yield Flaw(f"{name!r} is a dimension and a pack", None)
    counts = (
        (len(tensors) + len(results), MAX_TENSORS, "tensors, results included"),
        (len(parameters) - len(tensors), MAX_SCALARS, "scalars"),
        (len(found.names), MAX_NAMES, "named dimensions"),
        (len(found.packs), MAX_PACKS, "packs"),
        (len(found.dtypes), MAX_DTYPES, "different dtypes and sets"),
    )
    for count, limit, what in counts:
        if count > limit:
            yield Flaw(f"at most {limit} {what}, got {count}", None)
    for index, part in enumerate(join_parts(parameters, results)):
        if len(part.dims) > MAX_RANK:
            yield Flaw(f"{part.name!r} has more than {MAX_RANK} dimensions", index)
