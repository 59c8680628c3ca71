"""Graphs, operations, tensors and sessions cannot be copied or pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import dlbridge.graph as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("what", ["graph", "op", "tensor", "session"])
def test_graphs_and_what_is_in_them_have_no_copies(graph: Any, what: str, how: Any) -> None:
    """A copy of a graph would share its lists; that of a tensor would be of no graph."""
    x = tf.constant(1.0)
    with tf.Session() as session:
        thing = {"graph": graph, "op": x.op, "tensor": x, "session": session}[what]
        with pytest.raises(TypeError, match="load_graph"):
            how(thing)


def test_a_shallow_copy_is_refused_of_a_graph_and_the_same_of_a_tensor(graph: Any) -> None:
    x = tf.constant(1.0)
    assert copy.copy(x) is x
    assert copy.copy(x.op) is x.op
    with pytest.raises(TypeError, match="load_graph"):
        copy.copy(graph)
    with tf.Session() as session, pytest.raises(TypeError, match="load_graph"):
        copy.copy(session)
