"""Tests that need a process of their own: with the stand-in for CuPy, on the fake driver.

A module of such tests is run once, by a pytest in another process; the test here that stands for
one of them fails with its text.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_driver import compile_fake

HERE = Path(__file__).resolve().parent
STAND_IN = HERE / "stand_in"


def require_stand_in() -> None:
    """Skip a test where the stand-in for CuPy cannot compute."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("the stand-in for CuPy computes with NumPy 2")


def names(module: str) -> list[str]:
    """Return the names of the tests in a module of `stand_in`."""
    tree = ast.parse((STAND_IN / module).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@lru_cache
def outcomes(module: str, directory: Path) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """Run a module; return (outcome, text) of each run of each test, and all that was printed."""
    report = directory / "report.xml"
    path = [str(STAND_IN), str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "DLBRIDGE_CUDA_DRIVER": str(compile_fake(directory)),
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", "child", "--noconftest", "--junitxml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(report), str(STAND_IN / module)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    printed = done.stdout + done.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.get("name", "").partition("[")[0]
            bad = [each for each in case if each.tag in ("failure", "error", "skipped")]
            found.setdefault(name, []).extend(
                [(each.tag, each.text or each.get("message", "")) for each in bad]
                or [("passed", "")]
            )
    return found, printed


def check(module: str, name: str, directory: Path) -> None:
    """Fail, or skip, as the test did in the other process."""
    require_stand_in()
    found, printed = outcomes(module, directory)
    skipped = re.search(r"^SKIPPED \[1\] \S+ (.*)$", printed, re.MULTILINE)
    if not found.keys() & set(names(module)) and skipped is not None:
        pytest.skip(skipped[1])  # the whole module
    assert name in found, f"{name} did not run:\n{printed}"
    for outcome, text in found[name]:
        if outcome == "skipped":
            pytest.skip(text)
        assert outcome == "passed", text
