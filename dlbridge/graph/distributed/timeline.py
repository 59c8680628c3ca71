"""The traces of all tasks of a run as one file: a process for each task, an arrow for each message.

Tasks of one host have the same clock. Those of others have their own, which is compared with that
of the task that writes the file, by the quickest of a few messages there and back: the reading of
the other clock was made between their two times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from dlbridge import mpi
from dlbridge.errors import MPIError
from dlbridge.signals import not_from_handler

_ROUNDS = 16  # messages there and back that the clocks of two tasks are compared with
_TAG_CLOCK, _TAG_EVENTS = range(2)


def clock() -> str:
    """Return which clock `time.perf_counter_ns` of this process reads; "" is one of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except not_from_handler(OSError):
        return ""


class Row(NamedTuple):
    """What one task did in a run.

    Attributes:
        task: its name.
        began: when its run began, in nanoseconds of the clock that all rows share.
        events: as those of a Trace.
    """

    task: str
    began: int
    events: Sequence[dict[str, Any]]


def encode(began: int, events: Sequence[dict[str, Any]]) -> bytes:
    """Return what `decode` of another task reads."""
    return json.dumps([clock(), began, events]).encode()


def decode(data: bytes, task: str) -> tuple[str, int, list[dict[str, Any]]]:
    """Return the clock, the beginning and the events of a task's trace.

    Raises:
        MPIError: the bytes are not what a task of this version writes.
    """
    try:
        name, began, events = json.loads(data)
        is_trace = isinstance(name, str) and type(began) is int and all(map(_is_event, events))
    except not_from_handler(ValueError, TypeError, RecursionError):
        is_trace = False
    if not is_trace:
        raise MPIError(
            f"the trace that {task} sent cannot be read: {data!r:.200}; run the same dlbridge on "
            "all ranks"
        )
    return name, began, events


def _is_event(event: Any) -> bool:
    """Return whether `merge` finds in an event what it reads there."""
    if not isinstance(event, dict) or not isinstance(details := event.get("args"), dict):
        return False
    types = details.get("types")
    return (
        isinstance(event.get("tid"), str)
        and isinstance(event.get("ts"), int | float)
        and isinstance(event.get("dur"), int | float)
        and isinstance(details.get("message", ""), str)
        and isinstance(types, list)
        and all(isinstance(each, str) for each in types)
        and ("message" not in details or bool(types))
    )


def gather(task: str, began: int, events: Sequence[dict[str, Any]], comm: Any) -> list[Row]:
    """Return the rows of all tasks on rank 0, none on the others; all of them make this call."""
    rank, size = mpi.rank(comm), mpi.size(comm)
    if rank:
        for _ in range(_ROUNDS):
            mpi.recv(0, _TAG_CLOCK, comm=comm)
            mpi.send(np.array([perf_counter_ns()]), 0, _TAG_CLOCK, comm=comm)
        for each in (task.encode(), encode(began, events)):
            mpi.send(np.frombuffer(each, np.uint8), 0, _TAG_EVENTS, comm=comm)
        return []
    rows = [Row(task, began, events)]
    for other in range(1, size):
        ahead = lead("", partial(_ask, other, comm))
        name = bytes(mpi.recv(other, _TAG_EVENTS, comm=comm)).decode()
        its, start, theirs = decode(bytes(mpi.recv(other, _TAG_EVENTS, comm=comm)), name)
        rows.append(Row(name, start - (0 if _is_own(its) else ahead), theirs))
    return rows


def _ask(other: int, comm: Any) -> int:
    """Return what the clock of another task says."""
    mpi.send(np.zeros(0, np.uint8), other, _TAG_CLOCK, comm=comm)
    return int(mpi.recv(other, _TAG_CLOCK, comm=comm)[0])


def _is_own(name: str) -> bool:
    return name != "" and name == clock()


def lead(name: str, ask: Callable[[], int]) -> int:
    """Return how much a clock that `ask` reads is ahead of this task's, in nanoseconds."""
    if _is_own(name):
        return 0
    found = []
    for _ in range(_ROUNDS):
        before = perf_counter_ns()
        theirs = ask()
        after = perf_counter_ns()
        found.append((after - before, theirs - (before + after) // 2))
    return min(found)[1]


def merge(rows: Sequence[Row]) -> str:
    """Return the text of a trace file with the rows of all tasks."""
    start = min([row.began for row in rows], default=0)
    written: list[dict[str, Any]] = []
    ends: dict[str, dict[str, dict[str, Any]]] = {}  # of each message, by the type of the node
    for pid, row in enumerate(rows):
        threads: dict[str, int] = {}
        written.append(_name("process_name", pid, 0, row.task))
        for event in row.events:
            tid = threads.setdefault(event["tid"], len(threads))
            ts = event["ts"] + (row.began - start) / 1000
            moved = {**event, "pid": pid, "tid": tid, "ts": ts}
            written.append(moved)
            message = event["args"].get("message")
            if message is not None:
                ends.setdefault(message, {})[event["args"]["types"][0]] = moved
        written += [_name("thread_name", pid, tid, name) for name, tid in threads.items()]
    for number, (message, pair) in enumerate(sorted(ends.items())):
        if {"_Send", "_Recv"} <= pair.keys():
            written += _arrow(number, message, pair["_Send"], pair["_Recv"])
    return json.dumps({"traceEvents": written, "displayTimeUnit": "ns"})


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _arrow(
    number: int, message: str, send: dict[str, Any], receive: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a flow from the bar of a send to the end of the bar of the receive."""
    shared = {"name": message, "cat": "message", "id": number}
    last = receive["ts"] + max(receive["dur"] - 0.001, 0)  # inside of the bar
    return [
        {**shared, "ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]},
        {**shared, "ph": "f", "bp": "e", "pid": receive["pid"], "tid": receive["tid"], "ts": last},
    ]
