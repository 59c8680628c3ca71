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


def test_a_pinned_kernel_is_alive_and_each_dies_once(tmp_path: Path) -> None:
    """Ten threads replace, pin and unpin kernels of a few names; four add 5,000 more names."""
    if not (CORE / "kernel" / "registry.c").exists():
        pytest.skip("the core's C files are not beside the tests")
    flags = [
        f"-I{CORE}",
        f"-I{sysconfig.get_path('include')}",
        str(CORE / "kernel" / "registry.c"),
        "-lpthread",
    ]
    program = compile_c(HERE / "registry_stress.c", tmp_path / "stress", *flags)
    run = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120)
    made, dropped, wrong = map(int, run.stdout.split())
    assert made == dropped > 10_000
    assert wrong == 0
