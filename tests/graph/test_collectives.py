"""Collective operations in graphs of one process, and as GraphDefs; see also test_server.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply

OPS = tf.collective_ops


def test_a_group_of_one_member_needs_no_cluster() -> None:
    x = np.float32([1.5, -2.0])
    with tf.Graph().as_default(), tf.Session() as session:
        reduced = OPS.all_reduce(x, 1, 1, 1, "Max", "Div")
        gathered = OPS.all_gather(x, 1, 1, 2)
        second = apply(
            "CollectiveReduceV2", (x, 1, 1, 3, []), {"merge_op": "Add", "final_op": "Id"}
        ).outputs[0]
        for got in session.run([reduced, gathered, second]):
            np.testing.assert_array_equal(got, x)


def test_other_groups_need_one() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        keys = tf.placeholder(tf.int32, [])
        how = {"merge_op": "Add", "final_op": "Id"}
        for made in (
            OPS.all_reduce([1.0], 2, 1, 1),
            OPS.all_gather([1.0], 2, 1, 2),
            OPS.broadcast_send([1.0], [1], tf.float32, 2, 1, 3),
            OPS.broadcast_recv([1], tf.float32, 2, 1, 3),
            apply("CollectiveReduceV2", ([1.0], keys, 1, 3, []), how).outputs[0],
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"a tf\.train\.Server"):
                session.run(made, {keys: 2})


def test_static_shapes() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, None])
        assert OPS.all_reduce(x, 3, 1, 1).shape.as_list() == [2, None]
        assert OPS.all_gather(x, 3, 1, 2).shape.as_list() == [None, None]
        assert OPS.broadcast_recv([4, 1], tf.bool, 3, 1, 3).shape.as_list() == [4, 1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: OPS.all_reduce([1.0], 0, 1, 1), "`group_size` to all_reduce must be at least 1"),
        (lambda: OPS.all_gather([1.0], 0, 1, 1), "`group_size` to all_gather must be at least 1"),
        (lambda: OPS.broadcast_recv([1], tf.int32, 1, 1, 1), "broadcast_recv must be at least 2"),
        (lambda: OPS.broadcast_send([1.0], [2], tf.float32, 2, 1, 1), "to declared shape"),
        (
            lambda: OPS.broadcast_send(tf.constant([1.0]), [1], tf.int32, 2, 1, 1),
            "not equal to declared type",
        ),
    ],
)
def test_wrong_arguments_are_refused_as_by_tensorflow(call: Any, text: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=text):
        call()


def test_graph_defs_go_to_tensorflow_and_back(framework: Any) -> None:
    theirs = framework("tensorflow")
    with tf.Graph().as_default() as graph:
        OPS.all_reduce([1.0, 2.0], 2, 1, 1, "Mul", "Div", [0, 1])
        OPS.all_gather([1, 2], 2, 1, 2)
        OPS.broadcast_send([True], [1], tf.bool, 2, 1, 3)
        OPS.broadcast_recv([1], tf.bool, 2, 1, 3)
    data = tf.dump_graph(graph)
    with theirs.Graph().as_default() as other:
        message = theirs.compat.v1.GraphDef.FromString(data)
        theirs.import_graph_def(message, name="")
        back = other.as_graph_def().SerializeToString()
    copy = tf.load_graph(back)
    assert [op.type for op in copy.get_operations()] == [op.type for op in graph.get_operations()]
    for ours, op in zip(graph.get_operations(), copy.get_operations(), strict=True):
        if op.type.startswith("Collective"):
            for name, value in ours.attrs.items():
                assert op.attrs[name] == value, name
            assert op.outputs[0].shape == ours.outputs[0].shape
