"""User code type-checks: tests/typed/program.py says what each call returns."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "typed" / "program.py"
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "jax"))), reason="their types are asked for"
    ),
]


def check(*command: str) -> str:
    """Return what a type checker says of the program, whatever it says of other modules."""
    done = subprocess.run(
        [*command, str(PROGRAM)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_program_passes_mypy_strict() -> None:
    pytest.importorskip("mypy")
    text = check(
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
        "--cache-dir", "build/mypy",
    )  # fmt: skip
    assert "Success: no issues found in 1 source file" in text, text


def test_a_program_passes_pyright() -> None:
    if shutil.which("pyright", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("pyright is not installed")
    text = check(str(Path(sys.executable).parent / "pyright"), "--pythonpath", sys.executable)
    assert "0 errors" in text, text
