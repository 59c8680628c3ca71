"""The page of the policies has each of them, with all its values, and its examples run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import dlbridge
from dlbridge.errors import REASONS
from dlbridge.exchange.context import Policies, Policy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "policies.md").read_text()
PARTS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))


def test_it_has_a_part_and_a_row_for_each_policy() -> None:
    assert set(PARTS) == set(Policies.__annotations__)
    assert re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE) == list(PARTS)


@pytest.mark.parametrize("name", PARTS)
def test_each_part_says_what_is_refused_and_has_an_example(name: str) -> None:
    assert "efused" in PARTS[name] or "refuse" in PARTS[name]
    assert "```{code-cell} python" in PARTS[name]


@pytest.mark.parametrize("name", ["copy", "readonly", "immutable", "grad", "layout", "narrow"])
def test_its_values_are_those_that_are_taken(name: str) -> None:
    """The text of a refusal lists the values that there are."""
    cells = re.findall(r"^\| (`[^|]*`) \|", PARTS[name], re.MULTILINE)
    shown = [value.strip("`") for cell in cells for value in cell.split(", ")]
    values = [{"None": None, "False": False, "True": True}.get(v, v.strip('"')) for v in shown]
    for value in values:
        Policy("convert", **{name: value})
    with pytest.raises(dlbridge.ArgumentError) as refusal:
        Policy("convert", **{name: "no such value"})  # type: ignore[arg-type]
    listed = str(refusal.value).partition(", got ")[0].partition("one of ")[2]
    listed = listed or str(refusal.value).partition("must be ")[2].partition(", got ")[0]
    assert {repr(value) for value in values} == set(re.findall(r"None|True|False|'\w+'", listed))


def test_its_examples_run(framework: Callable[[str], object]) -> None:
    for name in ("torch", "jax"):
        framework(name)
    space: dict[str, object] = {}
    for cell in re.findall(r"^```\{code-cell\} python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(cell, "policies.md", "exec"), space)


def test_it_names_every_reason() -> None:
    table = PAGE[PAGE.index("| about | reasons |") :]
    assert set(re.findall(r"`(\w+)`", table)) == set(REASONS)
