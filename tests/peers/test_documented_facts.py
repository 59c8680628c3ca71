"""docs/peers.md, the adapters' quirks and the tests name the same behaviours of other libraries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlbridge import registry
from dlbridge.exchange import adapter

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "peers.md").read_text()
LINES = re.findall(r"^\| (\d+) \| (.*)$", PAGE, re.MULTILINE)
ROWS = {int(number): row for number, row in LINES}
DISPLAYED = {
    "numpy": "NumPy",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "tvm": "tvm_ffi|TVM",
    "mlx": "MLX",
    "paddle": "Paddle",
    "cupy": "CuPy",
    "onnxruntime": "ONNX Runtime",
    "mxnet": "MXNet",
    "warp": "Warp",
}


def marked() -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each test that is marked with a fact."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fact":
                    yield ast.literal_eval(mark.args[0]), f"{path.name}::{node.name}"


def numbers_in_the_matrix() -> set[int]:
    """Return the facts that rows of the table of all pairs refer to."""
    tree = ast.parse((HERE / "test_matrix.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [word.value for call in calls for word in call.keywords if word.arg == "fact"]
    third = [call.args[2] for call in calls if ast.unparse(call.func) == "_copied"]
    return {node.value for node in (*named, *third) if isinstance(node, ast.Constant)}


def test_each_line_names_exactly_its_tests() -> None:
    names = re.compile(r"`(test_\w+\.py::\w+)`")
    named = {(number, name) for number, row in ROWS.items() for name in names.findall(row)}
    assert named == set(marked())


def test_each_line_is_held_by_a_test() -> None:
    assert set(ROWS) == {number for number, _ in marked()}
    assert list(ROWS) == sorted(ROWS)


def test_the_table_of_all_pairs_refers_to_lines() -> None:
    assert numbers_in_the_matrix()
    assert numbers_in_the_matrix() <= set(ROWS)


@pytest.mark.parametrize("library", [row.name for row in registry.rows()])
def test_each_quirk_of_an_adapter_has_a_line_that_names_its_library(library: str) -> None:
    for quirk in adapter.adapter(library).quirks:
        name = DISPLAYED.get(library, library)
        assert re.search(rf"\b({name})\b", ROWS.get(quirk.fact, "")), (quirk.fact, quirk.defect)
