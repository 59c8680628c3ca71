"""Exchange tensors of every kind between all frameworks, and say what arrives.

Every exchange is made twice: by the frameworks' own functions, and by `dlbridge.convert`. Known
defects are the `Quirk` rows with a `Sign`, so that what is new stands out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import packages_distributions
from itertools import permutations
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

import dlbridge._core as core
from dlbridge import registry
from dlbridge.calls import public, words
from dlbridge.check import exchanges
from dlbridge.check.diagnosis import find_version
from dlbridge.check.exchanges import WAYS, Case, Exchange
from dlbridge.check.processes import describe_end, environment
from dlbridge.errors import ArgumentError
from dlbridge.exchange import adapter
from dlbridge.exchange.adapter import Quirk
from dlbridge.files import read_own, write_file
from dlbridge.kernels.cache import cache_path
from dlbridge.signals import not_from_handler

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
ROLES = ("producer", "consumer")
_IMPORT_SECONDS = 300.0


@dataclass(frozen=True)
class Cell:
    """The outcome of one exchange.

    Attributes:
        source, target: names of frameworks.
        way: "own" for the frameworks' own functions, "dlbridge" for `dlbridge.convert`.
        case: the tensor.
        outcome: one of `exchanges.OUTCOMES`.
        reason: text of the refusal, what is wrong, or how the process ended.
        traits: what is special about the tensor; see `exchanges.read_traits`.
        known: the known defect that explains the outcome, "" for none.
    """

    source: str
    target: str
    way: str
    case: Case
    outcome: str
    reason: str = ""
    traits: tuple[str, ...] = ()
    known: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it was wrong or crashed."""
        return self.outcome in ("wrong", "crashed")


class Defect(NamedTuple):
    """Bad cells that look alike.

    `known` names the known defect, "" for a new one; `cells` counts them, and `example` is one.
    """

    source: str
    target: str
    way: str
    outcome: str
    known: str
    cells: int
    example: Cell


@dataclass(frozen=True)
class Matrix:
    """The findings of `matrix`; `print` shows them as text.

    Attributes:
        versions: of each framework that took part.
        left_out: why other installed frameworks did not.
        cells: one for each exchange.
        not_seen: known defects of the installed versions that no exchange showed.
    """

    versions: dict[str, str]
    left_out: dict[str, str]
    cells: tuple[Cell, ...]
    not_seen: tuple[str, ...] = ()

    @cached_property
    def defects(self) -> list[Defect]:
        """Bad cells, grouped; new ones first."""
        groups: dict[tuple[str, str, str, str, str], list[Cell]] = defaultdict(list)
        for cell in self.cells:
            if cell.is_bad:
                groups[cell.source, cell.target, cell.way, cell.outcome, cell.known].append(cell)
        found = [Defect(*key, len(cells), cells[0]) for key, cells in groups.items()]
        return sorted(found, key=lambda each: (bool(each.known), -each.cells))

    @property
    def is_broken(self) -> bool:
        """Whether a cell is wrong or crashed that no known defect explains."""
        return any(not each.known for each in self.defects)

    def count(self, source: str, target: str, way: str) -> Counter[str]:
        """Return the number of cells of a pair by outcome."""
        return self._counts[source, target, way]

    @cached_property
    def _counts(self) -> dict[tuple[str, str, str], Counter[str]]:
        found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        for cell in self.cells:
            found[cell.source, cell.target, cell.way][cell.outcome] += 1
        return found

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every pair of frameworks that took part."""
        yield from permutations(self.versions, 2)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dicts, lists, numbers and text."""
        cells = [{**asdict(cell), "case": cell.case._asdict()} for cell in self.cells]
        return {
            "versions": self.versions,
            "left_out": self.left_out,
            "is_broken": self.is_broken,
            "not_seen": [*self.not_seen],
            "defects": [
                {**each._asdict(), "example": str(each.example.case)} for each in self.defects
            ],
            "cells": cells,
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield, for each pair: source, target, and the outcomes in both ways as text."""
        for source, target in self.pairs():
            counts = [self.count(source, target, way) for way in WAYS]
            yield source, target, *map(text_of_counts, counts)

    def findings(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield (what, exchange, number of cells, text) of each defect."""
        for each in self.defects:
            pair = f"{each.source} → {each.target}, {WAY_TEXTS[each.way]}"
            what = f"{'known' if each.known else 'new'}: {each.outcome}"
            text = each.known or f"{each.example.case}: {each.example.reason}"
            yield what, pair, str(each.cells), text
        for text in self.not_seen:
            yield "not seen", "", "0", text
        for name, text in self.left_out.items():
            yield "left out", name, "", text

    def __str__(self) -> str:
        lines = ["  ".join(row) for row in self.rows()]
        return "\n".join([*lines, *("  ".join(row) for row in self.findings())])


WAY_TEXTS = {"own": "own functions", "dlbridge": "dlbridge"}


def text_of_counts(counts: Counter[str]) -> str:
    """Return the outcomes of a pair, as "12 shared, 3 refused"."""
    return ", ".join(f"{counts[each]} {each}" for each in exchanges.OUTCOMES if counts[each])


@public
def matrix(
    frameworks: Iterable[str] | None = None,
    *,
    quick: bool = False,
    workers: int | None = None,
    timeout: float = 30.0,
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Matrix:
    """Exchange tensors between every two frameworks, and return what arrived.

    Each exchange is made in a process that may crash on it: from the producer's own array to the
    consumer's, by the consumer's own `from_dlpack` and by `dlbridge.convert` with its default
    policies. Values, shape and dtype of the result are compared, once more after the source is
    gone; its address says whether memory was shared. An exchange is also wrong if read-only memory
    can be written through it, or if memory is shared although a copy was asked for.

    Args:
        frameworks: names as in `convert(x, name)`; None for all that are installed.
        quick: the most telling tensors alone (see `exchanges.make_cases`).
        workers: processes at a time; None for one on each core.
        timeout: seconds for one exchange, after which its process is ended: that is a crash.
        cache: whether results of the same versions are read, and kept, in the folder of
            compiled kernels (`DLBRIDGE_CACHE_DIR`).
        progress: called with the number of finished exchanges, and of all.

    Raises:
        ArgumentError: a framework is unknown or not installed, there are fewer than two, or
            `workers` or `timeout` is not positive.

    Example:
        >>> from dlbridge import check
        >>> found = check.matrix(["numpy", "torch"], quick=True)  # doctest: +SKIP
        >>> found.count("torch", "numpy", "dlbridge")["wrong"]  # doctest: +SKIP
        0
    """
    names = _choose(None if frameworks is None else words("matrix", "frameworks", frameworks))
    workers = _count_workers() if workers is None else workers
    if workers < 1 or not timeout > 0:
        raise ArgumentError(
            f"matrix: workers and timeout must be positive, got {workers} and {timeout}"
        )
    left_out = {
        name: "its adapter has no expressions"
        for name in names
        if adapter.adapter(name).expressions is None
    }
    names = [name for name in names if name not in left_out]
    campaign = _Campaign(names, exchanges.make_cases(quick=quick), timeout, progress)
    campaign.run(workers, Store() if cache else None)
    left_out |= campaign.left_out
    versions = {name: campaign.versions[name] for name in names if name not in left_out}
    found = {each: campaign.found[each] for each in campaign.planned() if each in campaign.found}
    cells, not_seen = _judge(versions, found)
    return Matrix(versions, left_out, cells, not_seen)


def _choose(frameworks: Iterable[str] | None) -> list[str]:
    if frameworks is None:
        known = [row.name for row in registry.rows() if row.name != "dlbridge"]
        names = [name for name in known if adapter.is_installed(name)]
    else:
        chosen = [adapter.target(name, "matrix").name for name in frameworks]
        names = [*dict.fromkeys(chosen)]
        missing = [name for name in names if not adapter.is_installed(name)]
        if missing:
            raise ArgumentError(f"matrix: not installed here: {', '.join(missing)}")
    if len(names) < 2:
        found = ", ".join(names) or "none"
        where = "installed here" if frameworks is None else "named"
        raise ArgumentError(f"matrix: two frameworks are needed; {where}: {found}")
    return names


def _count_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- expected against found ----------------------------------------------------------------------

_Found = tuple[str, str, tuple[str, ...]]  # outcome, reason, traits


def _judge(
    versions: dict[str, str], found: dict[Exchange, _Found]
) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Return the cells with the known defects that explain them, and defects that did not show."""
    providers = packages_distributions()
    signs: dict[tuple[str, str], list[Quirk]] = defaultdict(list)
    for name, version in versions.items():
        for row in adapter.adapter(name).quirks:
            number = find_version(row.of, providers) if row.of else version
            if row.sign is not None and row.was_seen_in(number):
                for role in ROLES if row.sign.role == "either" else (row.sign.role,):
                    signs[name, role].append(row)
    cells, expected, seen = [], set(), set()
    for exchange, (outcome, reason, traits) in found.items():
        source, target, way, case = exchange
        if source not in versions or target not in versions:
            continue
        known = ""
        if way == "own" and outcome != "absent":
            sides = zip((source, target), ROLES, strict=True)
            for name, row in ((side[0], row) for side in sides for row in signs[side]):
                text = f"{name} {row.defect} (fact {row.fact} of the documentation)"
                if _applies(row, case, traits):
                    expected.add(text)
                    if row.sign and row.sign.outcome == outcome:
                        seen.add(text)
                        known = known or text
        cells.append(Cell(source, target, way, case, outcome, reason, traits, known))
    return (*cells,), (*sorted(expected - seen),)


def _applies(row: Quirk, case: Case, traits: tuple[str, ...]) -> bool:
    wanted = row.sign.traits if row.sign else ()
    return not wanted or not {*traits, case.dtype, case.flag}.isdisjoint(wanted)


# ---- the campaign --------------------------------------------------------------------------------


class _StoppedError(Exception):
    """The campaign is over."""


class _Campaign:
    """All exchanges, and the threads that have them made."""

    def __init__(
        self,
        names: Sequence[str],
        cases: Sequence[Case],
        timeout: float,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.names, self.cases, self.timeout, self.progress = names, cases, timeout, progress
        self.found: dict[Exchange, _Found] = {}
        self.left_out: dict[str, str] = {}
        providers = packages_distributions()
        self.versions = {
            name: find_version(adapter.adapter(name).module, providers) for name in names
        }
        self._pairs = deque(permutations(names, 2))
        self._total = len(self._pairs) * len(cases) * len(WAYS)
        self._done = 0
        self._children: list[_Child] = []
        self._failures: list[BaseException] = []
        self._lock = registry.lock()

    def planned(self) -> Iterator[Exchange]:
        """Yield all exchanges, in the order of a report."""
        for source, target in permutations(self.names, 2):
            for way in WAYS:
                yield from (Exchange(source, target, way, case) for case in self.cases)

    def run(self, workers: int, store: Store | None) -> None:
        """Make all exchanges; an interrupt ends all processes."""
        threads = [
            threading.Thread(target=self._work, args=(store,), daemon=True) for _ in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._pairs.clear()
            for child in self._children:
                child.close()
        if self._failures:
            raise self._failures[0]

    def _work(self, store: Store | None) -> None:
        child = _Child(self.timeout)
        self._children.append(child)
        try:
            while True:
                try:
                    source, target = self._pairs.popleft()
                except not_from_handler(IndexError):
                    break
                self._run_pair(child, source, target, store)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  (raised again in `run`)
            self._failures.append(error)
            self._pairs.clear()
        finally:
            child.end()

    def _run_pair(self, child: _Child, source: str, target: str, store: Store | None) -> None:
        wanted = [Exchange(source, target, way, case) for way in WAYS for case in self.cases]
        key = store.key([self.versions[source], self.versions[target]]) if store else ""
        kept = store.read(source, target, key) if store else {}
        before = len(kept)
        for exchange in wanted:
            result = kept.get(exchange)
            if result is None:
                why = self._load(child, source, target)
                if why:
                    break
                result, is_final = child.run(exchange)
                if is_final:
                    kept[exchange] = result
            self.found[exchange] = result
            self._advance(1)
        else:
            if store and len(kept) > before:
                store.write(source, target, key, kept)
            return
        self._advance(len(wanted))

    def _load(self, child: _Child, source: str, target: str) -> str:
        """Have both frameworks imported; return why that cannot be."""
        for name in (source, target):
            if name in self.left_out:
                return self.left_out[name]
        for name in sorted((source, target), key=lambda name: not adapter.adapter(name).not_after):
            answer = child.load(name)
            if "error" in answer:
                self.left_out[name] = answer["error"]
                return self.left_out[name]
            self.versions[name] = self.versions[name] or answer["version"]
        return ""

    def _advance(self, cells: int) -> None:
        with self._lock:
            self._done = min(self._total, self._done + cells)
            done = self._done
        if self.progress is not None:
            self.progress(done, self._total)


class _Child:
    """A process that makes exchanges; see `exchanges.serve`."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._loaded: set[str] = set()
        self._is_closed = False

    def load(self, name: str) -> dict[str, Any]:
        """Have a framework imported, and one small array made; return its version or an error."""
        if name in self._loaded:
            return {"version": ""}
        framework = adapter.adapter(name)
        modules = {adapter.adapter(each).module for each in self._loaded}
        if modules.intersection(framework.not_after):
            self.end()
        row = json.dumps(registry.row(name)).encode()
        answer = self._ask(b'["load"]\n' + row + b"\n", _IMPORT_SECONDS)
        if "error" not in answer:
            self._loaded.add(name)
            probe = Exchange(
                name, name, "own", Case("float32", "row-major", "24 elements", "plain")
            )
            outcome, reason, _ = self.run(probe)[0]
            if outcome in ("absent", "crashed"):
                return {"error": f"made no array: {reason.removeprefix(f'{name}: ')}"}
        return answer

    def run(self, exchange: Exchange) -> tuple[_Found, bool]:
        """Make one exchange; tell also whether another run would give the same."""
        request = json.dumps(["run", *exchange]).encode() + b"\n"
        answer = self._ask(request, self._timeout)
        traits = (*answer.get("traits", ()),)
        if "error" in answer:
            return ("crashed", answer["error"], traits), not answer.get("is_late")
        return (answer["outcome"], answer["reason"], traits), True

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        process = self._start()
        assert process.stdin
        assert process.stdout
        assert self._errors
        self._errors.seek(0, os.SEEK_END)
        printed = self._errors.tell()
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        answer: dict[str, Any] = {}
        try:
            process.stdin.write(request)
            process.stdin.flush()
            while "outcome" not in answer and "version" not in answer and "error" not in answer:
                line = process.stdout.readline()
                if not line:
                    raise BrokenPipeError
                answer |= json.loads(line)
                if "status" in answer:
                    answer["error"] = describe_end(answer["status"], self._printed(printed))
        except not_from_handler(BrokenPipeError):
            if self._must_stop():
                raise _StoppedError from None
            text = f"no answer in {seconds:g} s"
            if not is_late.is_set():
                text = describe_end(process.wait(), self._printed(printed))
            answer["error"] = text
            self.end()
        finally:
            timer.cancel()
        return answer | {"is_late": is_late.is_set()}

    def _printed(self, start: int) -> bytes:
        """Return the end of what was printed: of a stack trace, the line above it."""
        assert self._errors
        self._errors.seek(start)
        lines = self._errors.read(1 << 16).strip().splitlines()
        return next((line for line in lines if _says_why(line)), lines[-1] if lines else b"")

    def _must_stop(self) -> bool:
        return self._is_closed

    def _start(self) -> subprocess.Popen[bytes]:
        if self._must_stop():
            raise _StoppedError
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from dlbridge.check.exchanges import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=QUIET | environment(),
                start_new_session=True,  # its server ends with it
            )
            if self._must_stop():  # meanwhile
                self._kill()
        return self._process

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, 9)

    def end(self) -> None:
        """End the process; what is asked next starts another one."""
        self._kill()
        if self._process is not None:
            self._process.wait()
            for file in (self._process.stdin, self._process.stdout, self._errors):
                try:
                    if file:
                        file.close()
                except not_from_handler(BrokenPipeError):
                    pass
        self._process, self._loaded = None, set()

    def close(self) -> None:
        """End the process; what is asked from now on raises _StoppedError."""
        self._is_closed = True
        self._kill()  # its pipes are closed by the thread that reads them


def _says_why(line: bytes) -> bool:
    return b"what():" in line or b"Check failed" in line or b"Fatal Python error" in line


# ---- the cache -----------------------------------------------------------------------------------


class Store:
    """Results of earlier runs, one file for each pair, in the folder of compiled kernels."""

    def __init__(self) -> None:
        path = cache_path()
        self._folder = None if path is None else path / "matrix"
        digest = hashlib.sha256()
        package = Path(core.__file__).parents[1]
        for file in sorted([*package.rglob("*.py"), *package.rglob("*.so")]):
            digest.update(file.read_bytes())
        digest.update(
            repr((platform.python_version(), platform.platform(), np.__version__)).encode()
        )
        digest.update(os.environ.get("JAX_ENABLE_X64", "").encode())
        self._digest = digest.hexdigest()

    def key(self, versions: Sequence[str]) -> str:
        """Return what must be equal for a result to count: these versions and all else."""
        return hashlib.sha256("\n".join([self._digest, *versions]).encode()).hexdigest()

    def read(self, source: str, target: str, key: str) -> dict[Exchange, _Found]:
        """Return the results that count now."""
        data = None if self._folder is None else read_own(self._folder / f"{source}-{target}.json")
        if data is None:
            return {}
        try:
            kept = json.loads(data)
            if kept["key"] != key:
                return {}
            return {
                Exchange(source, target, way, Case(*case)): (outcome, reason, (*traits,))
                for way, case, outcome, reason, traits in kept["cells"]
            }
        except not_from_handler(ValueError, KeyError, TypeError, RecursionError):
            # another writer's
            return {}

    def write(self, source: str, target: str, key: str, found: dict[Exchange, _Found]) -> None:
        """Keep results; where that cannot be done, they are made again next time."""
        if self._folder is None:
            return
        cells = [[each.way, each.case, *result] for each, result in found.items()]
        data = json.dumps({"key": key, "cells": cells}).encode()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._folder / f"{source}-{target}.json", [data], 0o600, to_devices=False)
        except not_from_handler(OSError):
            return
