"""One dimension in a schema: a constant, a name, anything, a pack of dimensions, an expression.

Extents may be symbolic (`torch.SymInt`, JAX's symbolic dimensions): they are compared with `==` and
go through `+ - * //` and nothing else, so that the framework records what it must. An extent that
nobody knows yet (TensorFlow's None) is None, and so is whatever is computed from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Step = tuple[str, int | str]

MAX_EXTENT = 2**63 - 1
MAX_STEPS = 31  # of one expression: at most 16 operands, so the native stack has 16 places

NAMELESS = "..."  # the name of the pack that has none

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,  # `//` in a schema's text
}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERAND = 3


class Dim(NamedTuple):
    """One dimension of a parameter or result.

    Attributes:
        kind: "constant" (exactly `value`), "name" (bound by the first tensor that has it), "any"
            (`_`: whatever comes), "pack" (`...` or `*name`: any number of dimensions) or
            "expression" (`2*n`: computed).
        value: the extent of a constant, the name of a name or pack ("..." if it has none), else "".
        steps: an expression in postfix: ("c", extent), ("n", name), ("+" "-" "*" "/", "").

    Example:
        >>> str(Dim("expression", "", (("n", "n"), ("c", 2), ("/", ""))))
        'n//2'
    """

    kind: str
    value: int | str = ""
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return _WRITERS[self.kind](self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the dimension needs or binds; a pack's own name is none of them."""
        if self.kind == "name":
            return (str(self.value),)
        return tuple([str(value) for operation, value in self.steps if operation == "n"])

    def evaluate(self, names: Mapping[str, Any]) -> Any:
        """Return the extent where `names` are bound, or None where one of them is unknown.

        Raises:
            ZeroDivisionError, OverflowError: there is no value, or it is beyond 64 bits.
        """
        if self.kind == "constant":
            return self.value
        if self.kind == "name":
            return names.get(str(self.value))
        stack: list[Any] = []
        for operation, value in self.steps:
            if operation == "c":
                stack.append(value)
            elif operation == "n":
                stack.append(names.get(str(value)))
            else:
                right, left = stack.pop(), stack.pop()
                known = left is not None and right is not None
                stack.append(_operate(operation, left, right) if known else None)
        return stack.pop() if stack else None


def _operate(operation: str, left: Any, right: Any) -> Any:
    """Return what the operation gives. Plain integers have 64 bits here, as they have in C."""
    if operation == "/" and isinstance(right, int) and right == 0:
        raise ZeroDivisionError("divides by zero")
    value = OPERATORS[operation](left, right)
    if isinstance(value, int) and not -MAX_EXTENT - 1 <= value <= MAX_EXTENT:
        raise OverflowError("exceeds 64 bits")
    return value


def same_extent(one: Any, other: Any) -> bool:
    """Tell whether two extents agree; one that is unknown agrees with anything."""
    return one is other or one is None or other is None or bool(one == other)


def is_outside(extent: Any) -> bool:
    """Tell whether a plain integer is no extent: negative or beyond 63 bits."""
    return isinstance(extent, int) and not 0 <= extent <= MAX_EXTENT


def make_expression(steps: Iterable[Step]) -> Dim:
    """Return the simplest dimension that says the same; without names it is a constant.

    Raises:
        ZeroDivisionError, OverflowError: a constant expression has no value.
    """
    dim = Dim("expression", "", tuple(steps))
    if not dim.names:
        return Dim("constant", dim.evaluate({}))
    if len(dim.steps) == 1:
        return Dim("name", dim.steps[0][1])
    return dim


def _write_pack(dim: Dim) -> str:
    return NAMELESS if dim.value == NAMELESS else f"*{dim.value}"


def _write_expression(dim: Dim) -> str:
    """Return the text with the fewest parentheses that is read back as the same steps."""
    stack: list[tuple[str, int]] = []
    for operation, value in dim.steps:
        if operation in ("c", "n"):
            stack.append((str(value), _OPERAND))
            continue
        binds = _BINDS[operation]
        (right, right_binds), (left, left_binds) = stack.pop(), stack.pop()
        if left_binds < binds:
            left = f"({left})"
        if right_binds <= binds:
            right = f"({right})"
        stack.append((f"{left}{'//' if operation == '/' else operation}{right}", binds))
    return stack[0][0]


_WRITERS: dict[str, Callable[[Dim], str]] = {
    "constant": lambda dim: str(dim.value),
    "name": lambda dim: str(dim.value),
    "any": lambda _: "_",
    "pack": _write_pack,
    "expression": _write_expression,
}
