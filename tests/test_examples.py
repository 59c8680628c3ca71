"""Every example runs, and says at its end what it proved."""

from __future__ import annotations

import ast
import importlib.util
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


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path) -> None:
    missing = [name for name in needed(path) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.endswith("."), "an example ends by saying what it proved"
