"""The registry of kernels by name, which compiled graphs ask at every call, without a lock.

Its C file is compiled alone with a program of threads: the GIL hides its races from Python.
"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
from kernels.conftest import HERE, ROOT, compile_c

CORE = ROOT / "dlbridge" / "_core"


def sources_and_flags() -> list[str]:
    if not (CORE / "kernel" / "registry.c").exists():
        pytest.skip("the core's C files are not beside the tests")
    without_gil = ["-DDLB_FREE_THREADED"] if sysconfig.get_config_var("Py_GIL_DISABLED") else []
    return [
        *without_gil,
        f"-I{CORE}",
        f"-I{sysconfig.get_path('include')}",
        str(CORE / "kernel" / "registry.c"),
        str(CORE / "memory" / "lock.c"),
        "-lpthread",
    ]


def test_a_pinned_kernel_is_alive_and_each_dies_once(tmp_path: Path) -> None:
    """Ten threads replace, pin and unpin kernels of a few names; four add 5,000 more names."""
    flags = sources_and_flags()
    program = compile_c(HERE / "registry_stress.c", tmp_path / "stress", *flags)
    run = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120)
    made, dropped, wrong = map(int, run.stdout.split())
    assert made == dropped > 10_000
    assert wrong == 0


def test_a_child_forked_while_a_thread_adds_names_adds_its_own(tmp_path: Path) -> None:
    """Where fork() does not wait for the lock, a child hangs here, and its alarm ends it."""
    flags = sources_and_flags()
    program = compile_c(HERE / "registry_forks.c", tmp_path / "forks", *flags)
    run = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120)
    forks, ended_well = map(int, run.stdout.split())
    assert forks == ended_well == 200
