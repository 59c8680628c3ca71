"""The text that `help(kernel)` shows: one line for each argument and result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.kernels.schema.dtypes import SETS, DTypeSet
from dlbridge.kernels.schema.export import write_literal
from dlbridge.kernels.schema.parts import MISSING, Parameter, Part, Result, join_parts

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema

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
