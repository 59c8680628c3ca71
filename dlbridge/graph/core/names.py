"""Names of operations, scopes and tensors: which are valid, and how they are parsed."""

from __future__ import annotations

import re

_ROOT = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_NESTED = re.compile(r"[A-Za-z0-9_.\\/>-]*")
NESTED_ONLY = frozenset("_-/\\>")  # begin no full name

# Names that were checked before, most of them op types; their number is bounded.
CHECKED: set[str] = set()
_MOST_CHECKED = 4096


def check(name: str, scope: str, call: str) -> None:
    """Raise ValueError unless `name` may stand at this place: in a scope, or at the root.

    At the root a name begins with a letter, a digit or a dot; anywhere it may contain `_`, `.`,
    `/`, `-`, `>` and a backslash besides.
    """
    pattern = _NESTED if scope else _ROOT
    if pattern.fullmatch(name) is None:
        where = f"below {scope!r}" if scope else "at the root of a graph"
        raise ValueError(
            f"{call}: {name!r} is not a valid name {where}; expected {pattern.pattern}"
        )
    if not scope and len(CHECKED) < _MOST_CHECKED:
        CHECKED.add(name)


def split_tensor_name(name: str) -> tuple[str, int] | None:
    """Return operation and index of a Tensor's name such as "Const:0"; None for other text."""
    operation, colon, index = name.partition(":")
    if not colon or not (index.isascii() and index.isdigit()):
        return None
    return operation, int(index)
