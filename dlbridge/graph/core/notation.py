"""The notation of op types.

An op type is declared in one line:

    define("MatMul(a: T, b: T, *, transpose_a: bool = false, T: {float32, int32}) -> product: T")

Before the `*` stand the inputs, after it the attributes, after the arrow the results (none: no
arrow; several: in parentheses). The type of an input or result is

    T               the attribute of that name, of kind `type` (declared below, or implied)
    float32         one dtype, by its DataType name
    N * T           a list of `N` tensors, `N` an attribute of kind `int`
    list(Tin)       a list of tensors whose dtypes are the attribute `Tin`, of kind `list(type)`
    ref T           a reference to a variable

and an attribute is `name: kind`, where kind is one of int, float, bool, string, type, shape,
tensor, func, list(kind), or a set in braces: of dtypes (kind type), or of quoted words (kind
string); a list of a set is `list({…})`. It may go on with a minimum (`N: int >= 1`, of a list its
length) and a default (`axis: int = 0`, `dims: list(int) = []`, `Tout: type = int32`,
`padding: {"SAME", "VALID"} = "SAME"`, `shape: shape = <unknown>`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import c_float
from typing import Any, NamedTuple

from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.shape import TensorShape

_LIST = re.compile(r"list\((.*)\)$", re.DOTALL)


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class Argument(NamedTuple):
    """One input or result of an op type; exactly one of the type fields is set."""

    name: str
    type: DataType | None = None
    type_attr: str | None = None
    number_attr: str | None = None
    type_list_attr: str | None = None
    is_ref: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it stands for several tensors."""
        return self.number_attr is not None or self.type_list_attr is not None


class Attribute(NamedTuple):
    """One attribute of an op type; `default` is MISSING where a value must be given."""

    name: str
    kind: str
    default: Any = MISSING
    minimum: int | None = None
    allowed: tuple[Any, ...] = ()


class Declaration(NamedTuple):
    """An op type as its declaration describes it; `attributes` are by name."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: dict[str, Attribute]


def parse(declaration: str) -> Declaration:
    """Parse a declaration."""
    head, _, results = declaration.strip().partition("->")
    name, _, inside = head.partition("(")
    inside = inside.rstrip().removesuffix(")")
    parts = _split(inside)
    star = parts.index("*") if "*" in parts else len(parts)
    attributes = {each.name: each for each in map(_read_attribute, parts[star + 1 :])}
    results = results.strip()
    if results.startswith("(") and results.endswith(")"):
        results = results[1:-1]
    inputs = tuple([_read_argument(part, attributes) for part in parts[:star]])
    outputs = tuple([_read_argument(part, attributes) for part in _split(results)])
    return Declaration(name.strip(), inputs, outputs, attributes)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0:
                parts.append(text[start:i].strip())
                start = i + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _read_argument(text: str, attributes: dict[str, Attribute]) -> Argument:
    name, _, kind = (part.strip() for part in text.partition(":"))
    is_ref = kind.startswith("ref ")
    kind = kind.removeprefix("ref ").strip()
    listed = _LIST.match(kind)
    if listed:
        _imply(attributes, listed[1], "list(type)", 1)
        return Argument(name, type_list_attr=listed[1], is_ref=is_ref)
    number = None
    if "*" in kind:
        number, _, kind = (part.strip() for part in kind.partition("*"))
        _imply(attributes, number, "int", 1)
    if kind in attributes or not _is_dtype(kind):
        _imply(attributes, kind, "type", None)
        return Argument(name, type_attr=kind, number_attr=number, is_ref=is_ref)
    return Argument(name, type=as_dtype(kind), number_attr=number, is_ref=is_ref)


def _imply(attributes: dict[str, Attribute], name: str, kind: str, minimum: int | None) -> None:
    """Declare an attribute that only an argument mentions."""
    attributes.setdefault(name, Attribute(name, kind, minimum=minimum))


def _is_dtype(name: str) -> bool:
    try:
        as_dtype(name)
    except (TypeError, ValueError):
        return False
    return True


def _read_attribute(text: str) -> Attribute:
    name, _, rest = (part.strip() for part in text.partition(":"))
    rest, equals, default = (part.strip() for part in _partition_default(rest))
    rest, _, minimum = (part.strip() for part in rest.partition(">="))
    listed = _LIST.match(rest)
    element = listed[1].strip() if listed else rest
    allowed: tuple[Any, ...] = ()
    if element.startswith("{"):
        words = _split(element[1:-1])
        is_string = words[0].startswith('"')
        element = "string" if is_string else "type"
        allowed = tuple([_read_value(element, word) for word in words])
    kind = f"list({element})" if listed else element
    value = _read_value(kind, default) if equals else MISSING
    return Attribute(name, kind, value, int(minimum) if minimum else None, allowed)


def _partition_default(text: str) -> tuple[str, str, str]:
    """Split at the `=` of a default, which is not the one of `>=`."""
    match = re.search(r"(?<!>)=", text)
    if match is None:
        return text, "", ""
    return text[: match.start()], "=", text[match.end() :]


_VALUES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": lambda text: c_float(float(text)).value,  # a GraphDef holds 32 bits
    "bool": lambda text: {"true": True, "false": False}[text],
    "string": lambda text: text.strip('"').encode(),
    "type": as_dtype,
    "shape": lambda text: TensorShape(
        None if text == "<unknown>" else [int(dim) for dim in text.strip("[]").split(",") if dim]
    ),
}


def _read_value(kind: str, text: str) -> Any:
    listed = _LIST.match(kind)
    if listed:
        return [_read_value(listed[1], part) for part in _split(text.strip()[1:-1])]
    return _VALUES[kind](text)
