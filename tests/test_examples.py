"""Every example runs, and says at its end what it proved."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def needed(path: Path) -> list[str]:
    """Return the modules that an example cannot do without: those it imports at its left margin."""
    body = ast.parse(path.read_text()).body
    plain = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    from_ = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    return sorted({name.partition(".")[0] for name in plain + from_})


def test_there_are_examples() -> None:
    assert EXAMPLES
    for path in EXAMPLES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def missing(path: Path) -> list[str]:
    """Return the modules that an example needs and that are not installed."""
    return [name for name in needed(path) if importlib.util.find_spec(name) is None]


def run_python(*arguments: str) -> str:
    """Return what Python prints in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys, traceback
paths, ends = sys.argv[1:], {}
del sys.argv[1:]
for path in paths:
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(path, run_name="__main__")
        except BaseException:
            error = traceback.format_exc()
    ends[path] = out.getvalue(), error
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[str, str]]:
    """Run the examples in one process, which imports frameworks once; return output and error."""
    paths = [str(path) for path in EXAMPLES if not missing(path)]
    found: dict[str, tuple[str, str]] = json.loads(run_python("-c", ONE_AFTER_THE_OTHER, *paths))
    return found


def check_end(out: str) -> None:
    assert out.strip().splitlines()[-1].endswith("."), "an example ends by saying what it proved"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, ends: dict[str, tuple[str, str]]) -> None:
    if missing(path):
        pytest.skip(f"{', '.join(missing(path))} is not installed")
    out, error = ends[str(path)]
    assert not error, error
    check_end(out)


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_alone(path: Path) -> None:
    if missing(path):
        pytest.skip(f"{', '.join(missing(path))} is not installed")
    check_end(run_python(str(path)))
