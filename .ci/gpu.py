"""Check dlbridge on this machine's GPU, and say what was checked: `make test-gpu`.

The python that runs this file is used as it is: it has torch, JAX, CuPy and what else is to be met.
Other needs of dlbridge's build and tests come from a folder of wheels, never from the
network; `make gpu-wheels` fills that folder elsewhere.

    environment   what is here: versions, the driver, the compilers
    build         the core, in place
    tests         tests/cuda and tests/gpu under the marker `gpu`, each file in its own process
    sanitizers    tests/gpu/sanitized.py under compute-sanitizer: memcheck and racecheck
    benchmarks    python -m benchmarks cuda

`--rehearse` does the same on the fake CUDA driver of tests/cuda, without a GPU: it shows that the
commands are right, and nothing about GPUs.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TOOLKIT = Path("/usr/local/cuda/bin")

# Needs of a step beside the frameworks: module -> distribution.
NEEDS = {
    "setuptools": "setuptools",
    "cffi": "cffi",
    "pycparser": "pycparser",
    "numpy": "numpy",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
    "ml_dtypes": "ml_dtypes",
    "google.protobuf": "protobuf",
    "array_api_compat": "array-api-compat",
}
AT_LEAST = {"setuptools": 77}  # as pyproject.toml says
PEERS = ("torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "triton", "numba-cuda", "cuda-core",
         "cuda-bindings", "apache-tvm-ffi", "jax-tvm-ffi", "numpy")  # fmt: skip
FOLDERS = ("tests/cuda", "tests/gpu", "tests/peers/test_cupy.py")
REHEARSED = ("tests/gpu",)  # what is in tests/cuda runs on the fake driver anyway
FAULT = 86  # what compute-sanitizer returns when it found something
SANITIZERS = {
    "memcheck": ("--track-stream-ordered-races", "all", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "all"),
}
# Frameworks that share one GPU must not each take most of its memory.
POLITE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}


@dataclass
class Result:
    """How one part of a step ended: "passed", "failed" or "not possible", and why."""

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
        self.jobs: int = arguments.jobs
        self.quick: bool = arguments.quick or arguments.rehearse
        self.rehearses: bool = arguments.rehearse
        self.log = self.out / "gpu.log"
        self.work = ROOT / "build/gpu"
        self.site = self.work / "site"
        path = [str(ROOT), str(self.site), os.environ.get("PYTHONPATH", "")]
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
        for folder in ("reports", "fake"):
            shutil.rmtree(self.work / folder, ignore_errors=True)
            (self.work / folder).mkdir(parents=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        if self.rehearses:
            self.environment |= fake_environment(self.environment, self.work / "fake")

    def run(self, *command: object, limit: float = 420, **extra: str) -> tuple[int, str]:
        """Run a command; return its status and output, which also go to the log."""
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words, cwd=ROOT, env={**self.environment, **extra}, timeout=limit, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            status, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            status, text = 124, f"{text}\nstopped after {limit:.0f} s"
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(words)}\n{text}\n[status {status}]\n")
        return status, text


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
    wheels = sorted(setting.wheels.glob("*.whl"))
    if wheels:
        install = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps")
        setting.run(*install, "--upgrade", "--target", setting.site, *wheels)
    missing = find_missing(setting)
    if missing:
        notes.append(
            f"missing: {', '.join(missing)}; run `make gpu-wheels` where there is a network, and "
            f"bring the folder here as {setting.wheels}"
        )
    notes += [f"{name} {version}" for name in PEERS if (version := _version(name))]
    yield Result("environment", "packages", "failed" if missing else "passed", notes=notes)
    why = None if setting.rehearses else find_no_gpu()
    yield Result("environment", "GPU", "failed" if why else "passed", notes=[why] if why else [])


def find_missing(setting: Setting) -> list[str]:
    """Return what the processes that this run starts would not find, or find too old."""
    status, text = setting.run(sys.executable, "-c", _FIND_MISSING, *NEEDS)
    if status:
        return [f"a python that works ({text.strip()})"]
    missing = [NEEDS[module] for module in text.split()]
    return [f"{name}>={AT_LEAST[name]}" if name in AT_LEAST else name for name in missing]


_FIND_MISSING = """
import importlib.metadata, importlib.util, sys

def is_there(module):
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        return False
    if module == "setuptools" and found:
        return int(importlib.metadata.version(module).partition(".")[0]) >= 77
    return found is not None

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


# ---- build, tests --------------------------------------------------------------------------------


def build(setting: Setting) -> Iterator[Result]:
    """Build the core in place, with the python that has the frameworks."""
    status, text = setting.run(
        sys.executable, "setup.py", "-q", "build_ext", "--inplace", limit=600
    )
    yield Result("build", "core", _outcome(status), notes=[] if status == 0 else _tail(text))


def test(setting: Setting) -> Iterator[Result]:
    """Run each file of tests in a process of its own: a fault of the GPU stays until its end."""
    folders = REHEARSED if setting.rehearses else FOLDERS
    files = [path for folder in folders for path in _test_files(ROOT / folder)]
    with ThreadPoolExecutor(setting.jobs) as pool:
        yield from pool.map(lambda path: _timed(_test_file, setting, path), files)


def _test_files(path: Path) -> list[Path]:
    """Return the files of a folder that have tests under the marker."""
    found = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    return [file for file in found if re.search(r"mark\.gpu|\bmachine\b", file.read_text())]


def _test_file(setting: Setting, path: Path) -> Result:
    name = str(path.relative_to(ROOT))
    report = setting.work / "reports" / f"{name.replace('/', '-')}.xml"
    status, text = setting.run(
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--ring=all", "-p", "no:cacheprovider",
        "--junitxml", report, name,
    )  # fmt: skip
    counts, skips = _read_report(report)
    if status == 5:  # pytest: nothing was selected
        return Result("tests", name, "passed", notes=["no test of it needs a GPU"])
    notes = [", ".join(f"{count} {word}" for word, count in counts.items() if count), *skips]
    return Result("tests", name, _outcome(status), notes=notes + (_tail(text) if status else []))


def _read_report(report: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many tests there were of each outcome, and why some were skipped."""
    if not report.exists():
        return {}, []
    root = ElementTree.parse(report).getroot()  # noqa: S314  (pytest wrote it)
    suite = root.find("testsuite")
    assert suite is not None
    number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    passed = number["tests"] - failed - number["skipped"]
    reasons = [str(skip.get("message")) for skip in suite.iter("skipped")]
    texts = [f"skipped {reasons.count(text)}: {text}" for text in dict.fromkeys(reasons)]
    return {"passed": passed, "failed": failed, "skipped": number["skipped"]}, texts


# ---- sanitizers, benchmarks ----------------------------------------------------------------------


def sanitize(setting: Setting) -> Iterator[Result]:
    """Run the scenarios of tests/gpu/sanitized.py under each tool of compute-sanitizer."""
    with ThreadPoolExecutor(setting.jobs) as pool:
        yield from pool.map(lambda tool: _timed(_sanitize, setting, tool), SANITIZERS)


def _sanitize(setting: Setting, tool: str) -> Result:
    sanitizer = find_tool("compute-sanitizer")
    script = [sys.executable, "tests/gpu/sanitized.py"]
    # Caches of frameworks hide where one piece of memory ends.
    uncached = {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    }
    if setting.rehearses:
        status, text = setting.run(*script, **uncached)
        notes = ["without compute-sanitizer", *_tail(text, 1 if status == 0 else 12)]
        return Result("sanitizers", tool, _outcome(status), notes=notes)
    if sanitizer is None:
        return Result("sanitizers", tool, "not possible", notes=["there is no compute-sanitizer"])
    status, text = setting.run(
        sanitizer, "--tool", tool, *SANITIZERS[tool], "--error-exitcode", FAULT,
        "--target-processes", "application-only", *script, limit=540, **uncached,
    )  # fmt: skip
    if "Device not supported" in text:  # under some virtual machines
        return Result("sanitizers", tool, "not possible", notes=["it refuses this device"])
    said = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    return Result("sanitizers", tool, _outcome(status), notes=said or _tail(text))


def measure(setting: Setting) -> Iterator[Result]:
    """Run the benchmarks, alone on the machine."""
    report = setting.out / "cuda.json"
    quick = ["--quick"] if setting.quick else []
    command = (sys.executable, "-m", "benchmarks", "cuda", "--json", report, *quick)
    status, text = setting.run(*command, limit=900)
    print(text)
    yield Result("benchmarks", "cuda", _outcome(status), notes=[] if status == 0 else _tail(text))


# ---- the whole -----------------------------------------------------------------------------------

STEPS = {
    "environment": check_environment,
    "build": build,
    "tests": test,
    "sanitizers": sanitize,
    "benchmarks": measure,
}
MUST = ("environment", "build")  # without these the others say nothing


def main() -> int:
    """Run the steps; print what was found; return 0 only where all of it was checked."""
    arguments = _parse()
    setting = Setting(arguments)
    setting.prepare()
    results: list[Result] = []
    for step in arguments.steps.split(","):
        found = []
        for result in STEPS[step](setting):
            print(_render(result), flush=True)
            found.append(result)
        results += found
        if step in MUST and any(each.outcome == "failed" for each in found):
            print(f"\nstopped: {step} failed, and nothing was checked on a GPU")
            break
    report = {"rehearsal": setting.rehearses, "results": [asdict(each) for each in results]}
    (setting.out / "summary.json").write_text(json.dumps(report, indent=1) + "\n")
    return int(_conclude(results, setting))


def _conclude(results: list[Result], setting: Setting) -> bool:
    """Print one line for all; return whether something is not as it must be."""
    wrong = [each for each in results if each.outcome != "passed"]
    where = "on the fake driver, without a GPU" if setting.rehearses else "on this GPU"
    print(f"\n{len(results) - len(wrong)} of {len(results)} parts passed {where}")
    for result in wrong:
        print(f"  {result.outcome}: {result.step} {result.what}")
    print(f"everything that was said: {setting.log}")
    return bool(wrong)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="logs and figures")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="what is missing here")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--steps", default=",".join(STEPS), help="some of them, with commas")
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
    return text.strip().splitlines()[-lines:]


def _render(result: Result) -> str:
    took = f" ({result.seconds:.0f} s)" if result.seconds >= 1 else ""
    head = f"{result.outcome:12} {result.step:12} {result.what}{took}"
    return "\n".join([head, *(f"             {line}" for line in result.notes)])


if __name__ == "__main__":
    sys.exit(main())
