"""`python -m benchmarks ... --pages` renews tables in docs/, and nothing else of a page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bridge, distributed_pages, pages

ROOT = Path(__file__).resolve().parents[2]


def copy_page(folder: Path, name: str) -> Path:
    (folder / "docs").mkdir()
    return Path(shutil.copy(ROOT / "docs" / name, folder / "docs" / name))


def split(text: str, name: str) -> tuple[str, list[str]]:
    """Return a page without what is between the marks of a name, and the lines that are."""
    pattern = f"(<!-- {re.escape(name)} -->\n)(.*?)(\n<!-- end -->)"
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None, name
    start, end = found.span(2)
    return text[:start] + text[end:], found[2].split("\n")


def test_a_page_without_the_marks_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text in ("nothing", "<!-- end -->\n<!-- one -->\n", "<!-- other -->\nx\n<!-- end -->\n"):
        page.write_text(text)
        with pytest.raises(ValueError, match=r"there is no <!-- one -->"):
            pages.put(page, "one", "new")
        assert page.read_text() == text
    page.write_text("<!-- one -->\nx\n<!-- end -->\n<!-- two -->\ny\n<!-- end -->\n")
    pages.put(page, "one", "new")
    assert page.read_text() == "<!-- one -->\nnew\n<!-- end -->\n<!-- two -->\ny\n<!-- end -->\n"


def test_bridged_modules_that_miss_the_bar_are_bold(tmp_path: Path) -> None:
    page = copy_page(tmp_path, "performance.md")
    before, _ = split(page.read_text(), "benchmark bridge")
    figures = [
        {"direction": direction, "call": call, "width": width, "own_ns": 10e3,
         "bridged_ns": bridged, "bar_ns": 20e3, "reached": bridged <= 20e3}
        for width, bridged in ((8, 1234567.0), (256, 15e3))
        for direction, call in (("torch to JAX", "jax.jit"), ("JAX to torch", "torch.compile"))
    ]  # fmt: skip
    bridge.write_pages({"rows": figures}, tmp_path)
    after, table = split(page.read_text(), "benchmark bridge")
    assert after == before
    assert table == [
        "|  | call | layers | own | bridged | at most |",
        "|---|---|---|--:|--:|--:|",
        "| torch to JAX | `jax.jit` | 8 x 8 | 10 | **1,235** | 20 |",
        "|  | `jax.jit` | 256 x 256 | 10 | 15 | 20 |",
        "| JAX to torch | `torch.compile` | 8 x 8 | 10 | **1,235** | 20 |",
        "|  | `torch.compile` | 256 x 256 | 10 | 15 | 20 |",
    ]


def calls_of_two_ranks() -> list[dict[str, Any]]:
    us = {"mpi4py": 2000.0, "numpy": 1000.0, "torch": 500.0, "jax": 4000.0, "dlbridge": 250.0}
    several = [*distributed_pages.CALLS, *distributed_pages.BEGUN, *distributed_pages.APART]
    sizes = {*distributed_pages.SIZES, *distributed_pages.APART_SIZES}
    rows = [
        {"call": call, "size": size, "us": us}
        for call in dict.fromkeys(several)
        if call != "barrier"
        for size in sizes
    ]
    barriers = {"mpi4py": 2.0, "dlbridge": 1.0}
    return rows + [{"call": call, "size": "", "us": barriers} for call in ("barrier", "ibarrier")]


@pytest.mark.parametrize("has_hosts", [True, False])
def test_tables_of_calls_between_ranks(tmp_path: Path, has_hosts: bool) -> None:
    page = copy_page(tmp_path, "distributed.md")
    names = [
        f"benchmark {name}" for name in ("trees", "calls", "begun calls", "edges", "two hosts")
    ]
    before, hosts_before = page.read_text(), split(page.read_text(), names[-1])[1]
    rows = calls_of_two_ranks()
    trees = [
        {"tensors": name, "call": call, "framework": framework, "us": {"flat": 2.0, "tree": tree}}
        for name, tree in zip(distributed_pages.TREES, (2.0, 3.0, 2.5, 47.0), strict=True)
        for call in ("allreduce", "bcast", "gather")
        for framework in ("torch", "numpy")
    ]
    edges = [
        {"size": size, "us": {"mpi4py": 99.94, "spmd": 1234.5, "driven": 2.0}}
        for size in distributed_pages.EDGES
    ]
    figures = {"rows": rows, "trees": trees, "apart": [rows, trees] if has_hosts else None,
               "edges": {"rows": edges}, "grpc": {"8 B": 1000.0}}  # fmt: skip
    distributed_pages.write_pages(figures, tmp_path)
    after = page.read_text()
    tables = {}
    for name in names:
        before, _ = split(before, name)
        after, tables[name] = split(after, name)
    assert after == before
    told, calls, begun, runs, hosts = tables.values()
    assert told[-2:] == [
        "| 60 tensors of at most 1 MiB, 31 MiB in all | 1.25 | 1.25 | 1.25 |",
        "| 1,000 tensors of 256 B | 24 | 24 | 24 |",
    ]
    assert '| `allreduce`, "mean" | 1 MiB | 2,000.0 | 0.50 | 0.25 | 2.00 | 0.12 |' in calls
    assert calls[-1] == "| `barrier` |  | 2.0 | 0.50 |  |  |  |"
    assert begun[2] == f"| `iallreduce` |{' 0.50 / 0.25 |' * 5}"
    assert runs[2] == "| 8 B | 99.9 | 1,234 | 2.0 | 1,000 |"
    assert runs[-1] == "| 100 scalars | 99.9 | 1,234 | 2.0 |  |"
    expected = f"| `scatter`, `barrier` |{' 2,000: 0.50 |' * 6}"
    assert hosts[-1] == (expected if has_hosts else hosts_before[-1])
