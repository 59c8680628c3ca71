"""The plugin for pytest: `--dlpack-producer`, `--dlpack-consumer`, and its fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(
        not any(each.value == "_dlbridge_pytest" for each in entry_points(group="pytest11")),
        reason="dlbridge is not installed, so that pytest does not know its plugin",
    ),
]


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder that has nothing but what a test put there."""
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_each_rule_is_a_test(tmp_path: Path) -> None:
    """Those for producers that pass, and those that say nothing of this one, as skips."""
    done = run_pytest(tmp_path, "--dlpack-producer", "faultless:make", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed" not in done.stdout
    assert " passed" in done.stdout


@pytest.mark.full
def test_a_broken_rule_is_a_failure_with_its_reason_and_clause(tmp_path: Path) -> None:
    """No traceback of the checks, which would say nothing to the author of a library."""
    done = run_pytest(tmp_path, "--dlpack-producer", "faultless:NoDevice", "-k", "device_pair")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "producer.device_pair (must) failed" in done.stdout
    assert "1 failed" in done.stdout
    assert "conformance.py" not in done.stdout


@pytest.mark.full
def test_rules_are_chosen_with_k(tmp_path: Path) -> None:
    """Only those that were chosen are checked, in one process."""
    options = ("--dlpack-consumer", "numpy:from_dlpack", "-k", "values or released", "-q")
    done = run_pytest(tmp_path, *options)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "deselected" in done.stdout


@pytest.mark.full
def test_the_fixtures_make_synthetic_peers(tmp_path: Path) -> None:
    """A test of a library needs no producer of its own; a leak is found at its end."""
    (tmp_path / "test_it.py").write_text(
        "import dlbridge, numpy\n\n"
        "def test_consumer(dlpack_producer):\n"
        "    x = numpy.from_dlpack(dlpack_producer(numpy.arange(3.0)))\n"
        "    assert x.tolist() == [0.0, 1.0, 2.0]\n\n"
        "def test_producer(dlpack_consumer):\n"
        "    found = dlpack_consumer(dlbridge.from_dlpack(numpy.arange(3.0)))\n"
        "    assert found.shape == (3,)\n\n"
        "kept = []\n\n"
        "def test_leak(dlpack_producer):\n"
        "    kept.append(numpy.from_dlpack(dlpack_producer(numpy.arange(3.0))))\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert "3 passed, 1 error" in done.stdout, done.stdout
    assert "calls of the deleters: [0]" in done.stdout


def test_a_session_without_the_options_does_not_import_dlbridge(tmp_path: Path) -> None:
    """pytest loads the plugin in all projects of an environment."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_modules():\n    assert 'dlbridge' not in sys.modules\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == 0, done.stdout
