"""The catalogue of the rules of DLPack: what each demands, and how much it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Side = Literal["producer", "consumer"]
Severity = Literal["must", "should", "hazard"]


class BrokenError(Exception):
    """The rule is broken; the text says how."""


class NotApplicableError(Exception):
    """The rule says nothing of this peer; the text says why."""


@dataclass(frozen=True)
class Rule:
    """One rule of the standard and its check.

    Attributes:
        id: such as "producer.device_pair"; it stays the same over versions.
        side: whom it binds, "producer" or "consumer".
        severity: "must" is a demand of the standard, "should" a recommendation, "hazard" is allowed
            or not ruled at all, but leads to crashes or wrong data in practice.
        clause: where the standard rules it.
        reason: what it demands and why, in one sentence.
        check: gets the peer; raises `BrokenError` (or anything else) if the rule is broken.
        alone: whether it needs a process of its own, whose end is part of the check.
    """

    id: str
    side: Side
    severity: Severity
    clause: str
    reason: str
    check: Callable[[Any], None]
    alone: bool = False


_rules: dict[str, Rule] = {}


def rule(
    side: Side, severity: Severity, clause: str, *, alone: bool = False
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a check in the catalogue, under its name and with its docstring as the reason."""

    def enter(check: Callable[[Any], None]) -> Callable[[Any], None]:
        name = f"{side}.{check.__name__}"
        reason = " ".join((check.__doc__ or "").split())
        _rules[name] = Rule(name, side, severity, clause, reason, check, alone)
        return check

    return enter


def rules(side: Side | None = None) -> tuple[Rule, ...]:
    """Return the rules for one side, or all, in the order in which they are checked."""
    for each_side in ("producer", "consumer"):  # whose import enters them
        import_module(f"dlbridge.check.{each_side}_rules")
    return tuple(each for each in _rules.values() if side in (None, each.side))


def need(condition: object, text: str) -> None:
    """Raise `BrokenError` unless the condition holds."""
    if not condition:
        raise BrokenError(text)
