"""SECURITY.md does not lie: its tests exist, and its table of the environment is the whole one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
SOURCES = [
    path
    for pattern in ("dlbridge/**/*.py", "dlbridge/**/*.[ch]", "include/*.h", "setup.py")
    for path in ROOT.glob(pattern)
    if path.name != "_cffi.c"
]
HELD = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))

# What functions of the standard library read, where we call them.
INDIRECT = {
    r"Path\.home\(": {"HOME"},
    r"tempfile\.": {"TMPDIR"},
    r"shutil\.which\(": {"PATH"},
    r"get_terminal_size\(": {"COLUMNS"},
}
# What hands the whole environment on or shows it, and decides nothing by it.
WHOLE = {
    "dlbridge/kernels/library.py": ["{**os.environ, **environment}"],
    "dlbridge/demo.py": ["os.environ |= QUIET | os.environ"],
    "dlbridge/check/processes.py": ["{**os.environ, "],
    "dlbridge/check/diagnosis.py": [
        "{name: os.environ[name] for name in VARIABLES if name in os.environ}",
    ],
}


def variables(path: Path) -> set[str]:
    """Return the environment variables that a source file reads."""
    text = path.read_text()
    for words in WHOLE.get(path.relative_to(ROOT).as_posix(), []):
        text = text.replace(words, "")
    named = re.findall(r'(?:environ(?:\.get)?[\[(]|getenv\()\s*"(\w+)"', text)
    uses = len(re.findall(r"\benviron\b|\bgetenv(?:b|\b)|\bsecure_getenv\b", text))
    assert uses == len(named), f"{path}: a use of the environment that names no variable"
    indirect = [found for words, found in INDIRECT.items() if re.search(words, text)]
    return set(named).union(*indirect)


def test_there_are_promises() -> None:
    assert len(HELD) > 15


@pytest.mark.parametrize(("path", "name"), HELD)
def test_each_promise_is_held_by_a_test(path: str, name: str) -> None:
    """A test that was renamed or removed takes its promise with it."""
    tree = ast.parse((ROOT / path).read_text())
    tests = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = [test for test in tests if test.startswith("test_") and (not name or test == name)]
    assert found


def test_every_promise_names_its_test() -> None:
    """A row without one would promise what nobody looks at."""
    table = TEXT.split("| promise | held by |", 1)[1].split("\n\n", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    for row in rows:
        promise, held = row.strip("| ").split(" | ")
        assert re.fullmatch(r"`tests/[\w/]+\.py(::\w+)?`(, `tests/[\w/]+\.py(::\w+)?`)*", held), (
            promise
        )


def test_every_variable_of_the_environment_is_listed() -> None:
    """Who runs dlbridge must know which of them choose code."""
    listed = re.findall(r"^\| `(\w+)` \|.*\| (?:yes|no) \|$", TEXT, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set().union(*map(variables, SOURCES))


def test_it_is_found_and_shipped() -> None:
    """By readers of the README, and in the source distribution."""
    assert "[SECURITY.md](SECURITY.md)" in (ROOT / "README.md").read_text()
    assert "SECURITY.md" in (ROOT / "MANIFEST.in").read_text().splitlines()[0].split()
