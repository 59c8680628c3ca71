"""Which nodes a run needs, and in which order they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import attrgetter
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError

_BY_CREATION = attrgetter("id")
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_NAMED = 4  # how many nodes of a cycle its error names


def prune(outputs: Iterable[Any], nodes: Iterable[Any], fed: Collection[Any]) -> list[Any]:
    """Return the nodes that `outputs` and `nodes` need, in order of creation.

    What is fed cuts the way to its producer; of the control edges it cuts those of placeholders.
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
        if each.type not in _PLACEHOLDERS or each.outputs[0] not in fed
    ]


def keeps_order(node: Any) -> bool:
    """Tell whether a node must not pass others of its kind: it is stateful, or uses a reference."""
    return node.stateful or any(each.dtype.is_ref for each in node.inputs)


def arrange(nodes: Sequence[Any], fed: Collection[Any]) -> list[Any]:
    """Return nodes, which come in order of creation, each after those that it needs.

    Stateful nodes of which neither needs the other keep their order of creation, unless edges of
    other nodes make that impossible.

    Raises:
        InvalidArgumentError: there is a cycle.
    """
    edges = Edges(nodes, fed)
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


def gather(nodes: Sequence[Any], kinds: dict[Any, Any], edges: Edges) -> list[Any]:
    """Return nodes, which come in an order in which they can run, with those of one kind together.

    Of the nodes that can run, those of the kind that ran last go first; stateful nodes keep their
    order.
    """
    rank = {node: number for number, node in enumerate(nodes)}
    stateful = [node for node in nodes if keeps_order(node)]
    for first, second in pairwise(stateful):
        edges.connect(first, second)
    missing = {node: len(edges.before[node]) for node in nodes}
    ready: dict[Any, list[tuple[int, Any]]] = {}
    for node in nodes:
        if not missing[node]:
            ready.setdefault(kinds[node], []).append((rank[node], node))
    for heap in ready.values():
        heapify(heap)
    order: list[Any] = []
    while ready:
        kind = min(ready, key=lambda each: ready[each][0][0])
        while heap := ready.get(kind, []):
            node = heappop(heap)[1]
            order.append(node)
            for each in edges.after[node]:
                missing[each] -= 1
                if not missing[each]:
                    heappush(ready.setdefault(kinds[each], []), (rank[each], each))
        del ready[kind]
    return order
