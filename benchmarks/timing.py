"""Time statements against each other in one process, and lay the figures out as a table."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple


class Effort(NamedTuple):
    """How long to measure: rounds, and how many nanoseconds one round gives each statement."""

    rounds: int
    round_ns: float


QUICK = Effort(rounds=5, round_ns=0.2e6)
THOROUGH = Effort(rounds=201, round_ns=1.0e6)


def compare(
    statements: Sequence[str],
    names: Mapping[str, Any],
    effort: Effort,
    settle: Callable[[], object] = int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the median nanoseconds of each statement, by `clock`.

    Each round times every statement once, in turn, so that what else happens on the machine hits
    all alike. The loop around them is `timeit`'s, with the garbage collector off. `settle` is
    called after each, outside of the time: on a GPU it waits for what was enqueued, so that a full
    queue of one statement is not the next one's time.
    """
    timers = [Timer(statement, globals=dict(names), timer=clock) for statement in statements]
    loops = [calibrate(timer, effort.round_ns) for timer in timers]
    settle()
    samples: list[list[float]] = [[] for _ in timers]
    for number in range(effort.rounds):
        order = range(len(timers)) if number % 2 else reversed(range(len(timers)))
        for index in order:
            seconds = timers[index].timeit(loops[index])
            samples[index].append(seconds * 1e9 / loops[index])
            settle()
    return [median(sample) for sample in samples]


def calibrate(timer: Timer, round_ns: float) -> int:
    """Return how many loops take about `round_ns`; warms the statement up."""
    timer.timeit(20)
    loops = 20
    while (ns := timer.timeit(loops) * 1e9) < round_ns / 4:
        loops *= 2
    return max(1, round(loops * round_ns / ns))


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table; the first two columns are words, the others figures."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def describe_machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
    }


def processor_name() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = re.findall(r"^model name\s*: (.+)", text, re.MULTILINE)
    return names[0] if names else platform.machine()
