"""What every test needs: the leak check, frameworks that may be missing, processes that may die."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # so that tests may import the modules beside them

from answers import FOLDER, Answers  # noqa: E402
from dlpack_peers import NativePeer, compile_peer  # noqa: E402

MARKERS = (
    "gpu: needs an NVIDIA GPU with a driver",
    "mpi: needs an MPI library; starts several processes",
    "slow: takes more than ten seconds",
    "subprocess: runs in a process of its own, because a peer may kill it",
)

# `HYPOTHESIS_PROFILE=thorough` looks harder; the quick one suits two cores.
# The same commit gives the same answer each time; `thorough` is the profile that looks for more.
hypothesis.settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=3000, deadline=None)
hypothesis.settings.register_profile(  # where only the verdict counts, not the smallest example
    "verdict", max_examples=60, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project."""
    parser.addoption(
        "--record", action="store_true", help="ask TensorFlow and write its answers to tests/data"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, also for a run without the project's configuration."""
    if config.getoption("record"):  # before TensorFlow is imported: on some processors these
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # operations return wrong shapes
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests of kernels last: they load TVM itself, which takes fewer tensors."""
    items.sort(key=lambda item: HERE / "kernels" in item.path.parents)
    if config.getoption("record"):
        items[:] = [item for item in items if "answers" in getattr(item, "fixturenames", ())]


# ---- leaks -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fail a test after which more, or fewer, owners are alive than before.

    Garbage is collected only if the counts differ: a full collection with all frameworks loaded
    takes longer than most tests. A framework may call a deleter a little later on a thread of its
    own, hence the patience. A test that failed is let off, since its traceback keeps its locals.
    """
    if importlib.util.find_spec("dlbridge") is None:
        yield
        return
    from dlbridge._core import native

    forget_failure()
    before = native.live()
    yield
    patience = time.monotonic() + 2.0
    while native.live() != before and time.monotonic() < patience and not has_failed():
        collect()
        if native.live() != before:
            time.sleep(0.01)
    if not has_failed():
        assert native.live() == before, "owners were leaked, or released twice, by this test"


def collect() -> None:
    """Collect garbage; where that takes long, spare the next time what is alive now.

    Frameworks have millions of objects that stay. They are looked through once.
    """
    start = time.monotonic()
    gc.collect()
    if time.monotonic() - start > 0.05:
        gc.freeze()


def has_failed() -> bool:
    """Tell whether the test that runs has failed: pytest then leaves its exception in `sys`."""
    return getattr(sys, "last_value", None) is not None


def forget_failure() -> None:
    """Let go of what the traceback of the last failure keeps alive."""
    if has_failed():
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()


# ---- frameworks --------------------------------------------------------------------------------

# Modules that crash the process when the second one is imported after the first.
CLASHES = (("tensorflow", "paddle"),)


@pytest.fixture(scope="session")
def framework() -> Callable[[str], Any]:
    """Return a function that imports a framework by name, or skips the test and says why."""

    def load(name: str) -> Any:
        for first, second in CLASHES:
            if name == second and first in sys.modules and second not in sys.modules:
                pytest.skip(f"importing {second} after {first} crashes the process")
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed")
        try:
            return importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"{name} is installed but cannot be imported: {error!r}")

    return load


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    """Return TensorFlow's answers to the questions of this test file."""
    record = request.config.getoption("record")
    asked = Answers(FOLDER / f"{request.path.stem.removeprefix('test_')}.json.xz", record=record)
    yield asked
    if record:
        asked.save()


# ---- processes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """How a process ended: `returncode` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> str:
        """Return stdout of a process that ended well; show everything of one that did not."""
        assert self.returncode == 0, f"rc {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self.stdout


@pytest.fixture(scope="session")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return `run(code, *arguments, timeout=60, env={})`: Python code in a process of its own.

    The code may import dlbridge and the modules beside this file.
    """
    directory = tmp_path_factory.mktemp("run")

    def run(code: str, *arguments: object, timeout: float = 120, **env: str) -> Run:
        path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
            + [str(argument) for argument in arguments],
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **env},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def native_peer(tmp_path_factory: pytest.TempPathFactory) -> NativePeer:
    """Return the peer written in C, compiled on first use."""
    try:
        return NativePeer(compile_peer(tmp_path_factory.mktemp("peer")))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"tests/peer.c cannot be compiled here: {getattr(error, 'stderr', error)}")
