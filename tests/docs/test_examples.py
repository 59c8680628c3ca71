"""Every example and the demonstration run, and say at their end what they proved."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.timeout(900)  # the first waits for all examples and the demonstration


def needed(path: Path) -> list[str]:
    """Return the modules that an example cannot do without: those it imports at its left margin."""
    body = ast.parse(path.read_text()).body
    plain = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    from_ = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    if "from dlbridge import mpi" in map(ast.unparse, body):
        plain.append("mpi4py")
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
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys, traceback
paths, ends = sys.argv[1:], {}
del sys.argv[1:]

def run(name, function, *arguments):
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            assert function(*arguments) != 1
        except BaseException:
            error = traceback.format_exc()
    ends[name] = out.getvalue(), error

for path in paths:
    run(path, runpy.run_path, path, None, "__main__")
from dlbridge.cli import main
run("demo", main, ["demo"])
print(json.dumps(ends))
"""
DEMONSTRATION = "import sys; from dlbridge.cli import main; sys.exit(main(['demo']))"


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[str, str]]:
    """Run all in one process, which imports the frameworks once; return output and error."""
    paths = [str(path) for path in EXAMPLES if not missing(path)]
    found: dict[str, tuple[str, str]] = json.loads(run_python("-c", ONE_AFTER_THE_OTHER, *paths))
    return found


def check_end(out: str) -> None:
    assert out.strip().splitlines()[-1].endswith("."), "an example ends by saying what it proved"


@pytest.mark.full
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


def check_demonstration(out: str) -> None:
    assert re.search(r"goes round:\nnumpy → .*numpy\n", out) or "numpy → numpy" in out
    hops, kernels = (line for line in out.splitlines() if line.startswith("Proved: "))
    assert re.fullmatch(
        r"Proved: \d+ of \d+ hops shared the memory, all 1,048,576 values came back unchanged.*",
        hops,
    )
    assert re.fullmatch(
        r"Proved: \d+ of \d+ frameworks ran it, the values are right everywhere\.", kernels
    )


@pytest.mark.full
def test_the_demonstration_proves_it(ends: dict[str, tuple[str, str]]) -> None:
    out, error = ends["demo"]
    assert not error, error
    check_demonstration(out)


@pytest.mark.full
def test_the_demonstration_proves_it_alone() -> None:
    check_demonstration(run_python("-c", DEMONSTRATION))
