"""Graphs spoilt at random are refused, or imported; within bounds of memory.

`HYPOTHESIS_PROFILE=thorough` tries fifty times as many.
"""

from __future__ import annotations

import random

import pytest
from graph import graph_texts, random_steps
from graph.mutations import spoil_bytes, spoil_nodes
from graph.test_random_graphs import build_ours, unshrunk
from hypothesis import given
from hypothesis import strategies as st
from measuring import peak

import dlbridge.graph as tf
from dlbridge.graph.core import opdef
from dlbridge.proto import messages

# The most that a graph of a few thousand bytes may need while it is imported.
MOST_MEMORY = 50_000_000
ROUNDS = 25


@pytest.fixture(scope="module")
def graphs() -> list[bytes]:
    """Random graphs, and one of each kind that has its own rules."""
    source = random.Random(1)
    drawn = [build_ours(random_steps.draw_plan(source))[0] for _ in range(20)]
    return [
        *map(tf.dump_graph, drawn),
        *(tf.dump_graph(tf.load_graph(text)) for text in graph_texts.ACCEPTED.values()),
    ]


def load_or_refuse(data: bytes) -> None:
    """Import and write a graph within the memory it may take."""
    assert peak(lambda: load(data), MOST_MEMORY) < MOST_MEMORY


def load(data: bytes) -> None:
    """Import and write a graph; let only the errors pass that are for wrong graphs."""
    try:
        graph = tf.load_graph(data)
    except UnicodeError:  # a ValueError that is about no graph
        raise
    except (ValueError, TypeError, tf.errors.NotFoundError):
        pass
    else:
        again = tf.load_graph(tf.dump_graph(graph))
        assert tf.dump_graph(again) == tf.dump_graph(graph)


@unshrunk
@given(st.randoms(use_true_random=False))
def test_spoilt_bytes_are_refused_or_are_a_graph(
    graphs: list[bytes], source: random.Random
) -> None:
    generator = random.Random(source.getrandbits(64))
    for _ in range(ROUNDS):
        load_or_refuse(spoil_bytes(generator, generator.choice(graphs)))


@unshrunk
@given(st.randoms(use_true_random=False))
def test_spoilt_nodes_are_refused_or_are_a_graph(
    graphs: list[bytes], source: random.Random
) -> None:
    """Every op type meets inputs and attributes that were made for others."""
    generator = random.Random(source.getrandbits(64))
    for _ in range(ROUNDS):
        message = messages.GraphDef.FromString(generator.choice([g for g in graphs if g]))
        if message.node:
            spoil_nodes(generator, message, opdef.names())
        load_or_refuse(message.SerializeToString(deterministic=True))
