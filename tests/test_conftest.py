"""The foundation of all tests: one that hangs is ended, with a traceback that says where."""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
INNER = """
import sys
import conftest
import pytest

conftest.IMPORT = conftest.PATIENCE = conftest.LATE = 1
sys.exit(pytest.main(["-p", "conftest", "-p", "no:cacheprovider", "-q", *sys.argv[1:]]))
"""
# The second hangs with the GIL held, where no Python of another thread can do anything.
HANGS = {
    "in Python": ("threading.Event().wait()", "Timeout"),
    "in C": ("lock(mutex), lock(mutex)", "Timeout (0:00:0"),
}


def write_hang(folder: Path, statement: str) -> Path:
    path = folder / "test_hang.py"
    path.write_text(
        "import ctypes, threading, pytest\n\n"
        "lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)\n\n"
        "@pytest.mark.timeout(1)\n"
        "def test_waits_for_nothing():\n"
        f"    {statement}\n"
    )
    return path


@pytest.mark.parametrize("where", HANGS)
@pytest.mark.fast(lambda where: where == "in C")
def test_a_test_that_hangs_is_ended_with_a_traceback(
    where: str, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    statement, text = HANGS[where]
    path = write_hang(tmp_path, statement)
    done = run_python(INNER, f"--rootdir={tmp_path}", path)
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    assert text in printed
    assert "test_waits_for_nothing" in printed
    assert "test_hang.py" in printed


@pytest.mark.full
def test_without_the_plugin_the_process_is_ended(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    """Where pytest-timeout is not loaded, faulthandler remains."""
    path = write_hang(tmp_path, "threading.Event().wait()")
    done = run_python(INNER, "-p", "no:timeout", f"--rootdir={tmp_path}", path)
    assert done.returncode != 0
    assert "Timeout (0:00:0" in done.stderr
    assert "test_waits_for_nothing" in done.stderr


def test_every_environment_has_the_plugin(pytestconfig: pytest.Config) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join(project["optional-dependencies"]["test"])
    assert "pytest-timeout" in wanted
    assert importlib.metadata.version("pytest-timeout")
    assert pytestconfig.pluginmanager.hasplugin("timeout")


def test_an_import_has_more_time(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """The first import of a framework takes long, and falls into any test."""
    (tmp_path / "slow_framework.py").write_text("import time\ntime.sleep(2)\n")
    path = tmp_path / "test_import.py"
    path.write_text(
        "import pytest\n\n"
        "@pytest.mark.timeout(1)\n"
        "def test_imports(framework):\n"
        "    framework('slow_framework')\n"
    )
    code = INNER.replace("IMPORT = conftest.PATIENCE = conftest.LATE = 1", "IMPORT = 30")
    found = os.pathsep.join(map(str, (ROOT, ROOT / "tests", tmp_path)))
    done = run_python(code, f"--rootdir={tmp_path}", path, PYTHONPATH=found)
    assert "1 passed" in done.check()
