"""A schema as others read it: as text, for the native core, for torch, for Python, as help."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import Parameter as Item
from inspect import Signature
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema.parse import parse_expression
from dlbridge.kernels.schema.parts import (
    MISSING,
    SETS,
    Dim,
    DTypeSet,
    Parameter,
    Part,
    Result,
    default_name,
    join_parts,
)

if TYPE_CHECKING:
    from dlbridge.kernels.schema.model import Schema

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


def encode_expression(
    schema: Schema, option: str, size: int | str, number: Callable[[str], int]
) -> tuple[tuple[str, int], ...]:
    """Return an option's integer or expression as the steps that the core computes.

    Args:
        schema: of the kernel.
        option: its name, for texts.
        size: the integer or the expression.
        number: returns the number of a name, or refuses it.

    Raises:
        ArgumentError: it is no expression.
    """
    if isinstance(size, int):
        return (("c", size),)
    try:
        dim = parse_expression(size)
    except ArgumentError as error:
        text = str(error).removeprefix("Schema: ")
        raise ArgumentError(f"{schema.qualified}: {option}: {text}") from None
    steps = dim.steps or ((dim.kind[0], dim.value),)  # "constant" or "name"
    return tuple(
        (operation, number(str(value)) if operation == "n" else int(value or 0))
        for operation, value in steps
    )


def encode_cost(schema: Schema, cost: int | str) -> tuple[tuple[str, int], ...]:
    """Return the steps that compute the cost of a call from the schema's dimensions.

    Raises:
        ArgumentError: it is no expression, or has a name that the schema does not know.
    """

    def number(name: str) -> int:
        if name not in schema.names:
            known = ", ".join(schema.names) or "none"
            raise ArgumentError(
                f"{schema.qualified}: cost: {name!r} is no dimension of the schema; it has {known}"
            )
        return schema.names.index(name)

    return encode_expression(schema, "cost", cost, number)


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


# ---- help: one line for each argument and result -------------------------------------------------

_SHARED = {
    "contiguous": "shared if it is row-major, else copied",
    "strided": "shared",
}
_WRITTEN = {
    "contiguous": "written in place, through a copy unless it is row-major",
    "strided": "written in place",
}


def help_text(schema: Schema, summary: str, layout: str) -> str:
    """Return the help of a kernel; see `Schema.help`."""
    sections = [summary.strip() or f"Run the kernel {schema.qualified}.", str(schema)]
    arguments = [_argument(schema, parameter, layout) for parameter in schema.parameters]
    if schema.results:
        arguments.append(_out(schema))
    if arguments:
        sections.append(_section("Args", arguments))
    if schema.results:
        sections.append(_section("Returns", [_result(schema, part) for part in schema.results]))
    sections.append(_section("Raises", _errors(schema)))
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *[f"    {line}" for line in lines]])


def _argument(schema: Schema, parameter: Parameter, layout: str) -> str:
    kind = _tensor(schema, parameter) if parameter.is_tensor else parameter.kind
    words = [f"{kind}, or None" if parameter.optional else kind]
    if parameter.is_tensor:
        words.append((_WRITTEN if parameter.mutated else _SHARED)[layout])
    elif parameter.name in schema.names:
        words.append("a dimension, at least 0")
    if parameter.default is not MISSING:
        words.append(f"{write_literal(parameter.default)} if left out")
    return f"{parameter.name}: {'; '.join(words)}."


def _out(schema: Schema) -> str:
    if len(schema.results) == 1:
        return "out: a tensor to write the result into, of the same framework, and to return."
    names = ", ".join([result.name for result in schema.results])
    return f"out: a tuple of tensors ({names}) to write the results into, and to return."


def _result(schema: Schema, result: Result) -> str:
    words = _tensor(schema, result)
    return f"{result.name}: {words}; new memory of the caller's framework, or `out`."


def _tensor(schema: Schema, part: Part) -> str:
    assert part.dtype is not None
    dims = ", ".join(map(str, part.dims))
    shape = f"of shape [{dims}]" if dims else "without dimensions"
    words = [f"{_dtype(part.dtype)} {shape}"]
    if part.dtype.only is None:
        words += _same_dtype(schema, part)
    return ", ".join(words)


def _dtype(dtype: DTypeSet) -> str:
    if dtype.text == "any":
        return "tensor of any dtype,"
    members = [dtype.text] if dtype.text in SETS else [member.name for member in dtype.dtypes]
    return f"{' or '.join(members)} tensor"


def _same_dtype(schema: Schema, part: Part) -> list[str]:
    """Return which other tensors have the dtype that this one has, in words."""
    others = [
        other.name
        for other in join_parts(schema.tensors, schema.results)
        if other.dtype == part.dtype and other is not part
    ]
    return [f"of one dtype with {' and '.join(others)}"] if others else []


def _errors(schema: Schema) -> list[str]:
    lines = ["TypeError: a wrong number or kind of arguments, or a wrong dtype."]
    if any(part.dims for part in join_parts(schema.tensors, schema.results)):
        lines.append("ValueError: a wrong shape, or a scalar that does not fit.")
    if schema.tensors:
        lines.append("BufferError: memory that the kernel cannot take: its device, its layout, …")
    lines.append("KernelError: the kernel failed; the text is its own.")
    return lines
