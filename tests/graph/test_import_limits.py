"""A graph is data: to import one runs nothing of a user's, and costs in proportion to its bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from measuring import instructions, peak

import dlbridge
import dlbridge.graph as tf
from dlbridge.graph.core import inference, opdef


def exported(build: Callable[[], Any]) -> Any:
    """Return the GraphDef of the operations that `build` makes."""
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


# ---- nothing runs --------------------------------------------------------------------------------


def test_a_function_is_not_called_for_a_static_shape() -> None:
    called = []

    def note(x: Any) -> Any:
        called.append(x)
        return x

    def build() -> None:
        shape = tf.py_func(note, [tf.constant([1, 2])], tf.int32, stateful=False)
        shape.set_shape([2])
        tf.reshape(tf.zeros([2]), shape)

    graph_def = exported(build)
    graph = tf.load_graph(graph_def)
    with graph.as_default():
        tf.import_graph_def(graph_def)
    assert not called


def test_a_wrapped_kernel_is_not_called_for_a_static_shape() -> None:
    called = []

    def double(x: Any) -> Any:
        called.append(x)
        return x * 2

    schema = "import_limits::double(x: i32[n]) -> i32[n]"
    kernel = dlbridge.wrap(double, schema, abi="python:numpy")

    def build() -> None:
        tf.reshape(tf.zeros([4]), tf.call(kernel, [tf.constant([1, 2])], tf.int32))

    tf.load_graph(exported(build))
    assert not called


def test_the_kernel_of_an_op_type_of_a_user_is_not_called_for_a_static_shape() -> None:
    called = []

    def same(node: Any, context: Any) -> Any:
        called.append(node)
        return lambda x: x

    if "ImportLimitsSame" not in opdef.names():
        tf.register_op(
            "ImportLimitsSame(x: int32) -> y: int32", shape=lambda c: [c.dims(0)], kernel=same
        )
    with tf.Graph().as_default() as graph:
        same_op = graph.create_op("ImportLimitsSame", [tf.constant([2, 2])])
        tf.reshape(tf.zeros([4]), same_op.outputs[0])
    tf.load_graph(graph.as_graph_def())
    assert not called


def test_only_op_types_of_ours_are_folded() -> None:
    """None that calls, draws random numbers, keeps state, or needs more than its inputs' size."""
    names = set(opdef.names())
    assert names >= inference.FOLDED
    assert not {"PyFunc", "PyFuncStateless", "DLBridge>Call", "Conv2D"} & inference.FOLDED
    assert not any(opdef.op_def(name).is_stateful for name in inference.FOLDED)


# ---- the cost is in proportion -------------------------------------------------------------------


def test_a_wide_dilation_is_not_computed_for_a_static_shape() -> None:
    """482 bytes once took 4 GiB: a convolution of few elements whose window is huge."""

    def build() -> None:
        image = tf.constant(1.0, shape=[1, 1, 1, 1])
        window = tf.constant(1.0, shape=[2, 2, 1, 1])
        padded = tf.nn.conv2d(image, window, [1, 1, 1, 1], "SAME", dilations=[1, 2**14, 2**14, 1])
        tf.reshape(tf.zeros([1]), tf.cast(tf.reshape(padded, [1]), tf.int32))

    graph_def = exported(build)
    tf.load_graph(graph_def)  # what is imported for the first time
    assert peak(lambda: tf.load_graph(graph_def), 2**24) < 2**24
    assert instructions(lambda: tf.load_graph(graph_def)) < 10**6


def grow(count: int) -> Any:
    """Return nodes of which each asks for the value of one wide node."""

    def build() -> None:
        wide = tf.stack([tf.constant(1, shape=[]) for _ in range(inference.MAX_ELEMENTS)])
        for _ in range(count):
            tf.fill([tf.reduce_max(wide)], 0)

    return exported(build)


@pytest.mark.full
def test_the_work_of_an_import_grows_with_the_number_of_nodes() -> None:
    """Not with its square: beyond the budget of the graph, a value is unknown until it runs."""

    graphs = grow(1000), grow(4000)
    tf.load_graph(graphs[0])
    small, large = (instructions(partial(tf.load_graph, each)) for each in graphs)
    assert large < 6 * small


LARGE = """
node { name: "shape" op: "Const" attr { key: "dtype" value { type: DT_INT32 } } attr { key: "value"
  value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 4194304 } } int_val: 1 } } } }
node { name: "zero" op: "Const" attr { key: "dtype" value { type: DT_INT32 } } attr { key: "value"
  value { tensor { dtype: DT_INT32 tensor_shape {} int_val: 0 } } } }
"""
FILL = """
node { name: "fill_%d" op: "Tile" input: "zero" input: "shape"
  attr { key: "T" value { type: DT_INT32 } } attr { key: "Tmultiples" value { type: DT_INT32 } } }
"""


@pytest.mark.full
def test_a_large_constant_costs_no_node_its_size() -> None:
    """A constant of 30 bytes may have 2**22 elements, and be an input of every node."""
    text = LARGE + "".join(FILL % i for i in range(100))

    def load(text: str) -> None:
        with suppress(ValueError):  # multiples for 2**22 dimensions may well be refused
            tf.load_graph(text)

    load(text)  # what is imported for the first time
    assert peak(partial(load, text), 2**21) < 2**21
    small, large = (
        instructions(partial(load, text.replace("4194304", size))) for size in ("4", "4194304")
    )
    assert large < 1.5 * small


def test_many_nodes_of_many_results_are_refused() -> None:
    """60 bytes make 2**16 results, so that 6 kB of such nodes once took a gigabyte."""

    def build() -> None:
        split = tf.split(tf.zeros([2**16]), 2**16)
        for _ in range(3):
            tf.split(split[0], 1)

    graph_def = exported(build)
    tf.load_graph(graph_def)  # one such node is fine
    (node,) = (node for node in graph_def.node if node.name == "split")
    for number in range(100):
        graph_def.node.add().CopyFrom(node)
        graph_def.node[-1].name = f"s{number}"

    def load() -> None:
        with pytest.raises(ValueError, match="results the graph has more than is allowed"):
            tf.load_graph(graph_def)

    assert peak(load, 2**25) < 2**25


def test_beyond_the_budget_a_shape_is_unknown_and_the_values_are_right() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        graph._folding.steps = -(2**40)
        dims = tf.constant([1, 2]) + tf.constant([1, 1])
        filled = tf.fill(dims, 7)
        assert not filled.shape.is_fully_defined()
        assert np.array_equal(session.run(filled), np.full((2, 3), 7))


def test_ordinary_graphs_stay_within_the_budget() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 8])
        for _ in range(2000):
            x = tf.reshape(x, tf.stack([tf.shape(x)[0], tf.reduce_prod([2, 4])]))
        assert x.shape.as_list() == [None, 8]
    assert graph._folding.steps > inference.STEPS_TO_BEGIN


def test_a_name_of_many_scopes_takes_memory_by_its_length() -> None:
    graph_def = tf.Graph().as_graph_def()
    graph_def.node.add(name="a/" * 30_000 + "b", op="NoOp")
    graph = tf.load_graph(graph_def)

    def load() -> None:
        with graph.as_default():
            tf.import_graph_def(graph_def, name="")

    most = 200 * len(graph_def.node[0].name) + 2**22
    assert peak(load, most) < most
    assert len(graph.get_operations()) > 1


def test_scopes_as_deep_as_a_name_are_drawn() -> None:
    with tf.Graph().as_default() as graph:
        for leaf in "bc":
            graph.create_op("NoOp", [], name="a/" * 3000 + leaf + "/")
    dot = graph.to_dot()
    assert dot.count("{") == dot.count("}") == 3001
    assert len(dot) < 2**20
