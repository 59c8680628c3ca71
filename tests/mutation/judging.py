"""Mistakes in copies of the project, and the tests that notice them or not."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from areas import area_of, nearest_tests  # noqa: E402
from core_build import CORE, ROOT, CoreBuild  # noqa: E402
from planting import Mistake, in_c, in_python  # noqa: E402

FINDERS: dict[str, Callable[[bytes], Iterator[Mistake]]] = {"python": in_python, "c": in_c}
SUFFIXES = {"python": "*.py", "c": "*.c"}
NEAREST = 4  # files of tests that run before the others
MEMORY = 10 << 30  # bytes that a process of tests may have: some mistakes allocate without end
EQUIVALENT = HERE / "equivalent.toml"


class Planted(NamedTuple):
    """A mistake in a file, which is named from the project's folder."""

    language: str
    file: str
    mistake: Mistake

    def key(self, text: bytes) -> tuple[str, str]:
        """Return what `equivalent.toml` knows it by, wherever in the file it stands."""
        return self.file, self.mistake.diff(text)


@dataclass
class Verdict:
    """What the tests said of a mistake, and which of them was the first to fail."""

    planted: Planted
    word: str  # killed, survived, undecided, equivalent, invalid
    by: str = ""
    seconds: float = 0


@dataclass
class Ended:
    """How a run of tests ended: the first that failed, or None, and whether time was up."""

    failed: str | None
    timed_out: bool = False


# ---- copies --------------------------------------------------------------------------------------


@dataclass
class Copies:
    """Copies of the project, each with a core of its own; the first stays as it is."""

    directory: Path
    core: CoreBuild = field(init=False)

    def __post_init__(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.unchanged.mkdir(parents=True)
        self.core = CoreBuild(self.unchanged)
        for name in project_files():
            target = self.unchanged / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target, follow_symlinks=False)
        if (ROOT / "build/xla").is_dir():  # what JAX compiled
            shutil.copytree(ROOT / "build/xla", self.unchanged / "build/xla")

    @property
    def unchanged(self) -> Path:
        return self.directory / "unchanged"

    def make(self, number: int) -> Path:
        directory = self.directory / str(number)
        shutil.copytree(self.unchanged, directory, ignore=shutil.ignore_patterns("*.o"))
        return directory

    def plant(self, planted: Planted, directory: Path) -> bool:
        """Put a mistake into a copy; return whether it compiles."""
        text = planted.mistake.plant((self.unchanged / planted.file).read_bytes())
        if planted.language == "python":
            write_module(directory / planted.file, text)
            return True
        try:
            self.core.rebuild(str(Path(planted.file).relative_to(CORE)), text.decode(), directory)
        except RuntimeError:
            return False
        return True

    def mend(self, planted: Planted, directory: Path) -> None:
        """Make a copy as it was."""
        text = (self.unchanged / planted.file).read_bytes()
        if planted.language == "python":
            write_module(directory / planted.file, text)
            return
        (directory / planted.file).write_bytes(text)
        for built in (self.unchanged / CORE).glob("*.so"):
            (directory / CORE / built.name).unlink(missing_ok=True)
            shutil.copy2(built, directory / CORE / built.name)


def project_files() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def write_module(path: Path, text: bytes) -> None:
    """Write a module without what was compiled of it, which is as old as the last write."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_bytes(text)


# ---- tests ---------------------------------------------------------------------------------------


def run_tests(directory: Path, tests: Sequence[str], seconds: float, *options: str) -> Ended:
    """Run tests in a copy until one fails."""
    if not tests:
        return Ended(None)
    command = [sys.executable, "-m", "pytest", "-x", "-v", "--tb=no", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(directory), "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8"}
    with subprocess.Popen(
        [*command, *options, *tests],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, timed_out=True)
        finally:
            end_group(process.pid)
    if process.returncode in (0, 5):  # all passed, or no test was in the ring
        return Ended(None)
    return Ended(first_failure(printed))


def end_group(pid: int) -> None:
    """End the processes that tests may have left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def first_failure(printed: str) -> str:
    """Return the test that failed, or was running when the process died."""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, re.MULTILINE)
    if found:
        return found.group(1)
    begun = re.findall(
        r"^((?:tests|dlbridge)/\S+\.py(?:::.+?)?)(?: [A-Z]+.*)?$", printed, re.MULTILINE
    )
    return begun[-1] if begun else "tests/test_conftest.py"  # pytest did not start


# ---- the command ---------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Mistakes of one language, drawn and judged until there are enough verdicts."""

    copies: Copies
    drawn: Iterator[Planted]
    count: int
    limit: float
    known: set[tuple[str, str]]
    verdicts: list[Verdict] = field(default_factory=list)
    unreliable: list[str] = field(default_factory=list)  # tests that fail on the unchanged code
    lock: threading.Lock = field(default_factory=threading.Lock)
    open: int = 0  # how many are being judged

    def work(self, directory: Path) -> None:
        """Judge mistakes in a copy until there are enough."""
        while (planted := self.take()) is not None:
            verdict = self.judge(planted, directory)
            with self.lock:
                self.open -= 1
                self.note(verdict)

    def note(self, verdict: Verdict) -> None:
        if verdict.word != "invalid":
            self.verdicts.append(verdict)
            report(verdict, self.copies.unchanged)

    def take(self) -> Planted | None:
        with self.lock:
            if self.open + sum(each.word != "equivalent" for each in self.verdicts) >= self.count:
                return None
            planted = next(self.drawn, None)
            self.open += planted is not None
            return planted

    def judge(self, planted: Planted, directory: Path) -> Verdict:
        start = time.monotonic()
        text = (self.copies.unchanged / planted.file).read_bytes()
        if planted.key(text) in self.known:
            return Verdict(planted, "equivalent")
        word, by = "invalid", ""
        if self.copies.plant(planted, directory):
            word, by = self.ask(planted, text, directory)
        self.copies.mend(planted, directory)
        return Verdict(planted, word, by, time.monotonic() - start)

    def ask(self, planted: Planted, text: bytes, directory: Path) -> tuple[str, str]:
        """Run the tests of a mistake's area, and return the verdict and who is behind it."""
        mistake = planted.mistake
        tests = nearest_tests(self.copies.unchanged, planted.file, around(text, mistake))
        first, others = tests[:NEAREST], tests[NEAREST:]
        if planted.language == "python":
            first.append(planted.file)  # its examples, once the tests have imported the package
        deadline = time.monotonic() + self.limit
        skipped = [f"--deselect={test}" for test in self.unreliable]
        for stage in (first, others):
            left = [test for test in stage if test not in self.unreliable]
            ended = run_tests(directory, left, deadline - time.monotonic(), *skipped)
            if ended.timed_out:
                return "undecided", "no time left"
            if ended.failed is not None:
                return "killed", ended.failed
        return "survived", ""

    def settle(self, directory: Path) -> None:
        """Run on the unchanged code what noticed mistakes; judge again where that fails."""
        while killers := sorted({each.by for each in self.verdicts if each.word == "killed"}):
            ended = run_tests(self.copies.unchanged, killers, self.limit)
            if ended.failed is None:
                return
            self.unreliable.append(ended.failed)
            for each in [each for each in self.verdicts if each.by == ended.failed]:
                self.verdicts.remove(each)
                self.note(self.judge(each.planted, directory))


def around(text: bytes, mistake: Mistake) -> str:
    """Return the words near a mistake: its function's name, and its lines and some beside them."""
    lines = text.decode().splitlines()
    first, last = (text.count(b"\n", 0, place) for place in (mistake.start, mistake.end))
    return "\n".join([mistake.function, *lines[max(0, first - 4) : last + 5]])


def draw(language: str, area: str, seed: int, root: Path) -> Iterator[Planted]:
    """Yield the mistakes of a language in an area, in an order that the seed decides."""
    found = []
    for path in sorted((root / "dlbridge").rglob(SUFFIXES[language])):
        file = path.relative_to(root).as_posix()
        if file.startswith(f"dlbridge/{area}") and path.name != "_cffi.c":
            found += [
                Planted(language, file, each) for each in FINDERS[language](path.read_bytes())
            ]
    random.Random(seed).shuffle(found)
    yield from found


def known_equivalent() -> set[tuple[str, str]]:
    """Return the mistakes that are none: the file, and its lines before and after."""
    rows = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(row["file"], row["change"].strip("\n")) for row in rows}


def report(verdict: Verdict, root: Path) -> None:
    """Print a verdict; the lines as well unless a test noticed them."""
    _, file, mistake = verdict.planted
    text = (root / file).read_bytes()
    place = f"{file}:{mistake.line(text)}"
    print(f"{verdict.word:10} {verdict.seconds:4.0f} s  {place} ({mistake.function})  {verdict.by}")
    if verdict.word in ("survived", "undecided"):
        print(mistake.diff(text))
    sys.stdout.flush()


def print_scores(verdicts: Sequence[Verdict]) -> float:
    """Print how many mistakes of each area were noticed; return the least score of a language."""
    scores = []
    for language in FINDERS:
        mine = [each for each in verdicts if each.planted.language == language]
        areas = sorted({area_of(each.planted.file) for each in mine})
        for area in areas:
            counted(
                f"{language} {area or '.'}", [v for v in mine if area_of(v.planted.file) == area]
            )
        if areas:
            scores.append(counted(f"{language}, all", mine))
    return min(scores, default=100.0)


def counted(name: str, verdicts: Sequence[Verdict]) -> float:
    count = {
        word: sum(each.word == word for each in verdicts)
        for word in ("killed", "survived", "undecided", "equivalent")
    }
    real = count["killed"] + count["survived"]
    score = 100 * count["killed"] / real if real else 100.0
    others = "".join(
        f", {count[word]} {word}" for word in ("undecided", "equivalent") if count[word]
    )
    print(f"{name:24} {count['killed']:4} of {real:4} killed, {score:5.1f} %{others}")
    return score
