"""Control dependencies: what may be waited for, and who waits."""

from __future__ import annotations

from typing import Any

import pytest
from graph.small_graphs import exported

import dlbridge.graph as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def controls(*ops: Any) -> list[list[str]]:
    return [[each.name for each in op.control_inputs] for op in ops]


def test_control_dependencies_take_what_stands_for_operations() -> None:
    a, b, i, d = (tf.constant(1.0, name=name) for name in "abid")
    v = tf.Variable(1.0, name="v")
    slices = tf.IndexedSlices(a, i, d)
    with tf.control_dependencies([b.op, "d", v, slices]):
        done = tf.no_op()
    assert controls(done)[0][:2] == ["b", "d"]
    assert controls(done)[0][2].startswith("v")
    assert len(controls(done)[0]) == 4


def test_nothing_is_created_in_a_finalized_graph_within_control_dependencies(graph: Any) -> None:
    x = tf.constant(1.0)
    graph.finalize()
    with (
        tf.control_dependencies([x]),
        pytest.raises(RuntimeError, match="Graph is finalized and cannot be modified"),
    ):
        tf.no_op()


def test_operations_imported_in_a_block_wait_already() -> None:
    written = exported(lambda: tf.identity(tf.constant(1.0), name="i"))
    with tf.control_dependencies([tf.no_op(name="a")]):
        (found,) = tf.import_graph_def(written, name="", return_elements=["i:0"])
        after = tf.identity(found)
    assert controls(found.op, after.op) == [["a"], []]
