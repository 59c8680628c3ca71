"""docs/reliability.md does not lie: each class of failure and each attack has tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
CLASSES = re.findall(r"^\| C(\d+) \| .* \| (.*) \|$", TEXT, re.MULTILINE)
NAMED = [
    (f"C{number}", *name)
    for number, row in CLASSES
    for name in re.findall(r"`([^`:]+)::(\w+)`", row)
]
ATTACKS = TEXT.partition("## Attacks\n")[2].partition("\n## ")[0]
HELD = sorted(set(re.findall(r"`([^`:]+)::(\w+)`", ATTACKS)))


def test_each_attack_has_a_test() -> None:
    rows = re.findall(r"^\| [^|-].* \| (.*) \|$", ATTACKS, re.MULTILINE)[1:]
    assert len(rows) > 20
    assert all(re.fullmatch(r"`[^`:]+::test_\w+`(<br>`[^`:]+::test_\w+`)*", row) for row in rows)


def test_each_class_of_failure_has_a_row_with_tests() -> None:
    assert [int(number) for number, _ in CLASSES] == list(range(1, 23))
    assert {number for number, _, _ in NAMED} == {f"C{number}" for number, _ in CLASSES}


@pytest.mark.parametrize(
    ("number", "path", "name"), [*NAMED, *(("an attack", *held) for held in HELD)]
)
def test_each_named_test_exists(number: str, path: str, name: str) -> None:
    body = ast.walk(ast.parse((ROOT / path).read_text()))
    assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, number
