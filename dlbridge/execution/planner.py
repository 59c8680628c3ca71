"""From fetches and feeds to a Plan: nodes are ordered, placed, grouped into runs, and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlbridge.execution import order
from dlbridge.execution.builder import Builder, Feeder, RunKind
from dlbridge.execution.loops import result_dtype
from dlbridge.execution.placement import (
    HOST,
    Place,
    Placed,
    log_placement,
    place_all,
    skip_no_ops,
)
from dlbridge.execution.plan import Plan
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
        feeder: returns the function that checks a value.
        give: converts a value for the user.
        framework: in which `give` returns arrays, to spare it a conversion.
        single: whether a call returns the only value itself, not a tuple.
    """
    known = frozenset(fed)
    needed = order.prune(outputs, targets, known)
    arranged = order.arrange(needed, known)
    found = place_all(arranged, known, runtime.framework, runtime.soft)
    if runtime.logged is not None:
        log_placement(found, runtime.logged)
    placed, same = skip_no_ops(found, known)
    outputs = [same.get(each, each) for each in outputs]
    runs = split(placed, known, runtime.compiled)
    builder = Builder(runtime, placed, outputs, known)
    inputs = builder.add_feeds(fed, feeder)
    for run in runs:
        builder.add_run(run.nodes, run.kind)
    fetched = builder.add_fetches(outputs, give, framework)
    return Plan(builder.steps, builder.constants, inputs, fetched, single, builder.guards())


# ---- runs: nodes of one step -------------------------------------------------------------------


class Run(NamedTuple):
    """Nodes that run one after another.

    Attributes:
        nodes: in their order.
        kind: "steps" where each has its own step, "loops" for one step on NumPy's inner loops,
            "compiled" for one step that the framework compiles.
    """

    nodes: Sequence[Placed]
    kind: RunKind = "steps"


def split(placed: Sequence[Placed], fed: Collection[Any], compiled: Collection[str]) -> list[Run]:
    """Return the nodes of a plan as runs, in an order in which these can run.

    Args:
        placed: in an order in which they can run.
        fed: outputs whose values come from outside.
        compiled: frameworks whose runs are compiled.
    """
    if not any(_is_compiled(each, compiled) for each in placed):
        return list(_split_loops([each for each in placed if not each.is_no_op]))
    kinds = _kinds(placed, compiled)
    by_node = {each.node: each for each in placed}
    nodes = list(by_node)
    if len(set(kinds.values())) > 1:
        nodes = order.gather(nodes, kinds, order.Edges(nodes, fed))
    found: list[Run] = []
    for kind, group in groupby(nodes, kinds.__getitem__):
        members = [by_node[node] for node in group if not by_node[node].is_no_op]
        if kind is None:
            found += _split_loops(members)
        else:
            found += [Run(part, "compiled") for part in _cut(members)]
    return found


# ---- compiled ----------------------------------------------------------------------------------


def _is_compiled(placed: Placed, compiled: Collection[str]) -> bool:
    """Tell whether a node can be part of a compiled run of its framework."""
    node, spec = placed.node, placed.spec
    return (
        placed.place.framework in compiled
        and spec.traceable
        and not node.stateful
        and bool(node.inputs)
        and not any(kind.is_ref or kind.kind == "h" for kind in node.output_types)
        and not any(each.dtype.is_ref or each.dtype.kind == "h" for each in node.inputs)
    )


def _kinds(placed: Sequence[Placed], compiled: Collection[str]) -> dict[Any, Place | None]:
    """Return the place of each node whose run is compiled, None of others.

    What is computed on the host from shapes of such a run is part of it.
    """
    kinds: dict[Any, Place | None] = {}
    for each in placed:
        kind = each.place if _is_compiled(each, compiled) and not each.is_no_op else None
        if kind is None and (each.on_host or each.is_no_op):
            kinds_in = (kinds.get(tensor.op) for tensor in each.inputs)
            kind = next((found for found in kinds_in if found is not None), None)
        kinds[each.node] = kind
    return kinds


def _cut(members: Sequence[Placed]) -> list[list[Placed]]:
    """Split nodes of one kind where the host needs a result of the run before."""
    parts: list[list[Placed]] = [[]]
    inside: dict[Any, bool] = {}  # node of the part -> whether its results are on the host
    for placed in members:
        on_host = placed.place == HOST
        for i, each in enumerate(placed.inputs):
            if (on_host or i in placed.host) and inside.get(each.op, True) is False:
                parts.append([])
                inside = {}
                break
        parts[-1].append(placed)
        inside[placed.node] = placed.result == HOST
    return [part for part in parts if part]


# ---- NumPy -------------------------------------------------------------------------------------


def _split_loops(placed: Sequence[Placed]) -> Iterator[Run]:
    """Return runs of element-wise nodes on NumPy, and the nodes between them."""
    for is_loop, nodes in groupby(placed, _is_loop):
        if is_loop:
            yield from _loops(list(nodes))
        else:
            yield Run(list(nodes))


def _is_loop(placed: Placed) -> bool:
    """Tell whether NumPy has an inner loop for a node, with just its dtypes."""
    if placed.spec.ufunc is None or placed.place != HOST:
        return False
    kinds = [each.dtype for each in placed.node.inputs]
    if any(kind.is_ref or kind.dlpack is None for kind in kinds):
        return False
    found = result_dtype(placed.spec.ufunc, *[kind.numpy for kind in kinds])
    return found is not None and found == placed.node.output_types[0].numpy


def _loops(nodes: list[Placed]) -> Iterator[Run]:
    """Split nodes that are not connected: arrays of different shapes do not fit into one run."""
    for part in _connected(nodes):
        yield Run(part, "loops" if len(part) > 1 else "steps")


def _connected(nodes: list[Placed]) -> list[list[Placed]]:
    """Return nodes by which of them pass values to each other, or take the same one."""
    leader: dict[Any, Any] = {}

    def find(x: Any) -> Any:
        while leader.setdefault(x, x) is not x:
            leader[x] = leader[leader[x]]
            x = leader[x]
        return x

    for placed in nodes:
        node = placed.node
        for each in placed.inputs:
            if each.op.type != "Const":
                leader[find(each.op)] = find(node)
    parts: dict[Any, list[Placed]] = {}
    for placed in nodes:
        parts.setdefault(find(placed.node), []).append(placed)
    return list(parts.values())
