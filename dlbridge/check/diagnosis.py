"""Look at what is installed here: which frameworks speak which DLPack, what is broken, and advice.

Each framework is imported in a process of its own, since one may crash another, or itself.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge._core as core
from dlbridge import registry
from dlbridge._core import lib, native
from dlbridge.calls import words
from dlbridge.check.inspection import inspect
from dlbridge.check.processes import describe_end, environment
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError
from dlbridge.exchange import adapter, protocol
from dlbridge.exchange.exchange import convert
from dlbridge.files import why_not_loadable, why_not_private
from dlbridge.kernels.cache import cache_path
from dlbridge.signals import not_from_handler
from dlbridge.text import escape_controls

# Variables that change what dlbridge or a framework does in an exchange.
VARIABLES = {
    "DLBRIDGE_CACHE_DIR": "where compiled kernels are kept",
    "DLBRIDGE_CUDA_DRIVER": "which library is the CUDA driver",
    "CUDA_VISIBLE_DEVICES": "which GPUs there are, and their order",
    "JAX_ENABLE_X64": "whether JAX has 64-bit types",
    "JAX_PLATFORMS": "on which devices JAX works",
    "XDG_CACHE_HOME": "where caches are, compiled kernels too",
    "XLA_FLAGS": "how many CPU devices JAX has, among other things",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "whether JAX takes most memory of a GPU at once",
}


@dataclass(frozen=True)
class Defect:
    """A known defect of an installed version; the fields are those of an adapter's `Quirk`."""

    fact: int
    versions: str
    defect: str
    answer: str
    advice: str


@dataclass(frozen=True)
class FrameworkReport:
    """The state of one installed framework.

    Attributes:
        name: as in `convert(x, name)`.
        version: of the package; "" if it does not tell.
        dlpack: version (major, minor) of the capsule that it gives when asked for DLPack 1.3;
            (0, 8) stands for a legacy capsule; None where it gave none.
        table: version of its C exchange table; None where it has none.
        path: which path its tensors take in dlbridge; "" where there is only one.
        defects: those seen in the series of this version.
        unmeasured: the number of its known defects that were seen in other series only.
        error: why it cannot be used; "" where it can.
        note: why no array of it was inspected; "" where one was.
    """

    name: str
    version: str
    dlpack: tuple[int, int] | None = None
    table: tuple[int, int] | None = None
    path: str = ""
    defects: tuple[Defect, ...] = ()
    unmeasured: int = 0
    error: str = ""
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """Something to act on: `level` is "broken" or "warning"."""

    level: str
    what: str
    advice: str


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `doctor`; `print` shows them as text.

    Attributes:
        python: its version and its tag of native modules.
        native: the file of the native module.
        dlpack: the version of the standard that it speaks.
        frameworks: those that are installed.
        cuda: the driver's version and its number of devices, or why there is no driver.
        cache: folder and contents of the cache of compiled kernels.
        environment: the variables that are set among `VARIABLES`.
        findings: what is broken, and what to be warned of.
    """

    python: str
    native: str
    dlpack: tuple[int, int]
    frameworks: tuple[FrameworkReport, ...]
    cuda: str
    cache: str
    environment: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def is_broken(self) -> bool:
        """Whether something is broken; warnings and known defects do not count."""
        return any(each.level == "broken" for each in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dicts, lists, numbers and text."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {**plain, "is_broken": self.is_broken}

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (part, subject, text), in the order in which a person reads them."""
        for part, subject, text in self._rows():
            yield part, subject, escape_controls(text, lines=True)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        yield "dlbridge", "python", self.python
        yield "dlbridge", "native module", self.native
        yield "dlbridge", "DLPack", _text_of_version(self.dlpack)
        yield "dlbridge", "CUDA", self.cuda
        yield "dlbridge", "cache of kernels", self.cache
        for name, value in self.environment.items():
            yield "environment", name, f"{value} ({VARIABLES[name]})"
        for each in self.frameworks:
            yield "framework", f"{each.name} {each.version}".strip(), _text_of_framework(each)
        for each in self.frameworks:
            for row in each.defects:
                text = f"{row.defect}; dlbridge: {row.answer}; without it: {row.advice}"
                yield "known defect", f"{each.name} ({row.fact})", text
        for finding in self.findings:
            yield finding.level, "", f"{finding.what}: {finding.advice}"

    def summary(self) -> str:
        """Return the verdict in one line: what is broken, and how much else there is to read."""
        counts = Counter(each.level for each in self.findings)
        broken = [each.what for each in self.findings if each.level == "broken"]
        late = [each.name for each in self.frameworks if each.note == _LATE]
        verdict = f"broken: {'; '.join(broken)}" if broken else "nothing is broken"
        if late and not broken:
            verdict = f"nothing is known to be broken, {len(late)} not imported"
        defects = sum(len(each.defects) for each in self.frameworks)
        rest = f"warnings: {counts['warning']}, known defects that dlbridge answers: {defects}"
        text = f"{verdict} (frameworks: {len(self.frameworks)}, {rest})"
        return escape_controls(text, lines=True)

    def __str__(self) -> str:
        rows = [*self.rows()]
        left = max(len(part) for part, _, _ in rows)
        middle = max(len(subject) for _, subject, _ in rows)
        lines = [f"{p:<{left}}  {s:<{middle}}  {text}" for p, s, text in rows]
        return "\n".join([*lines, self.summary()])


def doctor(
    frameworks: Sequence[str] | None = None,
    *,
    timeout: float = 300.0,
    within: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Return what is installed here, what it speaks, what is broken and what to do about it.

    Every installed framework is imported in a process of its own, which makes one small array and
    inspects it; this process imports none. The CUDA driver is opened in a process as well.

    Broken is: a framework that is installed and cannot be imported, crashes, takes longer than
    `timeout` or fails with anything but a refusal; a fast path that is closed although it was
    proved for the installed version; a native module that speaks another DLPack than the package;
    a DLBRIDGE_CUDA_DRIVER or a DLBRIDGE_CACHE_DIR that cannot be used. All else is a warning.

    Args:
        frameworks: the names of those to look at; all that are installed by default.
        timeout: seconds for each process.
        within: seconds for all processes together; None for no limit. Of a framework that is not
            imported by then, only what its package says is known: version, path and defects.
        progress: called with the number of finished processes, and of all.

    Raises:
        ArgumentError: `timeout` or `within` is not positive, a framework is unknown, or not
            installed here.
    """
    _check_seconds("timeout", timeout)
    if within is not None:
        _check_seconds("within", within)
    installed = _installed(frameworks)
    deadline = math.inf if within is None else time.monotonic() + within
    findings = [*_check_native()]
    report = progress or (lambda _done, _total: None)
    report(0, len(installed) + 1)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        answers = []
        for answer in pool.map(lambda name: _ask(name, timeout, deadline), ["", *installed]):
            answers.append(answer)
            report(len(answers), len(installed) + 1)
    if answers[0].get("late"):
        answers[0] = {"cuda": f"driver not opened within {within:g} s"}
    cuda = answers[0].get("cuda") or answers[0]["error"]
    named = os.environ.get("DLBRIDGE_CUDA_DRIVER") is not None
    if named and (answers[0].get("error") or answers[0].get("missing")):
        findings.append(Finding("broken", "DLBRIDGE_CUDA_DRIVER", f"unset or correct it: {cuda}"))
    providers = packages_distributions()
    reports = []
    for name, answer in zip(installed, answers[1:], strict=True):
        judged, found = _judge(name, answer, providers)
        reports.append(judged)
        findings += found
    findings += _find_clashes(installed)
    late = [each.name for each in reports if each.note == _LATE]
    if late:
        what = f"not imported within {within:g} s: {', '.join(late)}"
        advice = f"`dlbridge doctor {' '.join(late)}` takes the time that it needs"
        findings.append(Finding("warning", what, advice))
    cache, found = _look_at_cache()
    tag = next(iter(EXTENSION_SUFFIXES), "")
    return Diagnosis(
        f"{sys.version.split()[0]} ({tag}) at {sys.executable}",
        str(core._cffi.__file__),
        (lib.DLPACK_MAJOR_VERSION, lib.DLPACK_MINOR_VERSION),
        (*reports,),
        cuda,
        cache,
        {name: os.environ[name] for name in VARIABLES if name in os.environ},
        (*findings, *found),
    )


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ArgumentError(f"doctor: {name} must be a positive number of seconds, got {value!r}")


def _installed(chosen: Sequence[str] | None) -> list[str]:
    known = [row.name for row in registry.rows() if row.name != "dlbridge"]
    if chosen is None:
        return [name for name in known if adapter.is_installed(name)]
    names = [
        registry.one_of(name, known, "doctor", "is not a framework")
        for name in words("doctor", "frameworks", chosen)
    ]
    for name in names:
        if not adapter.is_installed(name):
            raise ArgumentError(f"doctor: {name} is not installed here")
    return names


def find_version(module: str, providers: Mapping[str, list[str]]) -> str:
    """Return the version of what provides a module, without importing it; "" for none."""
    for provider in providers.get(module.partition(".")[0], []):
        try:
            return version(provider)
        except PackageNotFoundError:
            continue
    return ""


# ---- judging -------------------------------------------------------------------------------------


def _check_native() -> Iterator[Finding]:
    spoken = lib.DLPACK_MAJOR_VERSION, lib.DLPACK_MINOR_VERSION
    if spoken != protocol.VERSION:
        yield Finding(
            "broken",
            f"the native module speaks DLPack {_text_of_version(spoken)}, "
            f"the package {_text_of_version(protocol.VERSION)}",
            "they are of different versions: install dlbridge again",
        )


def _judge(
    name: str, answer: dict[str, Any], providers: Mapping[str, list[str]]
) -> tuple[FrameworkReport, list[Finding]]:
    """Return the report on a framework whose process gave this answer, and what to act on."""
    framework = adapter.adapter(name)
    installed = find_version(framework.module, providers) or answer.get("version", "")
    defects, unmeasured = [], 0
    for row in framework.quirks:
        number = find_version(row.of, providers) if row.of else installed
        if row.was_seen_in(number):
            text = row.defect, row.answer, row.advice
            defects.append(Defect(row.fact, row.versions, *text))
        elif number:
            unmeasured += 1
    if answer.get("late"):
        path = framework.path()
        answer = {"path": path, "expected": path, "note": _LATE, "late": True}
    error, path = answer.get("error", ""), answer.get("path", "")
    findings = []
    if error:
        findings.append(Finding("broken", f"{name}: {error}", f"mend or remove {name}"))
    elif path != answer.get("expected", ""):
        advice = "install the release of PyPI; until then its tensors take the general path"
        findings.append(Finding("broken", f"{name}: its fast path is closed ({path})", advice))
    elif path.startswith("general"):
        advice = f"nothing is wrong, only slower: install a version of {name} that is named"
        findings.append(Finding("warning", f"{name}: {path}", advice))
    if answer.get("note") and not answer.get("late"):
        findings.append(Finding("warning", f"{name}: {answer['note']}", "see the refusal's text"))
    report = FrameworkReport(
        name,
        installed,
        _pair(answer.get("dlpack")),
        _pair(answer.get("table")),
        path,
        (*defects,),
        unmeasured,
        error,
        answer.get("note", ""),
    )
    return report, findings


_LATE = "not imported in time"  # the note of a framework whose process was ended


def _find_clashes(installed: Sequence[str]) -> Iterator[Finding]:
    for name in installed:
        for first in adapter.adapter(name).not_after:
            if registry.row_of_root(first) is not None and first in installed:
                what = f"importing {name} after {first} crashes the process"
                yield Finding("warning", what, f"import {name} before {first}")
        for last in adapter.adapter(name).not_before:
            if find_spec(last) is not None:
                what = f"importing {last} after {name} crashes the process"
                yield Finding("warning", what, f"import {last} before {name}")


def _look_at_cache() -> tuple[str, list[Finding]]:
    """Return the state of the cache of compiled kernels; nothing is made."""
    path, level = cache_path(), "broken" if os.environ.get("DLBRIDGE_CACHE_DIR") else "warning"
    if path is None:
        return "none: there is no home", []
    if not path.exists():
        return f"{path}: not made yet", []
    advice = "name a folder that only you can change in DLBRIDGE_CACHE_DIR"
    try:
        is_usable = path.is_dir()
        why = why_not_private(path) or why_not_loadable(path) if is_usable else "it is not a folder"
        sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    except not_from_handler(OSError) as error:
        why, sizes = str(error), []
    text = f"{path}: {len(sizes)} files, {sum(sizes):,} bytes"
    if why is not None:
        return text, [Finding(level, f"the cache {path} is not used: {why}", advice)]
    return text, []


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])


# ---- processes -----------------------------------------------------------------------------------


def _ask(name: str, timeout: float, deadline: float) -> dict[str, Any]:
    """Return what a process finds of a framework, or of CUDA (""); {"late": True} after a time."""
    left = deadline - time.monotonic()
    if left <= 0:
        return {"late": True}
    with tempfile.TemporaryDirectory(prefix="dlbridge-doctor-") as folder:
        file = Path(folder, "answer.json")
        code = "import sys; from dlbridge.check.diagnosis import answer; answer(*sys.argv[1:])"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, name, str(file)],
                env=environment(),
                capture_output=True,
                timeout=min(timeout, left),
                check=False,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            if left < timeout:
                return {"late": True}
            return {"error": f"no answer in {timeout:g} s"}
        if done.returncode != 0 or not file.exists():
            return {"error": describe_end(done.returncode, done.stderr)}
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def answer(name: str, file: str) -> None:
    """Write what this process finds of one framework, or of CUDA ("")."""
    found = _probe(name) if name else _probe_cuda()
    Path(file).write_text(json.dumps(found), encoding="utf-8")


def _probe_cuda() -> dict[str, Any]:
    why = native.cuda_open()
    if why is not None:
        return {"cuda": f"no driver: {why}", "missing": True}
    from dlbridge.cuda.driver import check, device_count, driver
    from dlbridge._core import ffi  # isort: skip

    number = ffi.new("int *")
    check("doctor", driver().cuDriverGetVersion(number), "cuDriverGetVersion")
    major, minor = number[0] // 1000, number[0] % 1000 // 10
    return {"cuda": f"driver for CUDA {major}.{minor}, {device_count()} devices"}


def _probe(name: str) -> dict[str, Any]:
    framework = adapter.adapter(name)
    expected = framework.path()
    try:
        module = import_module(framework.module)
    except not_from_handler(Exception) as error:  # whatever an installation raises
        return {"error": f"cannot be imported: {_text(error)}"}
    found: dict[str, Any] = {"version": str(getattr(module, "__version__", ""))}
    found["expected"] = expected
    try:
        array = convert(np.zeros((2, 3), "float32"), name)
        seen = inspect(array)
    except UnsupportedTypeError:  # MXNet has functions instead
        return {**found, "path": framework.path()}
    except ExchangeError as error:
        return {**found, "path": framework.path(), "note": f"made no array: {_text(error)}"}
    except not_from_handler(Exception) as error:
        return {**found, "error": f"made no array: {_text(error)}"}
    if seen.newest is not None:
        found["dlpack"] = seen.newest.version or (0, 8)
    if seen.table is not None:
        found["table"] = seen.table.version
    return {**found, "path": framework.path()}


# ---- text ----------------------------------------------------------------------------------------


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _text_of_version(pair: tuple[int, int]) -> str:
    return "{}.{}".format(*pair)


def _text_of_framework(report: FrameworkReport) -> str:
    if report.error:
        return report.error
    spoken = "not imported" if report.note == _LATE else "no capsule"
    if report.dlpack is not None:
        is_legacy = report.dlpack[0] == 0
        spoken = "legacy DLPack" if is_legacy else f"DLPack {_text_of_version(report.dlpack)}"
    parts = [spoken]
    if report.table is not None:
        parts.append(f"exchange table {_text_of_version(report.table)}")
    if report.path:
        parts.append(f"path {report.path}")
    parts.append(f"{len(report.defects)} known defects")
    if report.unmeasured:
        parts.append(f"{report.unmeasured} more were seen in other versions only")
    return ", ".join(parts)
