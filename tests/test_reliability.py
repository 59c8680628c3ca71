"""docs/reliability.md does not lie: each class of failure has tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "reliability.md").read_text()
CLASSES = re.findall(r"^\| C(\d+) \| .* \| (.*) \|$", TEXT, re.MULTILINE)
NAMED = [
    (f"C{number}", *name)
    for number, row in CLASSES
    for name in re.findall(r"`([^`:]+)::(\w+)`", row)
]


def test_each_class_of_failure_has_a_row_with_tests() -> None:
    assert [int(number) for number, _ in CLASSES] == list(range(1, 23))
    assert {number for number, _, _ in NAMED} == {f"C{number}" for number, _ in CLASSES}


@pytest.mark.parametrize(("number", "path", "name"), NAMED)
def test_each_named_test_exists(number: str, path: str, name: str) -> None:
    body = ast.walk(ast.parse((ROOT / path).read_text()))
    assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, number
