"""Time the calls of two checkouts: `python -m benchmarks.trees BEFORE [AFTER] [--match REGEX]`.

Each checkout, built in place, has a process of its own, and they take turns within each row, so
that what else the machine does hits both alike. Where memory happens to lie makes up to a fifth in
one process: several are started, one pair after the other, and the best of each checkout counts.
The figure is the processor time of the thread.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import exchange, kernels
from benchmarks.timing import render

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.03  # the most that a row may take of what it took before
ROUND_NS = 2e6

# Reads `suite <tab> statement <tab> loops`, writes nanoseconds of a call, or null where the
# checkout lacks something. A suite's names are made when it is first asked for.
WORKER = """
import json, os, sys, time
from importlib import import_module
from timeit import Timer
answers = os.fdopen(os.dup(1), "w")  # whatever frameworks print goes elsewhere
os.dup2(2, 1)
suites, timers = {}, {}
for line in sys.stdin:
    suite, statement, loops = line.rstrip("\\n").split("\\t")
    try:
        if suite not in suites:
            suites[suite] = import_module(f"benchmarks.{suite}").make_names()
        if (suite, statement) not in timers:
            timer = Timer(statement, globals=dict(suites[suite]), timer=time.thread_time)
            timer.timeit(200)
            timers[suite, statement] = timer
        taken = timers[suite, statement].timeit(int(loops)) * 1e9 / int(loops)
    except (NameError, AttributeError, ImportError, TypeError):
        taken = None
    print(json.dumps(taken), file=answers, flush=True)
"""


def main() -> int:
    """Measure each row and print it; say whether none got slower."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--match", default="", metavar="REGEX", help="only such calls")
    parser.add_argument("--processes", type=int, default=3, help="of each checkout")
    parser.add_argument("--rounds", type=int, default=101, help="in each process")
    given = parser.parse_args()
    trees = [tree.resolve() for tree in (given.before, given.after)]
    rows = [row for row in find_rows() if re.search(given.match, row[1])]
    best = dict.fromkeys(rows, (math.inf, math.inf))
    for _ in range(given.processes):
        for row, taken in measure_rows(trees, rows, given.rounds).items():
            best[row] = (min(best[row][0], taken[0]), min(best[row][1], taken[1]))
    both = {row: pair for row, pair in best.items() if pair[0] < math.inf}
    cells = [
        (*row, f"{before:.1f}", f"{after:.1f}", f"{after / before:.3f}")
        for row, (before, after) in both.items()
    ]
    print(render(("suite", "call", "before ns", "after ns", "ratio"), cells))
    slower = [row[1] for row, (before, after) in both.items() if after > SLOWER * before]
    print(f"slower by more than {SLOWER - 1:.0%}: {', '.join(slower) or 'none'}")
    print(f"not in both: {', '.join(row[1] for row in rows if row not in both) or 'none'}")
    return 1 if slower else 0


def start(tree: Path) -> subprocess.Popen[str]:
    """Return a process that measures in a checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        cwd=tree,
        env={**os.environ, **exchange.QUIET, "PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def find_rows() -> list[tuple[str, str]]:
    """Return the suites' own calls, each once, without those that move tens of MiB."""
    calls = [("exchange", pair.ours) for pair in exchange.PAIRS]
    calls = [call for call in calls if "(l)" not in call[1] and "2**24" not in call[1]]
    calls += [("kernels", row.ours) for row in kernels.ROWS]
    return list(dict.fromkeys(calls))


def measure_rows(
    trees: list[Path], rows: list[tuple[str, str]], rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Return the medians of each row that both checkouts have, in one process of each."""
    workers = [start(tree) for tree in trees]
    taken = {row: medians for row in rows if (medians := measure(workers, *row, rounds))}
    for worker in workers:
        worker.communicate()
    return taken


def measure(
    workers: list[subprocess.Popen[str]], suite: str, statement: str, rounds: int
) -> list[float]:
    """Return the median of each checkout; nothing where one lacks the row."""
    first = [ask(worker, suite, statement, 200) for worker in workers]
    if None in first:
        return []
    loops = max(1, round(ROUND_NS / max(first)))
    taken: list[list[float]] = [[], []]
    for number in range(rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            taken[index].append(ask(workers[index], suite, statement, loops))
    return [median(samples) for samples in taken]


def ask(worker: subprocess.Popen[str], suite: str, statement: str, loops: int) -> Any:
    """Return what one process measured."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(f"{suite}\t{statement}\t{loops}\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


if __name__ == "__main__":
    sys.exit(main())
