"""The fuzzers run, each for a moment, and say the same for the same seed."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = importlib.import_module("fuzz.__main__").NAMES
NEED_A_COMPILER = ("ballots", "calls", "capsules", "messages", "nodes", "tables", "tickets")
NEEDS = dict.fromkeys(("graphs", "operations", "tensors"), "google.protobuf")


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_end_in_a_result_or_in_one_of_our_errors(name: str) -> None:
    pytest.importorskip(NEEDS.get(name, "dlbridge"))
    if name in NEED_A_COMPILER and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    rows = []
    for first, count in ((0, 400), (0, 200), (200, 200)):
        done = fuzz(name, "--seed", "1", "--first", str(first), "--count", str(count))
        assert done.returncode == 0, done.stdout + done.stderr
        rows.append(json.loads(done.stdout))
    every, *parts = [row["said"] for row in rows]
    assert sum(every.values()) == 400
    assert len(every) > 1, "some are taken and some refused"
    assert every == {key: sum(part.get(key, 0) for part in parts) for key in every}


@pytest.mark.subprocess
def test_a_fuzzer_that_there_is_not_is_refused() -> None:
    done = fuzz("nothing")
    assert done.returncode == 2
    assert "no such fuzzer: nothing" in done.stderr
