"""The traces of all tasks of a run as one file: a process for each task, an arrow for each message.

Tasks have clocks of their own. Each one's is compared with that of rank 0, by the quickest of a few
messages there and back: the reading of the other clock was made between their two times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from dlbridge import mpi

_ROUNDS = 16  # messages there and back that the clocks of two tasks are compared with
_TAG_CLOCK, _TAG_EVENTS = range(2)


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


def gather(task: str, began: int, events: Sequence[dict[str, Any]], comm: Any) -> list[Row]:
    """Return the rows of all tasks on rank 0, none on the others; all of them make this call."""
    rank, size = mpi.rank(comm), mpi.size(comm)
    if rank:
        for _ in range(_ROUNDS):
            mpi.recv(0, _TAG_CLOCK, comm=comm)
            mpi.send(np.array([perf_counter_ns()]), 0, _TAG_CLOCK, comm=comm)
        text = json.dumps([task, began, events]).encode()
        mpi.send(np.frombuffer(text, np.uint8), 0, _TAG_EVENTS, comm=comm)
        return []
    rows = [Row(task, began, events)]
    for other in range(1, size):
        ahead = _compare(other, comm)
        name, start, theirs = json.loads(bytes(mpi.recv(other, _TAG_EVENTS, comm=comm)))
        rows.append(Row(name, start - ahead, theirs))
    return rows


def _compare(other: int, comm: Any) -> int:
    """Return how much another task's clock is ahead of this one's, in nanoseconds."""
    found = []
    for _ in range(_ROUNDS):
        before = perf_counter_ns()
        mpi.send(np.zeros(0, np.uint8), other, _TAG_CLOCK, comm=comm)
        theirs = int(mpi.recv(other, _TAG_CLOCK, comm=comm)[0])
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
        if len(pair) == 2:
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
