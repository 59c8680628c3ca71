"""`make test-gpu` where there is nothing to run on: it says so, and does not pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlbridge._core import native

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/gpu.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(native.cuda_open() is None, reason="there is a CUDA driver here")
def test_without_a_gpu_nothing_passes(tmp_path):
    """A machine on which nothing was checked must not look like one on which all is well."""
    done = run("--out", tmp_path, "--wheels", tmp_path, "--steps", "environment,tests")
    assert done.returncode == 1
    assert "there is no CUDA driver here" in done.stdout
    assert "nothing was checked on a GPU" in done.stdout
    results = json.loads((tmp_path / "summary.json").read_text())["results"]
    assert {each["step"] for each in results} == {"environment"}


def test_a_step_that_is_none_is_refused(tmp_path):
    done = run("--out", tmp_path, "--steps", "tests,dance")
    assert done.returncode == 2
    assert "not dance" in done.stderr


def test_the_command_is_the_one_that_the_docs_name():
    docs, makefile = (ROOT / "docs/cuda.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("test-gpu", "gpu-wheels"):
        assert f"make {command}" in docs
        assert f"\n{command}:" in makefile
