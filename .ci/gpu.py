"""Check dlbridge on this machine's GPU, and say what was checked: `make test-gpu`.

The python that runs this file is used as it is: it has torch, JAX, CuPy and what else is to be met.
Other needs of dlbridge's build and tests come from a folder of wheels, never from the
network; `make gpu-wheels` fills that folder elsewhere. What is missing all the same skips its part,
which then is "not possible".

    environment   what is here: versions, the driver, the compilers
    build         the core, in place: compiled, or the one that `make gpu-wheels` has brought
    warmup        each framework does one thing: a cold machine reads gigabytes for it
    probe         tests/gpu/probe.py: what this driver and these frameworks do, each in a process
    tests         tests/cuda and tests/gpu under the marker `gpu`, each file in its own process
    sanitizers    tests/gpu/sanitized.py under compute-sanitizer: memcheck and racecheck
    benchmarks    python -m benchmarks cuda
    peers         other projects' tests of CUDA and DLPack, from the checkouts in --peers

All of it ends within --seconds, with every process that it has started. Everything is written as
it comes to --out: summary.json after each part, a line for each test in tests/, what was printed in
parts/. At the end all of that is in one archive, results.tar.gz, and a verdict of one page is
printed and written to verdict.txt. A later call, on another machine as well, goes on from such an
archive: --resume leaves out the parts that passed and the tests that have had their turn.

`--rehearse` does the same on the fake CUDA driver of tests/cuda, without a GPU: it shows that the
commands are right, and nothing about GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
TOOLKIT = Path("/usr/local/cuda/bin")


class Need(NamedTuple):
    """A package beside the frameworks: what is imported, and which parts are nothing without it.

    Attributes:
        distribution: its name for pip.
        module: what is imported.
        steps: the steps that need it.
        files: in the tests, only those whose text matches.
    """

    distribution: str
    module: str
    steps: tuple[str, ...]
    files: str = ""


EVERYWHERE = ("build", "warmup", "probe", "tests", "sanitizers", "benchmarks", "peers")
NEEDS = (
    Need("numpy", "numpy", EVERYWHERE),
    Need("cffi", "cffi", EVERYWHERE),
    Need("pytest", "pytest", ("probe", "tests", "sanitizers", "peers")),
    Need("hypothesis", "hypothesis", ("tests",)),
    Need("protobuf", "google.protobuf", ("tests",), r"dlbridge(\.| import )graph"),
    Need("array-api-compat", "array_api_compat", ("tests",), r"dlbridge(\.| import )graph"),
    Need("ml_dtypes", "ml_dtypes", ("tests",), r"\bml_dtypes\b"),
)
COMPILING = ("setuptools", "pycparser")  # to compile the core, if none was brought
AT_LEAST = {"setuptools": 77}  # as pyproject.toml says
# What `make gpu-wheels` fetches: the needs, theirs, and what only some tests meet.
CARRIED = (
    *(need.distribution for need in NEEDS), *COMPILING,
    "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout", "sortedcontainers", "attrs",
    "typing-extensions", "apache-tvm-ffi", "jax-tvm-ffi", "cuda-core", "cuda-bindings",
    "cuda-pathfinder", "absl-py", "expecttest",
)  # fmt: skip
PEERS = ("torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "triton", "numba-cuda", "cuda-core",
         "cuda-bindings", "apache-tvm-ffi", "jax-tvm-ffi", "numpy")  # fmt: skip
FOLDERS = ("tests/cuda", "tests/gpu", "tests/peers/test_cupy.py")
REHEARSED = ("tests/cuda", "tests/gpu")  # the stand-in for CuPy is no peer
ONE_GPU = "tests/cuda"  # is rehearsed as on a machine with one GPU, tests/gpu with two
# What tells most comes first, as time may run out: the rules of the driver, on which all else
# rests, the core by itself, then frameworks. Managed memory, which can hang a device, and more
# memory than there is come last, each alone.
ORDER = ("driver_rules|fake_driver", "streams", "exchange", "return_order", "copies|gather|alloc",
         "capture", "processes|ipc", "jax", "torch", "graph", "", "kernels|launch|triton|tvm",
         "managed|full_device")  # fmt: skip
FILE_SECONDS = 150  # of one process with a file's tests
TEST_SECONDS = 40  # of one test, before its stack is printed and its process ends
RESTARTS = 20  # of one file, after what a process does not outlive
FAULT = 86  # what compute-sanitizer returns when it found something, and a file that has to stop
LATE = 124  # the status of what was stopped for its time
MEMCHECK = ("--tool", "memcheck", "--report-api-errors", "no")
# Memory that is used before it is allocated. Its opposite, "use-after-free", knows waits of streams
# and of the host alone: what a producer frees after cuEventQuery has said that all work on it is
# over, as dlbridge gives memory back, it takes for a race.
STREAM_RACES = ("--track-stream-ordered-races", "use-before-alloc")
# Each alone on the machine: what runs under a tool is slow. JAX comes last, and without the search
# for races between streams: its host learns of the end of a copy by a callback, which the tool
# knows as little.
SANITIZERS = {
    "memcheck": ((*MEMCHECK, *STREAM_RACES), ("--without", "jax")),
    "racecheck": (("--tool", "racecheck", "--racecheck-report", "all"), ("--without", "jax")),
    "memcheck of JAX": (MEMCHECK, ("--only", "jax")),
}
# Frameworks that share one GPU must not each take most of its memory.
POLITE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}


@dataclass
class Result:
    """How one part of a step ended: "passed", "skipped", "failed", "not possible", and why."""

    step: str
    what: str
    outcome: str
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Setting:
    """Where the run writes, which python it uses, and the environment of its processes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out.resolve()
        self.wheels: Path = arguments.wheels.resolve()
        self.peers: Path | None = arguments.peers and arguments.peers.resolve()
        self.again: bool = arguments.again
        self.jobs: int = arguments.jobs
        self.quick: bool = arguments.quick or arguments.rehearse
        self.rehearses: bool = arguments.rehearse
        self.patience = 5 if arguments.rehearse else 1  # that machine may have other work
        self.end = time.monotonic() + arguments.seconds
        self.earlier: dict[tuple[str, str], Result] = {}  # what --resume brings, by step and part
        self.missing: set[str] = set()  # distributions
        self.parts = self.out / "parts"
        self.tests = self.out / "tests"
        self.work = ROOT / "build/gpu"
        self.site = self.work / f"site-{sys.implementation.cache_tag}"
        path = [str(ROOT), str(self.site), str(ROOT / ".ci"), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            **POLITE,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PATH": os.pathsep.join([os.environ.get("PATH", ""), str(TOOLKIT)]),
        }
        if TOOLKIT.is_dir():
            self.environment.setdefault("CUDA_HOME", str(TOOLKIT.parent))

    def prepare(self) -> None:
        """Make the folders; in a rehearsal, put the fake driver before the real one."""
        for folder in (self.parts, self.tests, self.work / "fake"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        if self.rehearses:
            self.environment |= fake_environment(self.environment, self.work / "fake")

    def left(self) -> float:
        """Return how many seconds of the whole run are left."""
        return self.end - time.monotonic()

    def run(self, *command: object, name: str, limit: float = 420, **extra: str) -> tuple[int, str]:
        """Run a command; return its status, and what it wrote, which also is in parts/`name`.

        A command that takes too long is ended with all that it has started: status 124.
        """
        words = [str(word) for word in command]
        path = self.parts / f"{name.replace('/', '-')}.log"
        limit = max(min(limit, self.left()), 1)
        with path.open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                words, cwd=ROOT, env={**self.environment, **extra}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = LATE
        text = path.read_bytes()[begin:].decode(errors="replace")
        if status == LATE:
            text += f"\nstopped after {limit:.0f} s"
        with path.open("a") as log:
            log.write(f"[status {status}]\n")
        return status, text

    def resume(self, archive: Path) -> None:
        """Take over what an earlier call found: its results, and a line for each of its tests."""
        with tarfile.open(archive) as found:
            found.extractall(self.out, filter="data")
        summary = json.loads((self.out / "summary.json").read_text())
        for each in (Result(**fields) for fields in summary["results"]):
            if each.step not in REPEATED:
                self.earlier[each.step, each.what] = each
        if self.again:
            for report in self.tests.glob("*.jsonl"):
                forget_failures(report)

    def is_done(self, step: str, what: str) -> bool:
        """Return whether an earlier call has finished a part, so that it is left out now."""
        earlier = self.earlier.get((step, what))
        return earlier is not None and earlier.outcome in GOOD

    def why_not(self, step: str, text: str = "") -> list[str]:
        """Return why a part of a step is not possible: packages that are missing, or the time."""
        lacks = [
            need.distribution
            for need in NEEDS
            if step in need.steps and need.distribution in self.missing
            and (not need.files or re.search(need.files, text))
        ]  # fmt: skip
        if lacks:
            return [f"needs {', '.join(lacks)}: `make gpu-wheels` where there is a network"]
        return ["no time was left for it: --seconds"] if self.left() < 3 else []


def fake_environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return what puts the fake driver, and the stand-in for CuPy, before the real ones."""
    sys.path.insert(0, str(ROOT / "tests/cuda"))
    fake_driver = importlib.import_module("fake_driver")
    library = fake_driver.build(folder, "libcuda.so.1")
    path = [str(ROOT / "tests/cuda/stand_in"), environment["PYTHONPATH"]]
    return {
        "LD_LIBRARY_PATH": str(library.parent),  # where others look for libcuda.so.1
        "DLBRIDGE_CUDA_DRIVER": str(library),
        "PYTHONPATH": os.pathsep.join(path),
    }


# ---- environment ---------------------------------------------------------------------------------


def check_environment(setting: Setting) -> Iterator[Result]:
    """Say what is here; install what is missing from the folder of wheels."""
    notes = [f"python {sys.version.split()[0]}, {sys.executable}"]
    notes += [_describe_tool(name) for name in ("cc", "nvcc", "compute-sanitizer")]
    notes += install_missing(setting)
    notes += [f"{name} {version}" for name in PEERS if (version := _version(name))]
    missing = ", ".join(sorted(setting.missing))
    if missing:
        notes.append(f"missing: {missing}; `make gpu-wheels` where there is a network fetches it")
    yield Result("environment", "packages", "not possible" if missing else "passed", notes=notes)
    why = None if setting.rehearses else find_no_gpu()
    yield Result("environment", "GPU", "failed" if why else "passed", notes=[why] if why else [])


def install_missing(setting: Setting) -> list[str]:
    """Unpack wheels of what is not here; never another version of what is."""
    shutil.rmtree(setting.site, ignore_errors=True)
    wheels = [wheel for wheel in sorted(setting.wheels.glob("*.whl")) if is_for_this(wheel.name)]
    wanted = [wheel for wheel in wheels if not is_here(wheel.name.partition("-")[0])]
    for wheel in wanted:  # a wheel is a zip file of what is imported: there may be no pip here
        with ZipFile(wheel) as archive:
            archive.extractall(setting.site)  # noqa: S202  (it is no tar file)
    setting.missing = find_missing(setting)
    return [f"from {setting.wheels}: {', '.join(w.name for w in wanted)}"] if wanted else []


def is_for_this(wheel: str) -> bool:
    """Return whether a wheel is for this version of Python, or for all."""
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return "py3" in python.split(".") or abi in (own, "abi3")


def is_here(name: str) -> bool:
    """Return whether this python has a distribution, and one that is new enough."""
    found = _version(name)
    return found is not None and int(found.partition(".")[0]) >= AT_LEAST.get(name, 0)


def find_missing(setting: Setting) -> set[str]:
    """Return the distributions that the processes which this run starts would not find."""
    modules = {need.module: need.distribution for need in NEEDS}
    modules |= {name: name for name in COMPILING}
    modules["pytest_timeout"] = "pytest-timeout"
    status, text = setting.run(sys.executable, "-c", _FIND_MISSING, *modules, name="packages")
    if status:
        return {f"a python that works ({text.strip()})"}
    return {modules[module] for module in text.split()}


_FIND_MISSING = """
import importlib.util, sys

def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False

print(*(module for module in sys.argv[1:] if not is_there(module)))
"""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _describe_tool(name: str) -> str:
    path = find_tool(name)
    return f"{name} {path or 'missing'}"


def find_tool(name: str) -> str | None:
    """Return the path of a tool of the CUDA toolkit or of the system, or None."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLKIT))


def find_no_gpu() -> str | None:
    """Return why there is no GPU here, or None where there is one."""
    try:
        driver = ctypes.CDLL(os.environ.get("DLBRIDGE_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        return f"there is no CUDA driver here: {error}"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"the CUDA driver finds no GPU: CUresult {status}, {count.value} devices"
    return None


# ---- build ---------------------------------------------------------------------------------------


def build(setting: Setting) -> Iterator[Result]:
    """Build the core in place, or put there the one that was brought for this python."""
    if why := setting.why_not("build"):
        yield Result("build", "core", "failed", notes=why)
        return
    brought = find_core(setting.wheels)
    if brought is not None:
        shutil.copy(brought, ROOT / "dlbridge/_core" / brought.name)
        status, _ = setting.run(sys.executable, "-c", "import dlbridge", name="build")
        if status == 0:
            yield Result("build", "core", "passed", notes=[f"{brought.name} was brought"])
            return
        (ROOT / "dlbridge/_core" / brought.name).unlink()
    yield _timed(_compile, setting)


def _compile(setting: Setting) -> Result:
    is_older = (setting.wheels / "core/sources").exists()
    notes = ["the core that was brought is not of these sources, or for another Python"] * is_older
    lacks = sorted(setting.missing & set(COMPILING))
    if lacks:
        notes.append(f"needs {', '.join(lacks)} to compile it here")
        return Result("build", "core", "failed", notes=notes)
    command = (sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    status, text = setting.run(*command, name="build")
    return Result(
        "build", "core", _outcome(status), notes=[*notes, *_tail(text, 25 * bool(status))]
    )


def find_core(wheels: Path) -> Path | None:
    """Return the core for this python that was compiled from these sources, or None."""
    core = wheels / "core"
    found = core / f"_cffi{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = core / "sources"
    is_ours = sources.exists() and sources.read_text().strip() == sources_digest()
    return found if is_ours and found.exists() else None


def sources_digest() -> str:
    """Return a sum over all that the core is compiled from."""
    folder = ROOT / "dlbridge/_core"
    files = [path for ending in ("c", "h", "ptx") for path in folder.rglob(f"*.{ending}")]
    files = [path for path in files if path.name != "_cffi.c"]
    files += [folder / "build.py", *(ROOT / "include").glob("*.h")]
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


# ---- warm-up ----

WARM_SECONDS = 120  # for all; a cold machine maps 3 GB for torch alone


def warm_up(setting: Setting) -> Iterator[Result]:
    """Let each framework do one thing, so that no later limit pays for a cold machine."""
    if why := setting.why_not("warmup"):
        yield Result("warmup", "all", "not possible", notes=why)
        return
    status, text = setting.run(sys.executable, PROBE, "--frameworks", name="warmup", limit=30)
    if status:
        yield Result("warmup", "all", "failed", notes=_tail(text))
        return
    yield from _all_of(setting, _warm_one, text.split())


def _warm_one(setting: Setting, name: str) -> Result:
    command = (sys.executable, "-X", "faulthandler", PROBE, "--warm", name)
    limit = WARM_SECONDS * setting.patience
    status, text = setting.run(*command, name=f"warmup-{name}", limit=limit)
    outcome = "skipped" if status == ABSENT else _outcome(status)
    return Result("warmup", name, outcome, notes=_tail(text, 4))


# ---- probe ---------------------------------------------------------------------------------------

PROBE = "tests/gpu/probe.py"
PROBE_SECONDS = 60  # of one line
ABSENT = 77  # its status where what it asks is not installed


def probe(setting: Setting) -> Iterator[Result]:
    """Ask this driver and these frameworks what they do: facts, so that no answer is wrong."""
    if why := setting.why_not("probe"):
        yield Result("probe", "all", "not possible", notes=why)
        return
    status, text = setting.run(sys.executable, PROBE, "--list", name="probe", limit=PROBE_SECONDS)
    if status:
        yield Result("probe", "all", "failed", notes=_tail(text))
        return
    lines = [name for name in text.split() if not setting.is_done("probe", name)]
    yield from _all_of(setting, _probe_one, lines)


def _probe_one(setting: Setting, name: str) -> Result:
    if why := setting.why_not("probe"):
        return Result("probe", name, "not possible", notes=why)
    command = (sys.executable, "-X", "faulthandler", PROBE, name)
    limit = PROBE_SECONDS * setting.patience
    status, text = setting.run(*command, name=f"probe-{name}", limit=limit)
    outcome = "skipped" if status == ABSENT else _outcome(status)
    return Result("probe", name, outcome, notes=_tail(text, 40))


# ---- tests ---------------------------------------------------------------------------------------


def test(setting: Setting) -> Iterator[Result]:
    """Run each file of tests in a process of its own: a fault of the GPU stays until its end."""
    folders = REHEARSED if setting.rehearses else FOLDERS
    files = [path for folder in folders for path in _test_files(ROOT / folder)]
    left = [path for path in files if not setting.is_done("tests", str(path.relative_to(ROOT)))]
    alone = [path for path in left if _rank(path) == len(ORDER) - 1]
    yield from _all_of(setting, _test_file, sorted(set(left) - set(alone), key=_rank))
    for path in alone:
        yield from _all_of(setting, _test_file, [path])


def _rank(path: Path) -> int:
    """Return when a file has its turn; one that no pattern names comes where ORDER has ""."""
    ranks = [i for i, pattern in enumerate(ORDER) if pattern and re.search(pattern, path.name)]
    return max(ranks, default=ORDER.index(""))


def _test_files(path: Path) -> list[Path]:
    """Return the files of a folder that have tests under the marker."""
    found = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    return [file for file in found if re.search(r"mark\.gpu|\bmachine\b", file.read_text())]


def _test_file(setting: Setting, path: Path) -> Result:
    name = str(path.relative_to(ROOT))
    if why := setting.why_not("tests", path.read_text()):
        return Result("tests", name, "not possible", notes=why)
    report = setting.tests / f"{name.replace('/', '-')}.jsonl"
    notes: list[str] = []
    status, text = run_file(setting, name, report, notes)
    if status == 5 and not report.exists():  # pytest: nothing was selected
        return Result("tests", name, "passed", notes=["no test of it needs a GPU"])
    counts, skips = read_report(report)
    is_wrong = counts["failed"] + counts["stopped"] > 0 or status not in (0, 5)
    notes[:0] = [", ".join(f"{count} {word}" for word, count in counts.items() if count), *skips]
    notes += _tail(text) if is_wrong else []
    return Result("tests", name, "failed" if is_wrong else "passed", notes=notes)


def run_file(setting: Setting, name: str, report: Path, notes: list[str]) -> tuple[int, str]:
    """Run a file until each of its tests has had its turn; return the last process's end.

    After an error that stays with the context, and after a crash, the tests that are left run in
    a new process.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-v", "-m", "gpu",
               "--ring=all", "-p", "no:cacheprovider", "-p", "gpu_report",
               "-o", f"faulthandler_timeout={TEST_SECONDS * setting.patience}"]  # fmt: skip
    if "pytest-timeout" not in setting.missing:
        # A signal would not reach a test that hangs in the driver; a thread ends the process.
        command += [f"--timeout={TEST_SECONDS * setting.patience}", "--timeout-method=thread"]
    is_alone = setting.rehearses and name.startswith(ONE_GPU)
    devices = {"FAKE_CUDA_DEVICES": "1"} if is_alone else {}
    for _ in range(RESTARTS):
        status, text = setting.run(
            *command, name, name=name, limit=FILE_SECONDS * setting.patience,
            DLBRIDGE_GPU_REPORT=str(report), **devices,
        )  # fmt: skip
        if not (status == FAULT or is_cut_off(report)) or setting.left() < 3:
            break
        notes.append(f"{read_last(report)}: a new process after {describe_end(status)}")
    return status, text


def is_cut_off(report: Path) -> bool:
    """Return whether a process ended in the middle of a test: a crash, or its time was over."""
    records = _records(report)
    return bool(records) and records[-1]["outcome"] == "began"


def describe_end(status: int) -> str:
    """Return why a file had to stop: an error of CUDA that stays, its time, or a signal."""
    said = {FAULT: "an error of CUDA that stays", LATE: "its time was over"}
    return said.get(status, f"status {status}")


def _records(report: Path) -> list[dict[str, Any]]:
    lines = report.read_text().splitlines() if report.exists() else []
    return [json.loads(line) for line in lines]


def forget_failures(report: Path) -> None:
    """Keep of a file's lines those of tests that passed or were skipped."""
    last = {each["test"]: each for each in _records(report)}
    kept = [each for each in last.values() if each["outcome"] in GOOD]
    report.write_text("".join(json.dumps(each) + "\n" for each in kept))


def read_last(report: Path) -> str:
    """Return the last test that began."""
    return next((each["test"] for each in reversed(_records(report))), "before the first test")


def read_report(report: Path) -> tuple[Counter[str], list[str]]:
    """Return how many tests there were of each outcome, and why some were skipped.

    "stopped" are tests that began and did not end.
    """
    last = {each["test"]: each for each in _records(report)}
    counts = Counter(each["outcome"] for each in last.values())
    counts["stopped"] = counts.pop("began", 0)
    reasons = Counter(each["text"] for each in last.values() if each["outcome"] == "skipped")
    return counts, [f"skipped {count}: {text}" for text, count in reasons.items()]


def _all_of(
    setting: Setting, work: Callable[[Setting, Any], Result], items: Iterable[Any]
) -> Iterator[Result]:
    """Yield the results of work on the items, each as soon as it is there."""
    with ThreadPoolExecutor(setting.jobs) as pool:
        try:
            for done in as_completed([pool.submit(_timed, work, setting, item) for item in items]):
                yield done.result()
        except BaseException:  # the call is to end now, so nothing more may begin
            setting.end = time.monotonic()
            pool.shutdown(wait=False, cancel_futures=True)
            kill_children()
            raise


# ---- sanitizers, benchmarks ----------------------------------------------------------------------


def sanitize(setting: Setting) -> Iterator[Result]:
    """Run the scenarios of tests/gpu/sanitized.py under each tool of compute-sanitizer."""
    for tool in SANITIZERS:
        if not setting.is_done("sanitizers", tool):
            yield _timed(_sanitize, setting, tool)


def _sanitize(setting: Setting, tool: str) -> Result:
    if why := setting.why_not("sanitizers"):
        return Result("sanitizers", tool, "not possible", notes=why)
    sanitizer = find_tool("compute-sanitizer")
    options, which = SANITIZERS[tool]
    script = [sys.executable, "tests/gpu/sanitized.py", *which]
    # Caches of frameworks hide where one piece of memory ends.
    uncached = {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    }
    if setting.rehearses:
        status, text = setting.run(*script, name=tool, **uncached)
        notes = ["without compute-sanitizer", *_tail(text, 1 if status == 0 else 12)]
        return Result("sanitizers", tool, _outcome(status), notes=notes)
    if sanitizer is None:
        return Result("sanitizers", tool, "not possible", notes=["there is no compute-sanitizer"])
    status, text = setting.run(
        sanitizer, *options, "--error-exitcode", FAULT,
        "--target-processes", "application-only", *script, name=tool, limit=SANITIZED_SECONDS,
        **uncached,
    )  # fmt: skip
    if "Device not supported" in text:  # under some virtual machines
        return Result("sanitizers", tool, "not possible", notes=["it refuses this device"])
    said = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    said += re.findall(r"^(\w+: ok)$", text, re.MULTILINE)
    return Result("sanitizers", tool, _outcome(status), notes=said if not status else _tail(text))


SANITIZED_SECONDS = 240  # of one tool


def measure(setting: Setting) -> Iterator[Result]:
    """Run the benchmarks, alone on the machine."""
    if setting.is_done("benchmarks", "cuda"):
        return
    if why := setting.why_not("benchmarks"):
        yield Result("benchmarks", "cuda", "not possible", notes=why)
        return
    report = setting.out / "cuda.json"
    quick = ["--quick"] if setting.quick else []
    command = (sys.executable, "-m", "benchmarks", "cuda", "--json", report, *quick)
    status, text = setting.run(*command, name="benchmarks", limit=560)
    yield Result(
        "benchmarks", "cuda", _outcome(status), notes=_tail(text, 60 if status == 0 else 25)
    )


# ---- other projects' tests -----------------------------------------------------------------------


def test_peers(setting: Setting) -> Iterator[Result]:
    """Run other projects' tests of CUDA and DLPack as they are, and with dlbridge in between."""
    why = setting.why_not("peers")
    if setting.peers is None:
        why = ["--peers=<a folder with the checkouts, each under its name>"]
    if why:
        yield Result("peers", "all", "not possible", notes=why)
        return
    command = (sys.executable, "-m", "tests.suites", "--gpu")
    status, text = setting.run(*command, "--list", name="peers", limit=30)
    if status:
        yield Result("peers", "all", "failed", notes=_tail(text))
        return
    yield from _all_of(setting, _test_peer, text.split())


def _test_peer(setting: Setting, name: str) -> Result:
    command = (sys.executable, "-m", "tests.suites", "--gpu", name)
    status, text = setting.run(*command, name=f"peers-{name}", PEERS=str(setting.peers))
    outcome = "not possible" if "\nnot there:" in text else _outcome(status)
    return Result("peers", name, outcome, notes=_tail(text, 40))


# ---- the whole -----------------------------------------------------------------------------------

STEPS = {
    "environment": check_environment,
    "build": build,
    "warmup": warm_up,
    "probe": probe,
    "tests": test,
    "sanitizers": sanitize,
    "benchmarks": measure,
    "peers": test_peers,
}
MUST = ("environment", "build")  # without these the others say nothing
SLOT = 530  # seconds of a whole run: it ends before the ten minutes that a GPU is often lent for
REPEATED = ("environment", "build", "warmup")  # each call is on a machine of its own
ARCHIVE = "results.tar.gz"
VERDICT = 9000  # characters of the page that is printed at the end


def main() -> int:
    """Run the steps; print what was found; return 0 only where all of it was checked."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(LATE))  # as `timeout` ends this process
    arguments = _parse()
    setting = Setting(arguments)
    setting.prepare()
    if arguments.resume:
        setting.resume(arguments.resume)
    results = list(setting.earlier.values())
    try:
        setting.missing = find_missing(setting)
        for step in arguments.steps.split(","):
            if not _run_step(setting, step, results):
                break
    finally:
        end_children()
        verdict = describe(results, setting)
        (setting.out / "verdict.txt").write_text(verdict)
        pack(setting.out)
        print(verdict, flush=True)
    return int(any(each.outcome not in GOOD for each in results))


GOOD = ("passed", "skipped")


def _run_step(setting: Setting, step: str, results: list[Result]) -> bool:
    """Run one step; return whether the steps after it can say anything."""
    goes_on = True
    for result in STEPS[step](setting):
        print(_render(result, 6), flush=True)
        results[:] = [r for r in results if (r.step, r.what) != (result.step, result.what)]
        results.append(result)
        write_summary(setting, results)
        goes_on = goes_on and not (step in MUST and result.outcome == "failed")
    return goes_on


def adopt_orphans() -> None:
    """Become the parent of what the processes started here leave behind, to end it."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def kill_children() -> set[int]:
    """Send SIGKILL to the children of this process, orphans that it adopted among them."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    found = {int(n) for path in tasks.glob("*/children") for n in path.read_text().split()}
    for child in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return found


def end_children() -> None:
    """End every process that descends from this one: none may outlive the call."""
    while found := kill_children():  # theirs are ours as soon as they have ended
        for child in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def pack(out: Path) -> None:
    """Put everything that was written into one archive beside it."""
    made = out / f"{ARCHIVE}.new"
    with tarfile.open(made, "w:gz") as archive:
        for name in ("summary.json", "verdict.txt", "cuda.json", "tests", "parts"):
            if (out / name).exists():
                archive.add(out / name, name)
    made.replace(out / ARCHIVE)


def write_summary(setting: Setting, results: list[Result]) -> None:
    """Write what is known so far: a run may be ended at any moment."""
    report = {"rehearsal": setting.rehearses, "results": [asdict(each) for each in results]}
    made = setting.out / "summary.json.new"
    made.write_text(json.dumps(report, indent=1) + "\n")
    made.replace(setting.out / "summary.json")


def describe(results: list[Result], setting: Setting) -> str:
    """Return a page on what was checked: what is wrong in full, what is right in a line each."""
    where = "on the fake driver, without a GPU" if setting.rehearses else "on this GPU"
    wrong = [each for each in results if each.outcome not in GOOD]
    right = [each for each in results if each.outcome in GOOD]
    head = f"\n{len(right)} of {len(results)} parts passed {where}"
    if any(each.step in MUST and each.outcome == "failed" for each in wrong):
        head = "\nstopped: nothing was checked on a GPU"
    for count in (25, 12, 6, 3, 1, 0):  # lines of each part, as many as the page has room for
        lines = [head, *(_render(each, 1 if count else 0) for each in right)]
        lines += [_render(each, count) for each in wrong]
        page = "\n".join([*lines, f"all of it: {setting.out / ARCHIVE}"])
        if len(page) <= VERDICT:
            break
    return page[-VERDICT:]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="logs and figures")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="what is missing here")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    all_but_peers = ",".join(step for step in STEPS if step != "peers")
    parser.add_argument("--steps", default=all_but_peers, help="some of them, with commas")
    parser.add_argument(
        "--seconds", type=float, default=SLOT, help="for all of it; default %(default)s"
    )
    parser.add_argument("--resume", type=Path, help=f"the {ARCHIVE} of an earlier call")
    parser.add_argument("--again", action="store_true",
                        help="with --resume: give the tests that failed another turn")  # fmt: skip
    parser.add_argument("--peers", type=Path, help="checkouts of other projects, by their names")
    parser.add_argument("--quick", action="store_true", help="benchmarks: few rounds")
    parser.add_argument("--rehearse", action="store_true", help="on the fake driver")
    arguments = parser.parse_args()
    unknown = set(arguments.steps.split(",")) - STEPS.keys()
    if unknown:
        parser.error(f"steps are {', '.join(STEPS)}, not {', '.join(sorted(unknown))}")
    return arguments


def _timed(work: Callable[..., Result], *arguments: Any) -> Result:
    begin = time.monotonic()
    result = work(*arguments)
    result.seconds = time.monotonic() - begin
    return result


def _outcome(status: int) -> str:
    return "failed" if status else "passed"


def _tail(text: str, lines: int = 25) -> list[str]:
    return text.strip().splitlines()[-lines:] if lines else []


def _render(result: Result, notes: int) -> str:
    took = f" ({result.seconds:.0f} s)" if result.seconds >= 1 else ""
    head = f"{result.outcome:12} {result.step:12} {result.what}{took}"
    return "\n".join([head, *(f"             {line[:200]}" for line in result.notes[:notes])])


if __name__ == "__main__":
    sys.exit(main())
