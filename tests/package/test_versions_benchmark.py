"""The benchmark of several environments: its rows, and the table that it makes of the figures."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernels, versions


def test_every_row_can_be_read() -> None:
    rows = versions.find_rows(True)
    for row in rows:
        for statement in (row.ours, *row.by_hand):
            ast.parse(statement)
        assert row.bar > 0
    assert len({(row.group, row.what or row.ours, row.by_hand) for row in rows}) == len(rows)


def test_rows_of_other_benchmarks_are_found() -> None:
    found = {(row.what, row.against) for row in versions.find_rows(True)}
    assert found.issuperset({*versions.FROM_KERNELS, *versions.FROM_ORDINARY})
    slopes = {(slope.what, slope.against) for slope in kernels.SLOPES}
    assert slopes.issuperset(versions.FROM_SLOPES)


def test_without_the_direct_path_code_by_hand_is_the_bar() -> None:
    bars = {row.bar for row in versions.find_rows(False) if row.group == versions.PLAIN}
    assert bars == {versions.BY_HAND}
    assert min(row.bar for row in versions.find_rows(True) if row.group == versions.PLAIN) < 1


def test_what_misses_its_bar_is_marked_and_counted(tmp_path: Path) -> None:
    def row(what: str, ratio: float, bar: float) -> dict[str, Any]:
        return {"what": what, "against": "np.f(x)", "ratio": ratio, "bar": bar,
                "reached": ratio <= bar}  # fmt: skip

    environments: list[dict[str, Any]] = [
        {"versions": {"numpy": "2.4", "torch": "2.13.0+cpu"}, "torch_path": "direct",
         "rows": [row("f(x)", 0.5, 0.4), row("g(x)", 0.25, 1)]},
        {"versions": {"torch": "2.13.0"}, "torch_path": "general: its proof was set aside",
         "rows": [row("f(x)", 1.5, 1)]},
        {"versions": {"numpy": "1.23"}, "torch_path": "", "rows": [row("f(x)", 0.5, 1)]},
        {"python": "old/bin/python", "failure": "ended with status 1"},
    ]  # fmt: skip
    header, rows = versions.tabulate(environments)
    assert header[3:] == ["torch 2.13.0", "torch 2.13.0 without a proof", "NumPy"]
    assert rows == [
        ["f(x)", "np.f(x)", "0.4 / 1", "**0.50**", "**1.50**", "0.50"],
        ["g(x)", "np.f(x)", "1", "0.25", "", ""],
    ]
    page = tmp_path / "docs/performance.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- benchmark versions -->\nold\n<!-- end -->\nafter\n")
    versions.write_pages({"environments": environments}, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n<!-- benchmark versions -->\n| call |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old\n" not in text
    assert "| `f(x)` | `np.f(x)` | 0.4 / 1 | **0.50** | **1.50** | 0.50 |" in text
    assert "- torch 2.13.0: 1 of 2 calls reach their bar; torch's tensors: direct" in text
    assert "- old/bin/python: ended with status 1" in text


@pytest.mark.full
def test_torch_can_be_measured_without_its_proof(
    run_python: Callable[..., Any], framework: Callable[[str], Any]
) -> None:
    framework("torch")
    code = """
        from benchmarks import versions
        versions.forget_proofs()
        import torch, dlbridge
        assert dlbridge.to_numpy(torch.ones(2)).tolist() == [1, 1]
        print(versions.torch_path())
    """
    assert run_python(code).check().strip() == "general: its proof was set aside"


def test_an_environment_that_is_not_there_has_no_figures(tmp_path: Path) -> None:
    found = versions.measure_environment(tmp_path / "python", True)
    assert found["failure"] == "is not there"
    broken = tmp_path / "broken"
    broken.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    broken.chmod(0o755)
    assert versions.measure_environment(broken, True)["failure"] == "ended with status 3"
