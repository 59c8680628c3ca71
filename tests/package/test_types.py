"""User code type-checks: tests/typed has a program, and mistakes that must be refused."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "typed" / "program.py"
MISTAKES = PROGRAM.with_name("refused.py")
MYPY = (
    *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"),
    *("--cache-dir", "build/mypy"),
)
PYRIGHT = (str(Path(sys.executable).parent / "pyright"), "--pythonpath", sys.executable)
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "jax"))), reason="their types are asked for"
    ),
]


def check(*command: str, program: Path = PROGRAM) -> str:
    """Return what a type checker says of a program, whatever it says of other modules."""
    done = subprocess.run(
        [*command, str(program)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_program_passes_mypy_strict() -> None:
    pytest.importorskip("mypy")
    text = check(*MYPY)
    assert "Success: no issues found in 1 source file" in text, text


def test_a_program_passes_pyright() -> None:
    if shutil.which(PYRIGHT[0]) is None:
        pytest.skip("pyright is not installed")
    text = check(*PYRIGHT)
    assert "0 errors" in text, text


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_mistakes_are_refused_and_nothing_else(checker: tuple[str, ...]) -> None:
    if checker is PYRIGHT and shutil.which(PYRIGHT[0]) is None:
        pytest.skip("pyright is not installed")
    text = check(*checker, program=MISTAKES)
    refused = {int(line) for line in re.findall(r"refused\.py:(\d+).* error", text)}
    lines = MISTAKES.read_text().splitlines()
    assert refused == {at for at, line in enumerate(lines, 1) if line.endswith("# refused")}, text
