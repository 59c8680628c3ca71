"""Einsum equations: read, checked, and applied to shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dlbridge.shape import Dims

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class Equation(NamedTuple):
    """The labels of each operand and of the result; `.` stands for what an ellipsis covers."""

    operands: tuple[str, ...]
    result: str


def parse(text: str, count: int) -> Equation:
    """Return the equation of `count` operands; without an arrow, labels met once are the result.

    Raises:
        ValueError: it is no equation, or one of another number of operands.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        if not _TERM.fullmatch(term):
            raise ValueError(
                f"Invalid einsum equation {text!r}: each operand is letters and at most one "
                f"ellipsis, got {term!r}"
            )
    if len(terms) != count:
        raise ValueError(
            f"einsum equation {text!r} has {len(terms)} operands, but {count} tensors were given"
        )
    operands = tuple([term.replace("...", ".") for term in terms])
    result = right.replace("...", ".") if arrow else _implied(operands)
    _check_result(text, operands, result)
    return Equation(operands, result)


def _implied(operands: Sequence[str]) -> str:
    labels = "".join(operands).replace(".", "")
    once = sorted({label for label in labels if labels.count(label) == 1})
    return "." * any("." in term for term in operands) + "".join(once)


def _check_result(text: str, operands: Sequence[str], result: str) -> None:
    known = set("".join(operands))
    for label in result:
        if label not in known and label != ".":
            raise ValueError(f"einsum equation {text!r}: no operand has the label {label!r}")
        if result.count(label) > 1:
            raise ValueError(f"einsum equation {text!r}: the result has {label!r} twice")
    if "." in known and "." not in result:
        raise ValueError(f"einsum equation {text!r}: the result lacks the ellipsis of its operands")


def write(equation: Equation) -> str:
    """Return the equation as text, with an arrow."""
    text = f"{','.join(equation.operands)}->{equation.result}"
    return text.replace(".", "...")


def contract(equation: Equation, shapes: Sequence[Dims | None]) -> Dims | None:
    """Return the shape of the result.

    Raises:
        ValueError: the shapes do not fit the equation.
    """
    extents: dict[str, int | None] = {}
    spread: Dims | None = ()
    for term, dims in zip(equation.operands, shapes, strict=True):
        if dims is None:
            spread = None if "." in term else spread
            continue
        before, has_ellipsis, after = term.partition(".")
        free = len(dims) - len(before) - len(after)
        if free < 0 or (free and not has_ellipsis):
            raise ValueError(f"einsum: labels {term!r} do not fit {len(dims)} dimensions")
        named = dims[: len(before)] + dims[len(dims) - len(after) :]
        for label, dim in zip(before + after, named, strict=True):
            extents[label] = _agree(label, extents.get(label), dim)
        if has_ellipsis:
            spread = _spread(spread, dims[len(before) : len(before) + free])
    if "." in equation.result and spread is None:
        return None
    out: list[int | None] = []
    for label in equation.result:
        out += (spread or ()) if label == "." else [extents.get(label)]
    return tuple(out)


def _agree(label: str, known: int | None, dim: int | None) -> int | None:
    if known is None or dim is None or known == dim:
        return dim if known is None else known
    raise ValueError(f"einsum: Dimensions must be equal for {label!r}, but are {known} and {dim}")


def _spread(known: Dims | None, dims: Dims) -> Dims | None:
    if known is None:
        return None
    rank = max(len(known), len(dims))
    one, other = ((1,) * (rank - len(each)) + each for each in (known, dims))
    return tuple([_agree("...", _unit(a, b), _unit(b, a)) for a, b in zip(one, other, strict=True)])


def _unit(dim: int | None, other: int | None) -> int | None:
    """An extent of 1 is broadcast, so it says nothing."""
    return None if dim == 1 and other is None else (other if dim == 1 else dim)
