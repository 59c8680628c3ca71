"""Stubs of kernel libraries: what editors and type checkers read of operators in a binary.

A kernel takes the tensors of one framework and gives the same back, so it has an overload for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dlbridge import registry
from dlbridge.exchange import adapter
from dlbridge.frameworks.__main__ import TYPES
from dlbridge.kernels.exports import Export
from dlbridge.kernels.schema import MISSING, Parameter, Result, Schema

# Those whose arrays never change return what a kernel writes, after its results.
RETURNING = ("jax", "tensorflow")


def write_stub(exports: Iterable[Export], frameworks: Sequence[str]) -> str:
    """Return the text of a stub with a name for each kernel that is an attribute of its library.

    Args:
        exports: of one library; functions of one operator for several platforms are one kernel.
        frameworks: names of rows, whose tensors are accepted, in the order of the overloads.
    """
    kernels = {export.schema.qualified: export for export in reversed([*exports])}
    count = Counter(export.schema.name for export in kernels.values())
    # By name: in a library they are as the compiler arranged them, which its options change.
    shown = [kernels[name] for name in sorted(kernels) if count[kernels[name].schema.name] == 1]
    lines = [
        "# Written by `python -m dlbridge stubs`. Tensors of what is not installed are Any there.",
        "# mypy: ignore-errors",
        "# pyright: reportMissingImports=false, reportOverlappingOverload=false",
        "from typing import Any, overload",
        "",
        *(f"import {TYPES[name][0]}" for name in sorted(frameworks, key=_module)),
        "from dlbridge import Kernel",
    ]
    for export in shown:
        lines += ["", f"class _{export.schema.name}(Kernel):", *_calls(export.schema, frameworks)]
    lines += ["", *(f"{each.schema.name}: _{each.schema.name}" for each in shown)]
    lines += ["", "def __getattr__(name: str) -> Any: ...", ""]  # what else the package has
    return "\n".join(lines)


def known_frameworks() -> list[str]:
    """Return the frameworks whose type of tensors is known, in the order of the rows."""
    return [row.name for row in registry.rows() if row.name in TYPES]


def _module(name: str) -> str:
    return TYPES[name][0]


def _calls(schema: Schema, frameworks: Sequence[str]) -> list[str]:
    """Return the overloads of one kernel; one alone is none."""
    lines = []
    for name in frameworks:
        if schema.mutated and not (name in RETURNING or adapter.adapter(name).writable):
            continue
        if len(frameworks) > 1:
            lines.append("    @overload")
        lines.append(
            f"    def __call__({_parameters(schema, name)}) -> {_result(schema, name)}: ..."
        )
    return lines


def _parameters(schema: Schema, framework: str) -> str:
    tensor = TYPES[framework][1]
    parts, is_named = ["self"], False
    for each in schema.parameters:
        if each.keyword_only and not is_named:
            parts.append("*")
            is_named = True
        parts.append(_parameter(each, tensor))
    if schema.takes_out and framework not in RETURNING and adapter.adapter(framework).writable:
        out = _several([_type(each, tensor) for each in schema.results])
        parts += [*([] if is_named else ["*"]), f"out: {out} | None = None"]
    return ", ".join(parts)


def _type(part: Parameter | Result, tensor: str) -> str:
    kind = part.number if isinstance(part, Result) and part.number else tensor
    if isinstance(part, Result) and part.condition:
        return f"{kind} | None"
    return f"list[{tensor}]" if part.is_list else kind


def _parameter(part: Parameter, tensor: str) -> str:
    kind = tensor if part.is_tensor else _TYPES.get(part.kind, part.kind)
    if part.many is not None:
        kind = f"list[{tensor}] | tuple[{tensor}, ...]"
    kind += " | None" if part.optional else ""
    default: Any = part.default
    return f"{part.name}: {kind}" + ("" if default is MISSING else f" = {_literal(default)}")


_TYPES = {
    "dtype": "object",  # of any framework, or a name
    "int[]": "tuple[int, ...] | list[int]",
    "float[]": "tuple[float, ...] | list[float]",
}


def _literal(value: object) -> str:
    """Return a default as a stub may have it: `...` for what is no literal, such as infinity."""
    if isinstance(value, tuple):
        items = [_literal(each) for each in value]
        return "..." if "..." in items else f"({''.join(f'{item}, ' for item in items).strip()})"
    is_plain = value is None or isinstance(value, bool | int | str)
    return repr(value) if is_plain or repr(value).replace(".", "").isdecimal() else "..."


def _result(schema: Schema, framework: str) -> str:
    parts: list[Parameter | Result] = [*schema.results]
    if framework in RETURNING:
        parts += [schema.tensors[place] for place in schema.mutated]
    return _several([_type(part, TYPES[framework][1]) for part in parts])


def _several(types: list[str]) -> str:
    if not types:
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
