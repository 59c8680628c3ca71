"""Memory that runs out: each allocation of the core fails once, and once with all after it.

`allocations.c` lets them fail, `allocation_steps.py` has the calls; each runs in a process of its
own, and must raise MemoryError or be right, leave nothing alive, and work afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from core.allocation_steps import STEPS

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
# What real programs call most often, and what is made of several objects.
OFTEN = ("from_dlpack of NumPy", "a capsule of a copy", "a call that its schema refuses")

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(
        sys.platform != "linux", reason="allocations.c is preloaded by Linux's loader"
    ),
    pytest.mark.unsanitized("sanitizers replace malloc themselves"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `allocations.c`, compiled."""
    made = tmp_path_factory.mktemp("allocations") / "allocations.so"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-O1", "-g", "-fPIC", "-shared"]
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, *flags, include, "-o", str(made), str(HERE / "allocations.c"), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"tests/core/allocations.c cannot be compiled here: {getattr(error, 'stderr', error)}"
        )
    return made


@pytest.mark.fast(lambda name: name in OFTEN)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STEPS)
def test_each_allocation_of_the_core_may_fail(name: str, library: Path) -> None:
    framework, colon, _ = name.partition(": ")
    if colon and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / "allocation_steps.py"), name],
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert int(done.stdout) > 0, "no allocation failed: the step shows nothing"
