"""The order in which nodes of a GraphDef can be created: producers first, else as they stand."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence

from dlbridge.errors import ArgumentError
from dlbridge.graph.graphdef.import_source import Node

_MOST_NAMED = 10


def producer(reference: str) -> str:
    """Return the name of the node in an input of a NodeDef: "a", "a:1" or "^a"."""
    return reference.removeprefix("^").partition(":")[0]


def creation_order(
    nodes: Sequence[Node], index: Mapping[str, int], mapped: Container[str]
) -> list[int]:
    """Return the indices of all nodes; of those that may come next, the first always does.

    Args:
        nodes: all nodes.
        index: the position of each by its name.
        mapped: inputs that something else replaces, which wait for nothing.

    Raises:
        ValueError: there is a cycle; it names the nodes.
    """
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for reference in node.inputs:
            source = index.get(producer(reference))
            if source is not None and reference not in mapped:
                waiting[i] += 1
                readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _refusal(_find_cycle(nodes, index, mapped, waiting))
    return order


def _find_cycle(
    nodes: Sequence[Node], index: Mapping[str, int], mapped: Container[str], waiting: list[int]
) -> list[str]:
    """Return the names along a cycle; every node that still waits reads one that does."""
    i = next(i for i, count in enumerate(waiting) if count)
    place: dict[int, int] = {}
    while i not in place:
        place[i] = len(place)
        i = next(
            index[producer(reference)]
            for reference in nodes[i].inputs
            if reference not in mapped and waiting[index.get(producer(reference), i)]
        )
    return [nodes[each].name for each in place if place[each] >= place[i]][::-1]


def _refusal(names: list[str]) -> ArgumentError:
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return ArgumentError(
        f"import_graph_def: the graph contains a cycle with {len(names)} nodes, including: {shown}"
    )
