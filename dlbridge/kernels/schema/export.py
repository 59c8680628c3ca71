"""What others read from a schema: its text, the native core's form, torch's, Python's, a help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dlbridge.kernels.schema.dims import Dim
from dlbridge.kernels.schema.dtypes import DTypeSet
from dlbridge.kernels.schema.parts import MISSING, Parameter, Result
from dlbridge.kernels.schema.text import default_name

if TYPE_CHECKING:
    from inspect import Signature

    from dlbridge.kernels.schema.schema import Schema

_SMALLEST_NORMAL = 2.0**-1022


# ---- text --------------------------------------------------------------------------------------


def write_schema(schema: Schema) -> str:
    """Return the text that is read back as an equal schema."""
    defined: set[str] = set()
    items = write_parameters(schema.parameters, defined)
    return f"{schema.qualified}({', '.join(items)}){write_results(schema.results, defined)}"


def write_parameters(parameters: tuple[Parameter, ...], defined: set[str]) -> list[str]:
    """Return the items between the parentheses, `*` among them."""
    items: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in items:
            items.append("*")
        mark = "!" if parameter.mutated else ""
        text = f"{parameter.name}{mark}: {write_type(parameter, defined)}"
        if parameter.default is not MISSING:
            text += f" = {write_literal(parameter.default)}"
        items.append(text)
    return items


def write_results(results: tuple[Result, ...], defined: set[str]) -> str:
    """Return the arrow and what follows it, or nothing."""
    count = len(results)
    items = []
    for index, result in enumerate(results):
        name = "" if result.name == default_name(index, count) else f"{result.name}: "
        items.append(name + write_type(result, defined))
    if not items:
        return ""
    if count == 1 and items[0][:1] and ":" not in items[0]:
        return f" -> {items[0]}"
    return f" -> ({', '.join(items)})"


def write_type(part: Parameter | Result, defined: set[str]) -> str:
    """Return a type; a variable with a name is defined where it appears first."""
    if part.dtype is None:
        return part.type_text
    dtype = part.dtype.name if part.dtype.name in defined else str(part.dtype)
    defined.add(part.dtype.name)
    optional = "?" if isinstance(part, Parameter) and part.optional else ""
    return f"{dtype or part.dtype.text}[{', '.join(map(str, part.dims))}]{optional}"


def write_literal(value: Any) -> str:
    """Return a default as it stands in a schema; strings in double quotes."""
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    letters = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped]
    return f'"{"".join(letters)}"'


# ---- the native core ---------------------------------------------------------------------------


def encode(schema: Schema) -> tuple[Any, ...]:
    """Return the tuples that `native.KernelBase` reads; see `Schema.encode`."""
    numbers = {name: index for index, name in enumerate(schema.names)}
    packs = {name: index for index, name in enumerate(schema.packs)}
    dtypes = {part.variable: index for index, part in enumerate(schema.dtypes)}

    def encode_tensor(part: Parameter | Result) -> tuple[int, tuple[Any, ...]]:
        assert part.dtype is not None
        dims = tuple([_encode_dim(dim, numbers, packs) for dim in part.dims])
        return dtypes[part.dtype.variable], dims

    return (
        tuple([_encode_set(dtype) for dtype in schema.dtypes]),
        len(numbers),
        len(packs),
        tuple([(*encode_tensor(part), part.optional, part.mutated) for part in schema.tensors]),
        tuple([encode_tensor(result) for result in schema.results]),
        tuple([(part.kind, part.optional, numbers.get(part.name, -1)) for part in schema.scalars]),
    )


def _encode_set(dtype: DTypeSet) -> tuple[int, ...]:
    return tuple(
        [
            code | bits << 8 | lanes << 16
            for code, bits, lanes in (member.triple for member in dtype.dtypes)
        ]
    )


def _encode_dim(dim: Dim, numbers: dict[str, int], packs: dict[str, int]) -> tuple[Any, ...]:
    if dim.kind == "expression":
        steps = [
            (operation, numbers[str(value)] if operation == "n" else value or 0)
            for operation, value in dim.steps
        ]
        return "e", tuple(steps)
    if dim.kind == "constant":
        return "c", dim.value
    if dim.kind == "any":
        return ("_",)
    return ("p", packs[str(dim.value)]) if dim.kind == "pack" else ("n", numbers[str(dim.value)])


def encode_arguments(schema: Schema) -> tuple[Any, ...]:
    """Return how arguments of a call are found; see `Schema.encode_arguments`."""
    counts = {True: 0, False: 0}
    rows = []
    for part in schema.parameters:
        has_default = part.default is not MISSING
        default = part.default if has_default else None
        index = counts[part.is_tensor]
        rows.append((part.name, part.kind, index, part.keyword_only, has_default, default))
        counts[part.is_tensor] += 1
    return tuple(rows)


# ---- torch -------------------------------------------------------------------------------------


def torch_schema(schema: Schema) -> str:
    """Return torch's own schema of the operator; see `Schema.torch_schema`."""
    hidden = _hidden_defaults(schema.parameters)
    items: list[str] = []
    marks = iter(["a", *[f"a{number}" for number in range(1, len(schema.mutated))]])
    for parameter in schema.parameters:
        if parameter.keyword_only and "*" not in items:
            items.append("*")
        alias = f"({next(marks)}!)" if parameter.mutated else ""
        kind = f"Tensor{alias}" if parameter.is_tensor else parameter.kind
        if not parameter.is_tensor and parameter.name in schema.names:
            kind = "SymInt"  # torch may compile for every value at once
        text = f"{kind}{'?' if parameter.optional else ''} {parameter.name}"
        if parameter.default is not MISSING and parameter.name not in hidden:
            text += f"={write_literal(parameter.default)}"
        items.append(text)
    tensors = ["Tensor"] * len(schema.results)
    results = tensors[0] if len(tensors) == 1 else f"({', '.join(tensors)})"
    return f"{schema.name}({', '.join(items)}) -> {results}"


def _hidden_defaults(parameters: tuple[Parameter, ...]) -> set[str]:
    """Return whose defaults to leave out, because torch's parser cannot read them.

    Positional ones before such a one go with it: torch wants defaults last.
    """
    hidden: set[str] = set()
    before: list[str] = []
    for parameter in parameters:
        before = [] if parameter.keyword_only else [*before, parameter.name]
        if not _is_read_by_torch(parameter.default):
            hidden.update(before, (parameter.name,))
    return hidden


def _is_read_by_torch(default: Any) -> bool:
    if isinstance(default, float):
        return default == 0 or _SMALLEST_NORMAL <= abs(default) < math.inf
    text = write_literal(default) if isinstance(default, str) else ""
    return text.isascii() and "\\" not in text


# ---- Python ------------------------------------------------------------------------------------


def signature(schema: Schema) -> Signature:
    """Return the call as Python sees it; see `Schema.signature`."""
    from inspect import Parameter as Item
    from inspect import Signature

    items = [
        Item(
            part.name,
            Item.KEYWORD_ONLY if part.keyword_only else Item.POSITIONAL_OR_KEYWORD,
            default=Item.empty if part.default is MISSING else part.default,
            annotation=part.type_text,
        )
        for part in schema.parameters
    ]
    if schema.results:
        kind = "tensor" if len(schema.results) == 1 else "tuple"
        items.append(Item("out", Item.KEYWORD_ONLY, default=None, annotation=f"{kind}?"))
    types = [result.type_text for result in schema.results]
    returns = types[0] if len(types) == 1 else f"({', '.join(types)})" if types else None
    return Signature(items, return_annotation=returns)
