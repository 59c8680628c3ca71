"""Clocks and counters of the whole process: only `measuring` reads them.

No test then depends on how fast or how busy a machine is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

_CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
# Attributes by module; None: all of them.
COUNTERS: dict[str, frozenset[str] | None] = {
    "time": frozenset(_CLOCKS | {f"{clock}_ns" for clock in _CLOCKS} | {"sleep"}),
    "timeit": None,
    "tracemalloc": None,
    "resource": frozenset({"getrusage"}),
    "gc": frozenset({"get_objects", "get_count", "get_stats"}),
    "sys": frozenset({"getallocatedblocks"}),
}
# In the text of a program that a test starts, or the path of a file that it reads.
IN_TEXT = re.compile(
    r"\b(time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?\(|getallocatedblocks"
    r"|gc\.get_objects|getrusage|tracemalloc\.)|/proc/(self|\d+)/(statm?|status)\b"
)
# Files that are no tests, or where a clock is the subject.
ALLOWED = {
    "measuring.py": "the one place",
    "test_measuring.py": "this file",
    "campaign.py": "a command that prints what it measures",
    "check/mistakes.py": "mistakes that are planted: a function that never comes back",
    "check/planted.py": "mistakes that are planted: a producer that is not for threads",
    "conftest.py": "the patience for deleters on threads of frameworks; collections that take long",
    "cpu_seconds.py": "a report that is printed",
    "fuzz/__main__.py": "a command that runs for so many seconds",
    "gpu/probe.py": "a command that prints what it measures",
    "mpi/pmi.py": "a launcher that ends its ranks after so many seconds",
    "mpi_jobs.py": "a launcher that says where its ranks are after so many seconds",
    "mutation/judging.py": "a command that prints what its runs take",
    "package/test_threads.py": "a command in it prints what it measures",
    "suites/runner.py": "a command that prints what its runs take",
}


def readings(text: str) -> Iterator[str]:
    """Yield each place of a module that reads a clock or a counter."""
    modules: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in COUNTERS:
            for each in node.names:
                if _counts(node.module, each.name):
                    yield f"line {node.lineno}: from {node.module} import {each.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if _counts(module, node.attr):
                yield f"line {node.lineno}: {module}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in IN_TEXT.finditer(node.value):
                yield f"line {node.lineno}: {found.group()} in a string"


def _counts(module: str, name: str) -> bool:
    names = COUNTERS.get(module, frozenset())
    return names is None or name in names


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nassert t.perf_counter() < 1",
        "from time import monotonic",
        "import gc\nlen(gc.get_objects())",
        "import sys\nsys.getallocatedblocks()",
        "from resource import getrusage",
        "import tracemalloc\ntracemalloc.start()",
        "run('''\nimport time\nbegan = time.monotonic()\n''')",
        "open('/proc/self/status')",
    ],
)
def test_a_planted_reading_is_found(text: str) -> None:
    assert len(list(readings(text))) == 1


@pytest.mark.parametrize("text", ["import gc\ngc.collect()", "import sys\nsys.getrefcount(x)"])
def test_a_count_of_one_object_is_no_count_of_the_process(text: str) -> None:
    assert not list(readings(text))


def test_only_measuring_reads_clocks_and_counters() -> None:
    found = {
        path.relative_to(HERE).as_posix(): places
        for path in sorted(HERE.rglob("*.py"))
        if (places := list(readings(path.read_text())))
    }
    assert {name: places for name, places in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "a file that reads none needs no exception"
