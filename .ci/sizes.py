"""Print the files and functions that are longer than the house style allows.

Exit status 1 only where one is longer than half as much again: the limits are targets.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILE_LIMIT = 300
FUNCTION_LIMITS = {".c": 40, ".h": 40, ".py": 30}
GROSS = 1.5
FOLDERS = ("dlbridge", "benchmarks", "examples")


class Size(NamedTuple):
    """Lines of one file or function, and how many it should have at most."""

    lines: int
    limit: int
    place: str

    @property
    def excess(self) -> float:
        """Return lines as a multiple of the limit."""
        return self.lines / self.limit


def main() -> int:
    """Measure every source file; return the exit status."""
    files: list[Size] = []
    functions: list[Size] = []
    for path in sources():
        text = path.read_text()
        place = str(path.relative_to(ROOT))
        files.append(Size(text.count("\n"), FILE_LIMIT, place))
        measure = python_functions if path.suffix == ".py" else c_functions
        limit = FUNCTION_LIMITS[path.suffix]
        functions += [Size(lines, limit, f"{place}:{name}") for name, lines in measure(text)]
    report("files", files)
    report("functions", functions)
    return int(any(size.excess > GROSS for size in [*files, *functions]))


def sources() -> Iterator[Path]:
    """Yield the C and Python files that count."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in FUNCTION_LIMITS and path.name != "_cffi.c":
                yield path


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, without its decorators and docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.name, lines


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function: from its name's line to the brace in column 0."""
    start, name = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        opening = re.match(r"[A-Za-z_][^;={}]*?\b(\w+)\(", line)
        if opening and not line.startswith(("typedef", "#")):
            start, name = number, opening[1]
        elif line == "}" and name:
            yield name, number - start + 1
            name = ""


def report(what: str, sizes: list[Size]) -> None:
    """Print the median, the longest and everything beyond its limit, longest first."""
    if not sizes:
        return
    middle = median(size.lines for size in sizes)
    longest = max(size.lines for size in sizes)
    print(f"{len(sizes)} {what}: median {middle:.0f} lines, longest {longest}")
    for size in sorted((size for size in sizes if size.excess > 1), reverse=True):
        mark = "TOO LONG" if size.excess > GROSS else "long"
        print(f"  {mark:8}  {size.lines:4} of {size.limit}  {size.place}")


if __name__ == "__main__":
    sys.exit(main())
