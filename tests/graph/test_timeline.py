"""The traces of several tasks as one file; what another task sends of its own is data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlbridge.errors import MPIError
from dlbridge.graph.distributed import timeline

EVENT: dict[str, Any] = {
    "name": "a", "cat": "message", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": "numpy",
    "args": {"nodes": ["a"], "types": ["_Send"], "results": [], "message": "key"},
}  # fmt: skip


def changed(**values: Any) -> dict[str, Any]:
    """Return the event with other values; None takes one away."""
    event = {**EVENT, **values}
    return {name: value for name, value in event.items() if value is not None}


def test_a_trace_is_read_as_it_was_written() -> None:
    name, began, events = timeline.decode(timeline.encode(7, [EVENT]), "a task")
    assert (name, began, events) == (timeline.clock(), 7, [EVENT])


REFUSED = {
    "no text": b"\xff",
    "nothing": b"",
    "too little": json.dumps(["clock", 1]).encode(),
    "nested without end": b"[" * 100_000,
    "a clock of another type": json.dumps([1, 1, []]).encode(),
    "a time of another type": json.dumps(["", "1", []]).encode(),
    "no events": json.dumps(["", 1, None]).encode(),
    "an event that is a text": json.dumps(["", 1, ["a"]]).encode(),
} | {
    f"an event with another {name}": json.dumps(["", 1, [changed(**{name: value})]]).encode()
    for name, value in {
        "tid": [1], "ts": "1", "dur": None, "args": [],
    }.items()
} | {
    f"arguments {args}": json.dumps(["", 1, [changed(args=args)]]).encode()
    for args in (
        {}, {"types": [1]}, {"types": [], "message": "key"}, {"types": ["a"], "message": 1},
    )
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_malformed_traces_are_refused(what: str) -> None:
    with pytest.raises(MPIError, match="the trace that /job:worker/task:1 sent cannot be read"):
        timeline.decode(REFUSED[what], "/job:worker/task:1")


@pytest.mark.parametrize("types", [["_Send"], ["_Recv"], ["Add"], ["_Recv", "_Send"]])
def test_any_event_that_is_read_can_be_written(types: list[str]) -> None:
    """An arrow is drawn where there is a send and a receive, and for nothing else."""
    other = changed(args={**EVENT["args"], "types": types})
    _, began, events = timeline.decode(timeline.encode(0, [EVENT, other]), "a task")
    text = timeline.merge([timeline.Row("a", began, events), timeline.Row("b", began, [])])
    arrows = [each for each in json.loads(text)["traceEvents"] if each["ph"] in "sf"]
    assert len(arrows) == (2 if types[0] == "_Recv" else 0)
