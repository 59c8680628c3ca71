"""Runs a suite in processes of their own and says what became of each test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALONE, PRODUCER, CONSUMER = "alone", "producer", "consumer"
WHOSE = ("ours", "theirs", "design")
START = 300  # seconds until the first test runs: large frameworks are imported


@dataclass(frozen=True)
class Suite:
    """One project's tests of DLPack, and where they are found."""

    name: str
    needs: tuple[str, ...]  # the distributions that must be installed; the first has the version
    files: tuple[str, ...]  # the test modules, relative to the folder
    get: str  # what to do where the folder is not there
    package: str | None = None  # the installed package whose folder it is, if tests are installed
    tested: tuple[str, ...] = ()  # functions whose arguments are to be our Tensors
    without: tuple[str, ...] = ()  # modules that are kept from it: they need a GPU
    variables: dict[str, str] = field(default_factory=dict)  # further environment variables
    environment: str = ".venv"  # the virtual environment that has the framework


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    test: str
    outcome: str  # passed, failed, skipped
    text: str = ""
    touched: bool = False  # whether dlbridge took part


@dataclass(frozen=True)
class Known:
    """Failures that were looked at, with what they come from."""

    suite: str
    direction: str
    whose: str
    reason: str
    tests: tuple[str, ...]  # ids; `*` stands for any characters, everything else for itself
    error: str | None = None  # in the same form: only failures with this text

    def covers(self, outcome: Outcome) -> bool:
        """Say whether this failure, or a test that passes, is one of these.

        An entry with an error says nothing of tests that pass: of those that have a number for a
        name, only some fail.
        """
        if not any(_matches(pattern, outcome.test) for pattern in self.tests):
            return False
        return self.error is None or (
            outcome.outcome == "failed" and _matches(self.error, outcome.text)
        )


def _matches(pattern: str, text: str) -> bool:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    return re.fullmatch(expression, text, re.DOTALL) is not None


@dataclass
class Row:
    """A line of the table: a suite in one direction."""

    suite: str
    version: str
    direction: str
    run: int = 0
    passed: int = 0
    skipped: int = 0
    reasons: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """How many tests failed."""
        return self.run - self.passed

    def count(self, whose: str) -> int:
        """Say how many failures are of this side."""
        return sum(len(tests) for (side, _), tests in self.reasons.items() if side == whose)


def read_known(path: Path) -> list[Known]:
    """Read the failures that were looked at from a TOML file."""
    rows = [
        Known(suite, **row | {"tests": tuple(row["tests"])})
        for suite, rows in tomllib.loads(path.read_text()).items()
        for row in rows
    ]
    for row in rows:
        if row.whose not in WHOSE or row.direction not in (PRODUCER, CONSUMER) or not row.reason:
            raise ValueError(f"{path}: {row}: whose is one of {WHOSE}, and there is a reason")
    return rows


def judge(
    row: Row, alone: Iterable[Outcome], results: Iterable[Outcome], known: Sequence[Known]
) -> None:
    """Fill `row`: compare the results with the suite's own, and with what is known."""
    failing_alone = {outcome.test for outcome in alone if outcome.outcome == "failed"}
    for outcome in results:
        covered = next((entry for entry in known if entry.covers(outcome)), None)
        if outcome.outcome == "skipped" or not outcome.touched:
            row.skipped += 1
            continue
        row.run += 1
        if outcome.outcome == "passed":
            row.passed += 1
            if covered is not None:
                row.unexpected.append(f"{outcome.test} passes, but is listed: {covered.reason}")
        elif outcome.test in failing_alone:
            reason = ("theirs", "fails without dlbridge as well")
            row.reasons.setdefault(reason, []).append(outcome.test)
        elif covered is not None:
            row.reasons.setdefault((covered.whose, covered.reason), []).append(outcome.test)
        else:
            row.unexpected.append(f"{outcome.test}: {outcome.text}")


def run_suite(
    suite: Suite, folder: Path, python: str, direction: str, seconds: float
) -> tuple[list[Outcome], str]:
    """Run a suite to its end and return what became of each test.

    Args:
        suite: The suite.
        folder: Where its files are.
        python: The interpreter, which has the framework and pytest.
        direction: What dlbridge is; "alone" for the suite as it is.
        seconds: How long one test may take.

    Returns:
        The outcomes, and why there are none or not all (empty if there are). A test that ends its
        process, or takes too long, has failed; a new process does what is left.
    """
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        while True:
            events, ending = _process(
                suite, folder, python, direction, seconds, list(outcomes), Path(scratch)
            )
            running = _collect(events, outcomes)
            broken = [f"{e['broken'] or folder}: {e['text']}" for e in events if "broken" in e]
            if broken:
                return [], broken[0]
            if any("finished" in event for event in events):
                return list(outcomes.values()), ""
            if running is None:
                return list(outcomes.values()), f"the process {ending} outside of any test"
            touched = direction != ALONE  # a dead process cannot say
            outcomes[running] = Outcome(running, "failed", f"the process {ending}", touched)


def _process(
    suite: Suite,
    folder: Path,
    python: str,
    direction: str,
    seconds: float,
    done: list[str],
    scratch: Path,
) -> tuple[list[dict[str, Any]], str]:
    """Run what is not done in one process; return its events and how it ended."""
    results = scratch / "results"
    results.write_text("")
    files = [str((folder / name).resolve()) for name in suite.files if (folder / name).exists()]
    settings = {
        "direction": direction,
        "results": str(results),
        "files": files,
        "tested": suite.tested,
        "without": suite.without,
        "done": done,
    }
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    config = folder / "pytest.ini"
    command = [python, "-m", "pytest", "-p", "peer_shim", "-p", "no:cacheprovider"]
    command += ["-c", str(config if config.exists() else os.devnull), f"--rootdir={folder}"]
    command += ["-q", "--import-mode=prepend", "--tb=short", *files]
    variables = {
        "PYTHONPATH": path.rstrip(os.pathsep),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "DLBRIDGE_PEER_SHIM": json.dumps(settings),
        **suite.variables,
    }
    with (scratch / "output").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ending = _wait(process, results, seconds)
    events = []
    for line in results.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:  # the process was killed while it wrote
            break
    if not events:
        said = (scratch / "output").read_text().strip().rpartition("\n")[2]
        events = [{"broken": "", "text": f"the process {ending}: {said}"}]
    return events, ending


def _wait(process: subprocess.Popen[Any], results: Path, seconds: float) -> str:
    """Wait until the process ends, or for `seconds` nothing has been recorded."""
    size, since = 0, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            if (now := results.stat().st_size) != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > (seconds if size else START):
                return f"did not go on for {seconds:g} s"
        if process.returncode < 0:
            return f"was ended by {signal.Signals(-process.returncode).name}"
        return f"ended with status {process.returncode}"
    finally:
        # Whatever a test has started, and the process itself if it hangs.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _collect(events: Sequence[dict[str, Any]], outcomes: dict[str, Outcome]) -> str | None:
    """Add the outcomes; return the test that was running when the process ended."""
    running = None
    for event in events:
        if "started" in event:
            running = event["started"]
        if "test" in event:
            test, earlier = event["test"], outcomes.get(event["test"])
            if earlier is None or earlier.outcome != "failed":
                touched = event["touched"] > 0
                outcomes[test] = Outcome(test, event["outcome"], event["text"], touched)
    return running if running not in outcomes else None
