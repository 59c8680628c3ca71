"""The text that `help(kernel)` shows: one line for each argument and result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.kernels.schema_dtypes import SETS, DTypeSet
from dlbridge.kernels.schema_export import write_literal
from dlbridge.kernels.schema_parts import MISSING, Parameter, Result, join_parts

if TYPE_CHECKING:
    from dlbridge.kernels.schema import Schema

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
    arguments = [_argument(parameter, layout) for parameter in schema.parameters]
    if schema.results:
        arguments.append(_out(schema))
    if arguments:
        sections.append(_section("Args", arguments))
    if schema.results:
        sections.append(_section("Returns", [_result(result) for result in schema.results]))
    sections.append(_section("Raises", _errors(schema)))
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *[f"    {line}" for line in lines]])


def _argument(parameter: Parameter, layout: str) -> str:
    if parameter.is_tensor:
        words = [_tensor(parameter), (_WRITTEN if parameter.mutated else _SHARED)[layout]]
    else:
        words = [parameter.kind]
    if parameter.optional:
        words.append("or None")
    if parameter.default is not MISSING:
        words.append(f"{write_literal(parameter.default)} if left out")
    return f"{parameter.name}: {'; '.join(words)}."


def _out(schema: Schema) -> str:
    if len(schema.results) == 1:
        return "out: a tensor to write the result into, of the same framework, and to return."
    names = ", ".join([result.name for result in schema.results])
    return f"out: a tuple of tensors ({names}) to write the results into, and to return."


def _result(result: Result) -> str:
    return f"{result.name}: {_tensor(result)}; new memory of the caller's framework, or `out`."


def _tensor(part: Parameter | Result) -> str:
    assert part.dtype is not None
    dims = ", ".join(map(str, part.dims))
    shape = f"of shape [{dims}]" if dims else "without dimensions"
    return f"{_dtype(part.dtype)} tensor {shape}"


def _dtype(dtype: DTypeSet) -> str:
    if dtype.only is not None:
        return dtype.only.name
    words = "any dtype" if dtype.text == "any" else _alternatives(dtype)
    return f"{words} (one dtype, {dtype.variable!r})"


def _alternatives(dtype: DTypeSet) -> str:
    if dtype.text in SETS:
        return dtype.text
    return " or ".join([member.name for member in dtype.dtypes])


def _errors(schema: Schema) -> list[str]:
    lines = ["TypeError: a wrong number or kind of arguments, or a wrong dtype."]
    if any(part.dims for part in join_parts(schema.tensors, schema.results)):
        lines.append("ValueError: a wrong shape, or a scalar that does not fit.")
    if schema.tensors:
        lines.append("BufferError: memory that the kernel cannot take: its device, its layout, …")
    lines.append("KernelError: the kernel failed; the text is its own.")
    return lines
