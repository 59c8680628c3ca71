"""Waiting and counting: the one place where tests read a clock or a counter of the whole process.

No result here depends on how fast or how busy a machine is. A wait ends when its condition holds,
and only a test that hangs sees the end of its patience. Memory and objects are counted in rounds: a
leak grows in each of them, what other threads and caches do in one does not. What any other thread
changes all the time (`blocks`) is counted in a process without one, as `run_python` starts it.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import resource
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

PATIENCE = 100.0  # seconds; less than the processes that tests start have


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} has not come after {PATIENCE} s"
        time.sleep(0.001)


def pause(seconds: float) -> None:
    """Let others go first, as a rule: the caller is right for any order, this makes one likely."""
    time.sleep(seconds)


@contextmanager
def lasts(seconds: float) -> Iterator[None]:
    """Fail if the block ends earlier than this; how much later it ends is the machine's affair."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin >= seconds


def soon(seconds: float) -> float:
    """Return a deadline on the clock that deadlines of dlbridge count by."""
    return time.monotonic() + seconds


def is_over(deadline: float) -> bool:
    """Return whether a deadline has passed: for work that goes on as long as it is told."""
    return time.monotonic() >= deadline


def now() -> float:
    """Return the seconds of a clock that all processes of a host share: for the order of events."""
    return time.monotonic()


def trace_clock() -> int:
    """Return the nanoseconds of the clock that traces have: for the order of events."""
    return time.perf_counter_ns()


def wall_clock() -> int:
    """Return the nanoseconds of the clock that metadata of runs have: for the order of events."""
    return time.time_ns()


# ---- memory and objects --------------------------------------------------------------------------


def peak(run: Callable[[], object], most: int) -> int:
    """Return how many bytes Python allocated at once during a call, at the least of three times.

    It is called again only if it seems to have taken `most`: other threads can only add to that.
    """
    taken = []
    for _ in range(3):
        tracemalloc.start()  # counts from now on: no need to collect garbage before
        try:
            run()
            taken.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        if taken[-1] < most:
            break
        gc.collect()
    return min(taken)


def taken(run: Callable[[], object]) -> int:
    """Return how many bytes of Python's a call leaves allocated."""
    gc.collect()
    tracemalloc.start()
    try:
        run()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def growth(step: Callable[[], object], count: int, gauge: Callable[[], float]) -> float:
    """Return by how much a gauge grows with each step, in that of three rounds where it grew least.

    A round of `count` steps goes before, for what is made once.
    """
    for _ in range(count):
        step()
    gc.collect()
    found, before = [], gauge()
    for _ in range(3):
        for _ in range(count):
            step()
        gc.collect()
        now = gauge()
        found.append((now - before) / count)
        before = now
    return min(found)


def objects() -> int:
    """Return how many objects the garbage collector knows."""
    return len(gc.get_objects())


def instances(kind: type) -> list[Any]:
    """Return the objects of exactly this class that the garbage collector knows."""
    return [each for each in gc.get_objects() if type(each) is kind]


def blocks() -> int:
    """Return how many blocks of memory Python has allocated."""
    return sys.getallocatedblocks()


def peak_of_process() -> int:
    """Return the most bytes that this process ever had in RAM, its parent not included."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nVmHWM:")[2].split()[0]) * 1024


def allow_memory(more: int) -> None:
    """Let this process have so many bytes of address space more than it has."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more,) * 2)


def switches(thread: int) -> int:
    """Return how often a thread of this process has given up the processor by itself."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


# ---- work ----------------------------------------------------------------------------------------


def instructions(run: Callable[[], object]) -> int:
    """Return how many instructions of Python a call executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def lazily(name: str) -> Any:
    """Return a module that is executed at the first use of one of its attributes."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say_where_on_request() -> None:
    """In a rank: let `mpi_jobs.start` ask for the tracebacks of all threads when time is over."""
    if folder := os.environ.get("DLBRIDGE_TEST_TRACEBACKS"):
        file = (Path(folder) / str(os.getpid())).open("w")
        faulthandler.register(signal.SIGUSR1, file)
