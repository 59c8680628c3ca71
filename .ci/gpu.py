"""Check dlbridge on this machine's GPU, and say what was checked: `make test-gpu`.

The python that runs this file is used as it is: it has torch, JAX, CuPy and what else is to be met.
Other needs of dlbridge's build and tests come from a folder of wheels, never from the
network; `make gpu-wheels` fills that folder elsewhere. What is missing all the same skips its part,
which then is "not possible".

    environment   what is here: versions, the driver, the compilers
    build         the core, in place: compiled, or the one that `make gpu-wheels` has brought
    probe         tests/gpu/probe.py: what this driver and these frameworks do, each in a process
    tests         tests/cuda and tests/gpu under the marker `gpu`, each file in its own process
    sanitizers    tests/gpu/sanitized.py under compute-sanitizer: memcheck and racecheck
    benchmarks    python -m benchmarks cuda
    peers         other projects' tests of CUDA and DLPack, from the checkouts in --peers

All of it ends within --seconds. Everything is written as it comes to --out: summary.json after each
part, a line for each test in tests/, what was printed in parts/.

`--rehearse` does the same on the fake CUDA driver of tests/cuda, without a GPU: it shows that the
commands are right, and nothing about GPUs.
"""

from __future__ import annotations

import argparse
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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
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


EVERYWHERE = ("build", "probe", "tests", "sanitizers", "benchmarks", "peers")
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
# What is learnt first where time runs out: kernels of frameworks are compiled, and come last.
FIRST = ("streams", "exchange|return_order", "copies|gather|alloc", "capture", "processes|ipc")
LAST = "kernels|launch|triton"
FILE_SECONDS = 120  # of one file of tests
TEST_SECONDS = 60  # of one test, before its stack is printed
RESTARTS = 20  # of one file, after errors that a process does not outlive
FAULT = 86  # what compute-sanitizer returns when it found something, and a file that has to stop
SANITIZERS = {
    "memcheck": ("--track-stream-ordered-races", "all", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "all"),
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
        self.jobs: int = arguments.jobs
        self.quick: bool = arguments.quick or arguments.rehearse
        self.rehearses: bool = arguments.rehearse
        self.patience = 5 if arguments.rehearse else 1  # that machine may have other work
        self.end = time.monotonic() + arguments.seconds
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
                status = 124
        text = path.read_bytes()[begin:].decode(errors="replace")
        if status == 124:
            text += f"\nstopped after {limit:.0f} s"
        with path.open("a") as log:
            log.write(f"[status {status}]\n")
        return status, text

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
            archive.extractall(setting.site)
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
    lacks = sorted(setting.missing & set(COMPILING))
    if lacks:
        return Result("build", "core", "failed", notes=[f"needs {', '.join(lacks)} to compile"])
    command = (sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    status, text = setting.run(*command, name="build")
    return Result("build", "core", _outcome(status), notes=[] if status == 0 else _tail(text))


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


# ---- probe ---------------------------------------------------------------------------------------

PROBE = "tests/gpu/probe.py"
PROBE_SECONDS = 20  # of one line; four run at a time
PROBES_SECONDS = 60  # of all
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
    end = time.monotonic() + PROBES_SECONDS * setting.patience
    yield from _all_of(setting, partial(_probe_one, end), text.split())


def _probe_one(end: float, setting: Setting, name: str) -> Result:
    limit = min(PROBE_SECONDS * setting.patience, end - time.monotonic())
    status, text = setting.run(
        sys.executable, "-X", "faulthandler", PROBE, name, name=f"probe-{name}", limit=limit
    )
    outcome = "skipped" if status == ABSENT else _outcome(status)
    return Result("probe", name, outcome, notes=_tail(text, 40))


# ---- tests ---------------------------------------------------------------------------------------


def test(setting: Setting) -> Iterator[Result]:
    """Run each file of tests in a process of its own: a fault of the GPU stays until its end."""
    folders = REHEARSED if setting.rehearses else FOLDERS
    files = [path for folder in folders for path in _test_files(ROOT / folder)]
    yield from _all_of(setting, _test_file, sorted(files, key=_rank))


def _rank(path: Path) -> int:
    if re.search(LAST, path.name):
        return len(FIRST) + 1
    ranks = [i for i, pattern in enumerate(FIRST) if re.search(pattern, path.name)]
    return min(ranks, default=len(FIRST))


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
    begin = time.monotonic()
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-v", "-m", "gpu",
               "--ring=all", "-p", "no:cacheprovider", "-p", "gpu_report",
               "-o", f"faulthandler_timeout={TEST_SECONDS}"]  # fmt: skip
    if "pytest-timeout" not in setting.missing:
        command.append(f"--timeout={TEST_SECONDS}")
    is_alone = setting.rehearses and name.startswith(ONE_GPU)
    devices = {"FAKE_CUDA_DEVICES": "1"} if is_alone else {}
    for _ in range(RESTARTS):
        limit = FILE_SECONDS * setting.patience - (time.monotonic() - begin)
        status, text = setting.run(
            *command, name, name=name, limit=limit, DLBRIDGE_GPU_REPORT=str(report), **devices
        )
        if status == 124 or (0 <= status < 128 and status != FAULT):
            break
        notes.append(f"{read_last(report)}: a new process after {describe_end(status)}")
    return status, text


def describe_end(status: int) -> str:
    """Return why a file had to stop: an error of CUDA that stays, or a signal."""
    return "an error of CUDA that stays" if status == FAULT else f"status {status}"


def _records(report: Path) -> list[dict[str, Any]]:
    lines = report.read_text().splitlines() if report.exists() else []
    return [json.loads(line) for line in lines]


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
        for done in as_completed([pool.submit(_timed, work, setting, item) for item in items]):
            yield done.result()


# ---- sanitizers, benchmarks ----------------------------------------------------------------------


def sanitize(setting: Setting) -> Iterator[Result]:
    """Run the scenarios of tests/gpu/sanitized.py under each tool of compute-sanitizer."""
    yield from _all_of(setting, _sanitize, SANITIZERS)


def _sanitize(setting: Setting, tool: str) -> Result:
    if why := setting.why_not("sanitizers"):
        return Result("sanitizers", tool, "not possible", notes=why)
    sanitizer = find_tool("compute-sanitizer")
    script = [sys.executable, "tests/gpu/sanitized.py"]
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
        sanitizer, "--tool", tool, *SANITIZERS[tool], "--error-exitcode", FAULT,
        "--target-processes", "application-only", *script, name=tool, limit=540, **uncached,
    )  # fmt: skip
    if "Device not supported" in text:  # under some virtual machines
        return Result("sanitizers", tool, "not possible", notes=["it refuses this device"])
    said = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    return Result("sanitizers", tool, _outcome(status), notes=said or _tail(text))


def measure(setting: Setting) -> Iterator[Result]:
    """Run the benchmarks, alone on the machine."""
    if why := setting.why_not("benchmarks"):
        yield Result("benchmarks", "cuda", "not possible", notes=why)
        return
    report = setting.out / "cuda.json"
    quick = ["--quick"] if setting.quick else []
    command = (sys.executable, "-m", "benchmarks", "cuda", "--json", report, *quick)
    status, text = setting.run(*command, name="benchmarks", limit=560)
    print(text)
    yield Result("benchmarks", "cuda", _outcome(status), notes=[] if status == 0 else _tail(text))


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
    "probe": probe,
    "tests": test,
    "sanitizers": sanitize,
    "benchmarks": measure,
    "peers": test_peers,
}
MUST = ("environment", "build")  # without these the others say nothing
SLOT = 570  # seconds of a whole run: a little less than the ten minutes that a GPU is lent for


def main() -> int:
    """Run the steps; print what was found; return 0 only where all of it was checked."""
    arguments = _parse()
    setting = Setting(arguments)
    setting.prepare()
    setting.missing = find_missing(setting)
    results: list[Result] = []
    for step in arguments.steps.split(","):
        begin = len(results)
        for result in STEPS[step](setting):
            print(_render(result), flush=True)
            results.append(result)
            write_summary(setting, results)
        if step in MUST and any(each.outcome == "failed" for each in results[begin:]):
            print(f"\nstopped: {step} failed, and nothing was checked on a GPU")
            break
    return int(_conclude(results, setting))


def write_summary(setting: Setting, results: list[Result]) -> None:
    """Write what is known so far: a run may be ended at any moment."""
    report = {"rehearsal": setting.rehearses, "results": [asdict(each) for each in results]}
    made = setting.out / "summary.json.new"
    made.write_text(json.dumps(report, indent=1) + "\n")
    made.replace(setting.out / "summary.json")


def _conclude(results: list[Result], setting: Setting) -> bool:
    """Print one line for all; return whether something is not as it must be."""
    wrong = [each for each in results if each.outcome not in ("passed", "skipped")]
    where = "on the fake driver, without a GPU" if setting.rehearses else "on this GPU"
    print(f"\n{len(results) - len(wrong)} of {len(results)} parts passed {where}")
    for result in wrong:
        print(f"  {result.outcome}: {result.step} {result.what}")
    print(f"everything that was said: {setting.out}")
    return bool(wrong)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="logs and figures")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="what is missing here")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    all_but_peers = ",".join(step for step in STEPS if step != "peers")
    parser.add_argument("--steps", default=all_but_peers, help="some of them, with commas")
    parser.add_argument("--seconds", type=float, help=f"for all of it; default {SLOT}")
    parser.add_argument("--peers", type=Path, help="checkouts of other projects, by their names")
    parser.add_argument("--quick", action="store_true", help="benchmarks: few rounds")
    parser.add_argument("--rehearse", action="store_true", help="on the fake driver")
    arguments = parser.parse_args()
    if arguments.seconds is None:
        arguments.seconds = 3600 if arguments.rehearse else SLOT
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
    return text.strip().splitlines()[-lines:]


def _render(result: Result) -> str:
    took = f" ({result.seconds:.0f} s)" if result.seconds >= 1 else ""
    head = f"{result.outcome:12} {result.step:12} {result.what}{took}"
    return "\n".join([head, *(f"             {line}" for line in result.notes)])


if __name__ == "__main__":
    sys.exit(main())
