"""Which nodes run, and in which order."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.planner import Edges, arrange, gather, prune
from dlbridge.proto.datatypes import float32


class Output:
    dtype = float32

    def __init__(self, op: Node, value_index: int) -> None:
        self.op, self.value_index = op, value_index


class Node:
    """The least that order needs to know of an operation."""

    def __init__(self, number: int, stateful: bool = False) -> None:
        self.id, self.name, self.stateful = number, f"n{number}", stateful
        self.type = "Test"
        self.outputs = (Output(self, 0), Output(self, 1))
        self.inputs: tuple[Output, ...] = ()
        self.control_inputs: tuple[Node, ...] = ()

    def after(self, *nodes: Node) -> Node:
        self.inputs += tuple(node.outputs[0] for node in nodes)
        return self

    def __repr__(self) -> str:
        return self.name


def make(count: int, stateful: tuple[int, ...] = ()) -> list[Node]:
    return [Node(number, number in stateful) for number in range(count)]


def test_only_ancestors_are_kept() -> None:
    a, b, c, d, e = make(5)
    c.after(a)
    d.after(c, b)
    e.control_inputs = (c,)
    assert prune([d.outputs[1]], [], ()) == [a, b, c, d]
    assert prune([], [e], ()) == [a, c, e]
    assert prune([], [], ()) == []


def test_a_feed_cuts_the_way_to_its_producer_and_control_edges_of_placeholders() -> None:
    a, b, c = make(3)
    b.after(a)
    c.after(b)
    fed = frozenset({b.outputs[0]})
    assert prune([c.outputs[0]], [], fed) == [c]
    assert prune([b.outputs[0]], [], fed) == []
    assert prune([b.outputs[1]], [], fed) == [a, b]
    c.control_inputs = (b,)
    assert prune([c.outputs[0]], [], fed) == [a, b, c]
    b.type = "Placeholder"
    assert prune([c.outputs[0]], [], fed) == [c]
    assert arrange([c], fed) == [c]


def test_nodes_that_are_in_order_stay_so() -> None:
    nodes = make(5, (1, 3))
    nodes[4].after(nodes[0])
    assert arrange(nodes, ()) == nodes


def test_forward_references_are_followed() -> None:
    a, b, c = make(3)
    a.after(c)
    b.after(a)
    assert arrange([a, b, c], ()) == [c, a, b]


def test_stateful_nodes_keep_their_order_where_edges_leave_it_open() -> None:
    a, b, c, d = make(4, (0, 1, 2))
    a.after(d)  # made later than b, which needs nothing
    assert [node for node in arrange([a, b, c, d], ()) if node.stateful] == [a, b, c]
    b.after(c)
    assert [node for node in arrange([a, b, c, d], ()) if node.stateful] == [a, c, b]


def test_a_cycle_is_named() -> None:
    a, b, c, d = make(4)
    a.after(b)
    b.after(a)
    c.after(b)
    text = "Graph is invalid, contains a cycle with 2 nodes, including: n0, n1"
    with pytest.raises(InvalidArgumentError, match=text):
        arrange([a, b, c, d], ())
    d.after(d)
    with pytest.raises(InvalidArgumentError, match="with 1 nodes, including: n3"):
        arrange([d], ())


def test_a_feed_breaks_a_cycle() -> None:
    a, b = make(2)
    a.after(b)
    b.after(a)
    assert arrange([a, b], {b.outputs[0]}) == [a, b]


def test_long_chains_need_no_deep_stack() -> None:
    nodes = make(50_000)
    for first, second in itertools.pairwise(nodes):
        first.after(second)  # all are forward references
    assert arrange(nodes, ()) == nodes[::-1]
    assert len(prune([nodes[0].outputs[0]], [], ())) == len(nodes)


@st.composite
def graphs(draw: Any) -> list[Node]:
    """Graphs without cycles, whose numbers say nothing about their order."""
    count = draw(st.integers(1, 12))
    nodes = make(count, tuple(draw(st.sets(st.integers(0, count - 1)))))
    rank = draw(st.permutations(range(count)))
    for _ in range(draw(st.integers(0, 20))):
        i, j = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        if rank[i] < rank[j]:
            nodes[j].after(nodes[i])
    return nodes


def ancestors(node: Node) -> set[Node]:
    return set(prune([], [node], ())) - {node}


def check(order: list[Node], nodes: list[Node]) -> None:
    assert sorted(order, key=lambda node: node.id) == nodes
    place = {node: number for number, node in enumerate(order)}
    assert all(place[each.op] < place[node] for node in nodes for each in node.inputs)


@given(graphs())
def test_every_order_respects_edges(nodes: list[Node]) -> None:
    order = arrange(nodes, ())
    check(order, nodes)
    kinds = {node: random.Random(node.id).choice("xyz") for node in nodes}
    edges = Edges(nodes, ())
    edges.keep_order(order)
    gathered = gather(order, kinds, edges)
    check(gathered, nodes)
    assert [node for node in gathered if node.stateful] == [x for x in order if x.stateful]


@given(graphs())
def test_stateful_nodes_come_in_order_of_creation_where_that_is_possible(
    nodes: list[Node],
) -> None:
    """It is where edges for that order, added to the graph, make no cycle."""
    needed = {node: ancestors(node) for node in nodes if node.stateful}
    pairs = [
        (first, second)
        for first in needed
        for second in needed
        if first.id < second.id and first not in needed[second] and second not in needed[first]
    ]
    for first, second in pairs:
        second.control_inputs += (first,)
    try:
        arrange(nodes, ())
    except InvalidArgumentError:
        return  # a cycle: impossible
    finally:
        for node in nodes:
            node.control_inputs = ()
    place = {node: number for number, node in enumerate(arrange(nodes, ()))}
    assert all(place[first] < place[second] for first, second in pairs)


def test_nodes_of_one_kind_are_gathered() -> None:
    nodes = make(6)
    kinds = dict(zip(nodes, "xyxyxy", strict=True))
    order = gather(nodes, kinds, Edges(nodes, ()))
    assert [kinds[node] for node in order] == list("xxxyyy")
