"""From fetches and feeds to a Plan: nodes are pruned, ordered, placed, grouped and written."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from dlbridge.execution.backend import backend
from dlbridge.execution.builder import Builder, Feeder, RunKind, Runtime
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.placement import (
    HOST,
    Place,
    Placed,
    log_placement,
    place_all,
    skip_no_ops,
)
from dlbridge.execution.plan import Plan, Step, result_dtype


def make_plan(
    runtime: Runtime,
    outputs: Sequence[Any],
    targets: Iterable[Any],
    fed: Sequence[Any],
    feeder: Feeder,
    give: Callable[[Any], Any],
    share: Callable[[Any], Any],
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
        share: the same, for a value that is the user's alone as it is.
        framework: in which `give` returns arrays, to spare it a conversion.
        single: whether a call returns the only value itself, not a tuple.
    """
    known = frozenset(fed)
    needed = prune(outputs, targets, known)
    arranged = arrange(needed, known)
    found = place_all(arranged, known, runtime.framework, runtime.soft)
    if runtime.logged is not None:
        log_placement(found, runtime.logged)
    placed, same = skip_no_ops(found, known)
    outputs = [same.get(each, each) for each in outputs]
    if runtime.limit is None:
        runs = split(placed, known, runtime.compiled)
    else:
        runs = [Run([each for each in placed if not each.is_no_op])]
    builder = Builder(runtime, placed, outputs, known)
    inputs = builder.add_feeds(fed, feeder)
    for run in runs:
        builder.add_run(run.nodes, run.kind)
    fetched = builder.add_fetches(outputs, give, share, framework)
    steps = builder.steps
    if runtime.ends is not None:
        steps = list(runtime.ends.allocated(steps))
    before = dependencies(steps, arranged, known) if runtime.threads > 1 else []
    return Plan(
        steps, builder.constants, inputs, fetched, single, builder.guards(),
        before, runtime.threads,
    )  # fmt: skip


# ---- which steps wait for each other -----------------------------------------------------------


def dependencies(
    steps: Sequence[Step], nodes: Sequence[Any], fed: Collection[Any]
) -> list[set[int]]:
    """Return for each step the steps that it needs; none where no two functions are of the user.

    A step needs those that make its values, and those of the control inputs of its nodes. Stateful
    steps that call no function of the user keep their order, and what is fetched comes last.
    """
    if sum([step.calls_user for step in steps]) < 2:
        return []
    makers: dict[int, int] = {}
    own: dict[Any, set[int]] = {}
    for number, step in enumerate(steps):
        for node in step.nodes:
            own.setdefault(node, set()).add(number)
    edges = Edges(nodes, fed)
    done: dict[Any, set[int]] = {}  # node -> the steps after which it is done
    for node in nodes:
        done[node] = own.get(node) or {n for each in edges.before[node] for n in done[each]}
    found: list[set[int]] = []
    ordered: set[int] = set()
    for number, step in enumerate(steps):
        needed = {makers[each] for each in step.inputs if each in makers}
        for node in step.nodes:
            needed.update(n for each in edges.before[node] for n in done[each] if n < number)
        if not step.calls_user and any(map(_uses_state, step.nodes)):
            needed |= ordered
            ordered = {number}
        if not step.nodes and step.label.startswith("fetch "):
            needed.update(range(number))
        outputs = step.outputs if isinstance(step.outputs, tuple) else (step.outputs,)
        makers.update(dict.fromkeys(outputs, number))
        found.append(needed)
    return found


def _uses_state(node: Any) -> bool:
    return keeps_order(node) or any(kind.is_ref for kind in node.output_types)


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
        edges = Edges(nodes, fed)
        edges.keep_order(nodes)
        nodes = gather(nodes, kinds, edges)
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
    """Return whether a node can be part of a compiled run of its framework."""
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

    Nodes that compute on the host with shapes of such a run are part of it.
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


# ---- NumPy's inner loops -----------------------------------------------------------------------


def _split_loops(placed: Sequence[Placed]) -> Iterator[Run]:
    """Return runs of element-wise nodes in one framework, and the nodes between them."""
    for place, nodes in groupby(placed, _loop_place):
        if place is not None:
            yield from _loops(list(nodes))
        else:
            yield Run(list(nodes))


def _loop_place(placed: Placed) -> Place | None:
    """Return the place of a node if NumPy has an inner loop for it, with just its dtypes."""
    ufunc, place = placed.spec.ufunc, placed.place
    if ufunc is None or place.device:
        return None
    if placed.spec.only_if is not None and not placed.spec.only_if(placed.node):
        return None
    kinds = [each.dtype for each in placed.node.inputs]
    if any(kind.is_ref or kind.dlpack is None for kind in kinds):
        return None
    if placed.spec.folds:
        if len(kinds) == 1:
            return None
        kinds = kinds[:2]
    if place != HOST and not backend(place.framework).is_exact(ufunc, kinds[0]):
        return None
    found = result_dtype(ufunc, *[kind.numpy for kind in kinds])
    return place if found is not None and found == placed.node.output_types[0].numpy else None


_TOGETHER = 1024  # elements: nodes that are not connected share a run if their values are no larger
_ALONE = 1 << 15  # elements: from here on the ufunc of a single node is as fast as a loop


def _loops(nodes: list[Placed]) -> Iterator[Run]:
    """Return runs of connected nodes; small nodes of the same known shape share one.

    Arrays of different shapes do not fit into one run.
    """
    together: dict[tuple[int, ...], list[Placed]] = {}
    for part in _connected(nodes):
        dims = _common_dims(part)
        if dims is None or math.prod(dims) > _TOGETHER:
            yield _run_of(part, dims)
        else:
            together.setdefault(dims, []).extend(part)
    for dims, part in together.items():
        yield _run_of(part, dims)


def _run_of(part: list[Placed], dims: tuple[int, ...] | None) -> Run:
    is_quick = part[0].place == HOST and (dims is None or math.prod(dims) < _ALONE)
    return Run(part, "loops" if len(part) > 1 or is_quick else "steps")


def _common_dims(nodes: Sequence[Placed]) -> tuple[int, ...] | None:
    """Return the shape of all values of nodes that are not scalars, or None if it is not known."""
    found: tuple[int, ...] = ()
    for placed in nodes:
        for each in (*placed.inputs, *placed.node.outputs):
            dims = each._dims
            if dims is None or None in dims or (found and dims and tuple(dims) != found):
                return None
            found = found or tuple(dims)
    return found


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


# ---- which nodes a run needs, and their order --------------------------------------------------

_BY_CREATION = attrgetter("id")
PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_NAMED = 4  # how many nodes of a cycle its error names


def prune(outputs: Iterable[Any], nodes: Iterable[Any], fed: Collection[Any]) -> list[Any]:
    """Return the nodes that `outputs` and `nodes` need, in order of creation.

    The producer of a fed tensor is not needed for it, nor a placeholder's control inputs.
    """
    stack = [each.op for each in outputs if each not in fed]
    stack += nodes
    found: set[Any] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [each.op for each in node.inputs if each not in fed]
            stack += controls(node, fed)
    return sorted(found, key=_BY_CREATION)


def controls(node: Any, fed: Collection[Any]) -> list[Any]:
    """Return the nodes that must run before a node; for a placeholder its feed stands in."""
    return [
        each
        for each in node.control_inputs
        if each.type not in PLACEHOLDERS or each.outputs[0] not in fed
    ]


def keeps_order(node: Any) -> bool:
    """Return whether a node must not pass others of its kind: it has state, or uses a reference."""
    return node.stateful or any(each.dtype.is_ref for each in node.inputs)


def arrange(nodes: Sequence[Any], fed: Collection[Any], edges: Edges | None = None) -> list[Any]:
    """Return nodes, which come in order of creation, each after those that it needs.

    Stateful nodes of which neither needs the other keep their order of creation, unless edges of
    other nodes make that impossible.

    Args:
        nodes: of one plan.
        fed: outputs whose values come from outside.
        edges: between the nodes, where they are known.

    Raises:
        InvalidArgumentError: there is a cycle.
    """
    edges = Edges(nodes, fed) if edges is None else edges
    if all(each.id < node.id for node in nodes for each in edges.before[node]):
        return list(nodes)
    sequence = _sequence_of_stateful(nodes, edges)
    return _depth_first([*sequence, *nodes], edges)


class Edges:
    """Edges between nodes of one plan.

    Attributes:
        before: node -> the nodes that it needs, each once.
        after: node -> the nodes that need it.
    """

    __slots__ = ("after", "before")

    def __init__(self, nodes: Sequence[Any], fed: Collection[Any]) -> None:
        self.before: dict[Any, tuple[Any, ...]] = {}
        self.after: dict[Any, list[Any]] = {node: [] for node in nodes}
        for node in nodes:
            needed = [each.op for each in node.inputs if each not in fed]
            needed += controls(node, fed)
            self.before[node] = unique = tuple(dict.fromkeys(needed))
            for each in unique:
                self.after[each].append(node)

    def connect(self, first: Any, second: Any) -> None:
        """Add an edge."""
        if first not in self.before[second]:
            self.before[second] += (first,)
            self.after[first].append(second)

    def keep_order(self, nodes: Iterable[Any]) -> None:
        """Add edges between the stateful ones of nodes, which come in the order to be kept."""
        for first, second in pairwise([node for node in nodes if keeps_order(node)]):
            self.connect(first, second)


def _sequence_of_stateful(nodes: Sequence[Any], edges: Edges) -> list[Any]:
    """Return the stateful nodes in an order in which they can run.

    All others run as soon as they can, so that a stateful node waits for stateful ones only; of
    those that wait for nothing the first created is next.
    """
    missing = {node: len(edges.before[node]) for node in nodes}
    ready = deque([node for node in nodes if not missing[node]])
    waiting: list[tuple[int, Any]] = []
    sequence: list[Any] = []
    done = 0
    while ready or waiting:
        node = ready.popleft() if ready else None
        if node is None:
            node = heappop(waiting)[1]
            sequence.append(node)
        elif keeps_order(node):
            heappush(waiting, (node.id, node))
            continue
        done += 1
        for each in edges.after[node]:
            missing[each] -= 1
            if not missing[each]:
                ready.append(each)
    if done < len(nodes):
        raise _cycle_among({node for node in nodes if missing[node]}, edges)
    return sequence


def _depth_first(wanted: Iterable[Any], edges: Edges) -> list[Any]:
    """Return the nodes each after what it needs, which comes as late as it can."""
    done: dict[Any, None] = {}
    for root in wanted:
        stack = [] if root in done else [(root, iter(edges.before[root]))]
        while stack:
            node, needed = stack[-1]
            for each in needed:
                if each not in done:
                    stack.append((each, iter(edges.before[each])))
                    break
            else:
                done[node] = None
                stack.pop()
    return list(done)


def _cycle_among(nodes: set[Any], edges: Edges) -> InvalidArgumentError:
    """Name one cycle among nodes each of which needs another of them."""
    node = min(nodes, key=_BY_CREATION)
    path: dict[Any, int] = {}
    while node not in path:
        path[node] = len(path)
        node = next(each for each in edges.before[node] if each in nodes)
    cycle = sorted(list(path)[path[node] :], key=_BY_CREATION)
    names = ", ".join(each.name for each in cycle[:_NAMED])
    more = ", …" if len(cycle) > _NAMED else ""
    return InvalidArgumentError(
        f"Graph is invalid, contains a cycle with {len(cycle)} nodes, including: {names}{more}"
    )


def gather(nodes: Sequence[Any], kinds: Mapping[Any, Any], edges: Edges) -> list[Any]:
    """Return nodes, which come in an order in which they can run, with those of one kind together.

    Of the nodes that can run, those of the kind that ran last go first, then the one that came
    first. Nodes that are not among them have run before, or run after all of them.
    """
    rank = {node: number for number, node in enumerate(nodes)}
    missing = {node: sum([each in rank for each in edges.before[node]]) for node in nodes}
    every = [(rank[node], node) for node in nodes if not missing[node]]  # sorted, so a heap
    ready: dict[Any, list[tuple[int, Any]]] = {}
    for entry in every:
        ready.setdefault(kinds[entry[1]], []).append(entry)
    order: list[Any] = []
    while every:
        heap = ready[kinds[heappop(every)[1]]]  # empty where the node has run
        while heap:
            node = heappop(heap)[1]
            order.append(node)
            for each in edges.after[node]:
                if each not in missing:
                    continue
                missing[each] -= 1
                if not missing[each]:
                    entry = rank[each], each
                    heappush(ready.setdefault(kinds[each], []), entry)
                    heappush(every, entry)
    return order
