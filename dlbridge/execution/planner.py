"""From fetches and feeds to a Plan: nodes become steps, values cross where frameworks differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dlbridge.execution import order
from dlbridge.execution.builder import Builder, Feeder
from dlbridge.execution.placement import announce, place_all, silence
from dlbridge.execution.plan import Plan
from dlbridge.execution.runs import split
from dlbridge.execution.runtime import Runtime


def make_plan(
    runtime: Runtime,
    outputs: Sequence[Any],
    targets: Iterable[Any],
    fed: Sequence[Any],
    feeder: Feeder,
    give: Callable[[Any], Any],
    framework: str,
    single: bool = False,
) -> Plan:
    """Return the plan that runs `targets` and returns the values of `outputs`.

    Args:
        runtime: of the session.
        outputs: of nodes, each once.
        targets: nodes to run whose results nobody wants.
        fed: outputs whose values the calls pass, in this order.
        feeder: what checks the values.
        give: makes a value what the user gets.
        framework: in which `give` returns arrays, to spare it a conversion.
        single: whether a call returns the only value itself, not a tuple.
    """
    known = frozenset(fed)
    needed = order.prune(outputs, targets, known)
    arranged = order.arrange(needed, known)
    found = place_all(arranged, known, runtime.framework, runtime.soft)
    if runtime.announced is not None:
        announce(found, runtime.announced)
    placed, same = silence(found, known)
    outputs = [same.get(each, each) for each in outputs]
    runs = split(placed, known, runtime.compiled)
    builder = Builder(runtime, placed, outputs, known)
    inputs = builder.add_feeds(fed, feeder)
    for run in runs:
        builder.add_run(run)
    fetched = builder.add_fetches(outputs, give, framework)
    return Plan(builder.steps, builder.constants, inputs, fetched, single, builder.guards())
