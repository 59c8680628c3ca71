"""Trace: when each step of a run began and ended, for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.exchange.context import receipts
from dlbridge.execution.backend import FRAMEWORKS, backend
from dlbridge.execution.plan import Plan, Step
from dlbridge.files import write_file
from dlbridge.signals import not_from_handler

NAMED = 50  # nodes of a compiled run that a bar names


class Crossing(NamedTuple):
    """How a value went to another framework or device.

    Attributes:
        target: the framework.
        shared: whether its memory was.
        why: the reason code of a copy, or None.
        device: the name of the framework's device, "GPU:1"; "" is the host.
    """

    target: str
    shared: bool
    why: str | None = None
    device: str = ""


class Trace:
    """The steps of one run: a row for each framework and device, a bar for each node or run.

    `chrome://tracing` and https://ui.perfetto.dev open what `save` writes.

    Attributes:
        events: complete events of the Trace Event Format, in order: name, cat ("node", "run" of
            several nodes compiled into one, "message" of a node that passes a value between tasks,
            "move" between frameworks, "fed and fetched"), ts and
            dur in microseconds from the beginning of the run, args with the nodes, their op types,
            the shapes and dtypes of results and, where element-wise nodes run together, whether
            they did so in NumPy's inner loops.
        places: the framework in which each operation ran.
        devices: the name of the device of each operation that ran on one: "GPU:0".
        crossings: the Crossings of each Tensor whose value was needed in another framework.
        began: when the run began, in nanoseconds of `time.perf_counter_ns`.
        others: of a run that this task has driven on others: by the name of each, when its part
            began, by the same clock, and its events; else None.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     trace = tf.Trace()
        ...     value = session.run(tf.constant([1.0]) + 1.0, trace=trace)
        >>> [event["name"] for event in trace.events]
        ['add', 'fetch add']
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.places: dict[Any, str] = {}
        self.devices: dict[Any, str] = {}
        self.crossings: dict[Any, list[Crossing]] = {}
        self.began = 0
        self.others: dict[str, tuple[int, list[dict[str, Any]]]] | None = None

    def run(self, plan: Plan, values: tuple[Any, ...]) -> Any:
        """Run a plan step by step, each one waited for, and note the times; return its results."""
        slots = dict(plan.constants)
        slots.update(zip(plan.inputs, values, strict=True))
        plan.guarded(self._run_steps)(plan, slots)
        found = tuple([slots[each] for each in plan.outputs])
        return found[0] if plan.single else found

    def _run_steps(self, plan: Plan, slots: dict[int, Any]) -> None:
        start = self.began = perf_counter_ns()
        for number, step in enumerate(plan.steps):
            self._step(plan, number, step, slots, start)
            for slot in plan.releases[number]:
                if slot not in plan.constants and slot not in plan.inputs:
                    del slots[slot]

    def _step(self, plan: Plan, number: int, step: Step, slots: dict[int, Any], start: int) -> None:
        function = step.function
        begin = perf_counter_ns()
        try:
            assert function is not None
            values = [slots[each] for each in step.inputs]
            details = {}
            if isinstance(function, native.Loops):
                details["loops"] = function.takes(*values)
            with receipts() as log:
                result = function(*values)
            _wait(result, step)
        except not_from_handler(Exception) as error:  # what the program does in C
            explained = plan.explain(number, error)
            raise explained from (None if explained is error else error)
        end = perf_counter_ns()
        several = isinstance(step.outputs, tuple)
        results = tuple(result or ()) if several else (result,)
        outputs = step.outputs if isinstance(step.outputs, tuple) else (step.outputs,)
        filled = {slot: x for slot, x in zip(outputs, results, strict=True) if slot >= 0}
        slots.update(filled)
        event = _event(step, begin - start, end - begin, results)
        event["args"] |= details
        self.events.append(event)
        self.places.update(dict.fromkeys(step.nodes, step.framework))
        if step.device:
            self.devices.update(dict.fromkeys(step.nodes, step.device))
        if step.moved is not None:
            copied = [each.why for each in log if not each.shared]
            why = copied[0] if copied else None
            crossing = Crossing(step.framework, not copied, why, step.device)
            self.crossings.setdefault(step.moved, []).append(crossing)

    def to_json(self) -> str:
        """Return the text of a trace file."""
        rows = list(dict.fromkeys([event["tid"] for event in self.events]))
        named = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": row}}
            for row in rows
        ]
        numbers = {row: number for number, row in enumerate(rows)}
        events = [{**event, "tid": numbers[event["tid"]]} for event in [*named, *self.events]]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})

    def save(self, path: str | Path) -> None:
        """Write a trace file."""
        write_file(path, [self.to_json().encode()])


def _event(step: Step, begin: int, duration: int, results: tuple[Any, ...]) -> dict[str, Any]:
    names = [node.name for node in step.nodes[:NAMED]]
    more = len(step.nodes) - len(names)
    details = {
        "nodes": [*names, *([f"and {more} more"] if more else [])],
        "types": sorted({node.type for node in step.nodes}),
        "results": [_describe(each) for each in results[:NAMED]],
    }
    if _category(step) == "message":
        details["message"] = step.nodes[0].attrs["tensor_name"].decode("utf-8", "replace")
    return {
        "name": step.label,
        "cat": _category(step),
        "ph": "X",
        "ts": begin / 1000,
        "dur": duration / 1000,
        "pid": 1,
        "tid": f"{step.framework or 'numpy'} {step.device}".rstrip(),
        "args": details,
    }


def _category(step: Step) -> str:
    if len(step.nodes) == 1 and step.nodes[0].type in ("_Send", "_Recv"):
        return "message"
    if step.nodes:
        return "node" if len(step.nodes) == 1 else "run"
    return "move" if "->" in step.label else "fed and fetched"


def _describe(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return type(value).__name__
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def _wait(result: Any, step: Step) -> None:
    """Wait for results that a framework computes asynchronously."""
    if step.framework in FRAMEWORKS:
        backend(step.framework).wait(result, step.device)
