"""Needs of all tests: the two rings, the leak check, frameworks that may be missing, processes
that may die.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from _pytest.doctest import DoctestModule

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # so that tests may import the modules beside them

import cpu_seconds  # noqa: E402
from answers import FOLDER, Answers  # noqa: E402
from dlpack_peers import NativePeer, compile_peer  # noqa: E402
from preloading import Preloaded  # noqa: E402

collect_ignore = ["graph/partition_oracle.py"]  # a program that starts servers

MARKERS = (
    "full: in the long ring only",
    "deeper: tries more cases in the long ring than in the fast one",
    "fast(chosen): in the fast ring only items whose parameters `chosen` accepts",
    "gpu: needs an NVIDIA GPU with a driver",
    "mpi: needs an MPI library; starts several processes",
    "preloaded(framework): `run_python` forks from a process that has imported the framework",
    "subprocess: runs in a process of its own, because a peer may kill it",
    "timeout(seconds): how long the test may take, if longer than others",
    "unsanitized(reason): not with a core that is built with sanitizers",
)
# In the fast ring JAX keeps what it compiled: most of its tests spend their time there.
JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(HERE.parent / "build/xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
SECONDS = {
    "fast": 60,
    "rest": 600,
    "all": 600,
}  # how long a test of a ring may take, without a marker
PROCESS = 180  # or one that starts a process, which may import every framework
IMPORT = 90  # seconds more for the first import of a framework, on a machine with other work
PATIENCE = 30  # seconds more, after which a process is ended that does not even raise
LATE = 20  # seconds that it may be ended later
STDERR = pytest.StashKey[int]()
RINGS_AT = pytest.StashKey[float]()  # when the process is ended, by time.monotonic

# The same commit gives the same answer each time; `HYPOTHESIS_PROFILE=thorough` looks for more.
hypothesis.settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True)
hypothesis.settings.register_profile("full", max_examples=200, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=3000, deadline=None)
hypothesis.settings.register_profile(  # where only the verdict counts, not the smallest example
    "verdict", max_examples=60, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate]
)
PROFILES = {"fast": "quick", "rest": "full", "all": "full"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project."""
    parser.addoption(
        "--ring",
        choices=("fast", "rest", "all"),
        default="fast",
        help="fast: what a change can break; all: the full products, mutants and stress as well; "
        "rest: what `all` does and `fast` does not",
    )
    parser.addoption(
        "--record", action="store_true", help="ask TensorFlow and write its answers to tests/data"
    )
    parser.addoption(
        "--cpu", action="store_true", help="print the CPU seconds of folders, files and items"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, also for a run without the project's configuration."""
    if "gpu" not in config.option.markexpr:  # all that it has is for `make test-gpu`
        os.environ.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
    if config.getoption("record"):
        config.option.ring = "all"
        # Before TensorFlow is imported: on some processors these operations return wrong shapes.
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    with suppress(ImportError):  # a process ends that imports it after TensorFlow: docs/peers.md
        importlib.import_module("triton")
    ring = config.getoption("ring")
    os.environ["DLBRIDGE_TESTS_RING"] = (
        "fast" if ring == "fast" else "all"
    )  # for tests that run in another process
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", PROFILES[ring]))
    if ring == "fast":
        os.environ.update(JAX_CACHE)
    if "ASAN_OPTIONS" in os.environ:  # for other processes: compilers leak
        own = os.environ["ASAN_OPTIONS"]
        os.environ["ASAN_OPTIONS"] = own.replace("detect_leaks=1", "detect_leaks=0")
    if config.pluginmanager.hasplugin("timeout") and config.option.timeout is None:
        config.option.timeout = SECONDS[ring]
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("cpu"):
        config.pluginmanager.register(cpu_seconds.Table())
    config.stash[STDERR] = os.dup(2)  # before it is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what was opened."""
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[Any]:
    """Collect no doctests here: there are none, and they would hide files that cannot be imported.

    The option that lets the package's own modules lack a framework also skips a file of tests whose
    import fails, and what is left of that import is then collected as a file without tests.
    """
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End a process that hangs with the GIL held, where pytest-timeout cannot, with a traceback.

    To set the clock for each test would take longer than most tests: it is set again when it is
    `LATE` seconds behind, and stopped when no test follows.
    """
    marker = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout", None)  # of pytest-timeout, if that is loaded
    seconds = marker.args[0] if marker else given or SECONDS[item.config.getoption("ring")]
    due = time.monotonic() + seconds + IMPORT + PATIENCE
    if not due <= item.config.stash.get(RINGS_AT, 0.0) <= due + LATE:
        stderr = item.config.stash[STDERR]
        wait = seconds + IMPORT + PATIENCE + LATE
        faulthandler.dump_traceback_later(wait, exit=True, file=stderr)
        item.config.stash[RINGS_AT] = due + LATE
    try:
        return (yield)
    finally:
        if nextitem is None:
            faulthandler.cancel_dump_traceback_later()
            item.config.stash[RINGS_AT] = 0.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of the ring; those of kernels come last, as they load TVM itself.

    With TVM loaded its functions take fewer tensors.
    """
    for item in items:
        if starts_a_process(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(PROCESS, SECONDS[config.getoption("ring")])))
        unsanitized = item.get_closest_marker("unsanitized")
        if unsanitized and "DLBRIDGE_SANITIZED" in os.environ:
            item.add_marker(pytest.mark.skip(reason=unsanitized.args[0]))
    kernels = f"{HERE / 'kernels'}{os.sep}"
    items.sort(key=lambda item: str(item.path).startswith(kernels))
    if config.getoption("record"):
        chosen = [item for item in items if "answers" in getattr(item, "fixturenames", ())]
    elif config.getoption("ring") == "fast":
        chosen = [item for item in items if is_fast(item)]
    elif config.getoption("ring") == "rest":
        chosen = [item for item in items if not is_fast(item) or goes_deeper(item)]
    else:
        return
    config.hook.pytest_deselected(items=[*set(items).difference(chosen)])
    items[:] = chosen


def starts_a_process(item: pytest.Item) -> bool:
    """Return whether a test may run something in a process of its own."""
    names = {"subprocess", "cases", "run_python", "run_fake"}
    module = getattr(item, "module", None)
    is_marked = item.get_closest_marker("subprocess") is not None
    return is_marked or bool(
        names.intersection(getattr(item, "fixturenames", ()))
        or names.intersection(getattr(module, "__dict__", ()))
    )


def is_fast(item: pytest.Item) -> bool:
    """Return whether an item is in the fast ring: most are, unless a marker leaves them out."""
    if item.get_closest_marker("full"):
        return False
    return all(
        marker.args[0](**{name: item.callspec.params[name] for name in names_of(marker.args[0])})
        for marker in item.iter_markers("fast")
    )


def goes_deeper(item: pytest.Item) -> bool:
    """Return whether an item of the fast ring does more in the long one.

    There TensorFlow itself is asked as well as its recorded answers, and Hypothesis tries more
    examples. All others would do the same again.
    """
    return (
        "answers" in getattr(item, "fixturenames", ())
        or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        or item.get_closest_marker("deeper") is not None
    )


def names_of(function: Callable[..., object]) -> Sequence[str]:
    """Return the names of a function's parameters."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


# ---- leaks -------------------------------------------------------------------------------------


# Kept by modules and caches beyond a test. tests/tensor/test_memory.py looks at these one by one.
KEPT = ("kernels", "plans", "programs", "nodes")


@pytest.fixture(autouse=True, scope="module")
def no_garbage_of_other_files() -> None:
    """Collect what the tests of a file left, before those of the next count what is alive."""
    collect()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fail a test after which the core has more, or less, of any kind alive than before.

    Garbage is collected only if the counts differ: a full collection with all frameworks loaded
    takes longer than most tests. A framework may call a deleter a little later on a thread of its
    own, hence the patience. A test that failed is let off, since its traceback keeps its locals.
    """
    if importlib.util.find_spec("dlbridge") is None:
        yield
        return
    forget_failure()
    before = count_live()
    yield
    patience = time.monotonic() + (0.5 if keeps_derivatives() else 20.0)
    while count_live() != before and time.monotonic() < patience and not has_failed():
        collect()
        empty_backward_queue()
        if count_live() != before:
            time.sleep(0.01)
    if not has_failed():
        now = count_live()
        if now != before and keeps_derivatives():
            first = _FIRST.setdefault("live", before)
            kept = {kind: n for kind, n in now.items() if 0 <= n - first[kind] <= 16}
            before = {**before, **kept}
        assert now == before, "something was leaked, or released twice, by this test"


_FIRST: dict[str, dict[str, int]] = {}


def keeps_derivatives() -> bool:
    """Return whether this is torch before 2.13: it keeps tensors of derivatives for longer.

    Not only after a backward pass that raised. Up to five were seen at a time, in 2.6 and in 2.11,
    and one in 2.12, for as long as others come. Ninety tests meet them: a leak in each would be
    past the bound.
    """
    torch = sys.modules.get("torch")
    return torch is not None and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def empty_backward_queue() -> None:
    """Run a backward pass in torch: the one before, if it raised, left tensors for this one.

    That is fact 49 of docs/peers.md.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        with torch.enable_grad():
            torch.ones((), requires_grad=True).clone().backward()


def count_live() -> dict[str, int]:
    """Return how many the core has of each kind that no test may leave behind."""
    from dlbridge._core import native

    counts = native.live()
    assert counts["plans"] <= counts["kernels"], "a plan has outlived its kernel"
    return {kind: count for kind, count in counts.items() if kind not in KEPT}


def collect() -> None:
    """Collect garbage; where that takes long, spare the next time what is alive now.

    Frameworks have millions of objects that stay. They are looked through once.
    """
    start = time.monotonic()
    gc.collect()
    if time.monotonic() - start > 0.05:
        gc.freeze()


def has_failed() -> bool:
    """Return whether the test that runs has failed: pytest then leaves its exception in `sys`."""
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
def proved_torch() -> None:
    """Skip where torch is of a version whose insides were not proved: its calls are not direct."""
    if importlib.util.find_spec("torch") is None:
        return
    from dlbridge.frameworks.torch import proofs

    if proofs.proof() is None:
        pytest.skip(f"the installed torch is not one of {', '.join(proofs.PROVED)} on x86-64")


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
            with more_time():
                return importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"{name} is installed but cannot be imported: {error!r}")

    return load


@contextmanager
def more_time() -> Iterator[None]:
    """Stop the clock of pytest-timeout: an import counts for no test, as it may be in any."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if left:
        signal.setitimer(signal.ITIMER_REAL, left + IMPORT)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    """Return TensorFlow's answers to the questions of this test file; live ones if it is here."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 promotes scalars otherwise")
    record = request.config.getoption("record")
    path = FOLDER / f"{request.path.stem.removeprefix('test_')}.json.xz"
    is_live = request.config.getoption("ring") != "fast" and importlib.util.find_spec("tensorflow")
    option = request.config.option
    is_part = option.keyword or option.markexpr or any("::" in each for each in request.config.args)
    asked = Answers(path, record=record, keep=bool(is_part), live=bool(is_live))
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
def preloaded() -> Iterator[Callable[[str], Preloaded]]:
    """Return a function of a framework's name: the process that has imported it."""
    processes: dict[str, Preloaded] = {}
    yield lambda name: processes.setdefault(name, Preloaded(name))
    for each in processes.values():
        each.close()


@pytest.fixture
def run_python(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    preloaded: Callable[[str], Preloaded],
) -> Callable[..., Run]:
    """Return `run(code, *arguments, timeout=120, env={})`: Python code in a process of its own.

    The code may import dlbridge and the modules beside this file. For a test with the marker
    `preloaded(framework)` the process begins with that framework imported, if it is installed.
    """
    directory = tmp_path_factory.mktemp("run")
    marker = request.node.get_closest_marker("preloaded")
    ready = None
    if marker is not None and importlib.util.find_spec(marker.args[0]) is not None:
        ready = preloaded(marker.args[0])

    def run(code: str, *arguments: object, timeout: float = 120, **env: str) -> Run:
        path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **env}
        code, argv = textwrap.dedent(code), [str(argument) for argument in arguments]
        if ready is not None:
            return Run(*ready.run(code, argv, env, directory, timeout))
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code, *argv],
            env=env,
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
