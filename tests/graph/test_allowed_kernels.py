"""`allowed_kernels=`: which kernels and Python functions an imported graph may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge.proto import messages


@pytest.fixture(scope="module")
def token() -> str:
    """Return the token of a registered function."""
    tf.register_function(lambda x: x + 1, "allowed_add_one")
    return "allowed_add_one"


@pytest.fixture(scope="module")
def kernel() -> dlbridge.Kernel:
    """Return a kernel that a graph may name."""
    schema = "allowed::copy(x: f32[n]) -> f32[n]"
    return dlbridge.wrap(lambda x: np.copy(x), schema, abi="python:numpy")


def node(op: str, name: str, is_kernel: bool = False) -> tf.GraphDef:
    """Return a graph with one node that calls `name`."""
    graph = messages.GraphDef()
    made = graph.node.add(name="calls", op=op)
    if op.startswith("PyFunc"):
        made.attr["token"].s = name.encode()
    else:
        made.attr["f"].func.name = name
        made.attr["is_kernel"].b = is_kernel
    made.attr["Tin"].list.SetInParent()
    made.attr["Tout"].list.type.append(1)
    return graph


LOADERS = pytest.mark.parametrize("load", [tf.load_graph, tf.import_graph_def])
CALLS = pytest.mark.parametrize(
    ("op", "is_kernel"),
    [
        ("PyFunc", False),
        ("PyFuncStateless", False),
        ("DLBridge>Call", False),
        ("DLBridge>Call", True),
        ("DLBridge>StatefulCall", False),
        ("DLBridge>StatefulCall", True),
    ],
)


@CALLS
@LOADERS
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_graph_that_calls_anything_else_is_refused(
    load: Callable[..., Any], op: str, is_kernel: bool, as_bytes: bool
) -> None:
    """At import, before anything could run; the graph is as it was."""
    graph_def: Any = node(op, "other::kernel", is_kernel)
    graph_def = graph_def.SerializeToString() if as_bytes else graph_def
    with tf.Graph().as_default() as graph:
        for allowed, known in (((), "none"), (["my::kernel"], "'my::kernel'")):
            with pytest.raises(ValueError, match="allowed_kernels") as caught:
                load(graph_def, allowed_kernels=allowed)
            assert str(caught.value) == (
                f"{load.__name__}: node 'calls' ({op}): calls 'other::kernel', which "
                f"allowed_kernels does not have (it has {known}); add the name if the graph may "
                "run this function"
            )
        assert not graph.get_operations()


@CALLS
@LOADERS
def test_a_graph_that_calls_what_is_allowed_is_imported(
    load: Callable[..., Any], op: str, is_kernel: bool
) -> None:
    """Known or not: what is not known is an error of the run."""
    with tf.Graph().as_default():
        load(node(op, "my::kernel", is_kernel), allowed_kernels={"my::kernel"})
        load(node(op, "my::kernel", is_kernel), allowed_kernels=None)
        load(node(op, "my::kernel", is_kernel))


def test_allowed_calls_run(token: str, kernel: dlbridge.Kernel) -> None:
    """Kernels by the names of their schemas, functions by their tokens."""
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0])
        copied = tf.call(kernel, [x], framework="numpy")
        tf.py_func(lambda x: x, [copied], tf.float32, name="result")
    graph_def = graph.as_graph_def()
    (called,) = [each for each in graph_def.node if each.name == "result"]
    called.attr["token"].s = token.encode()
    again = tf.load_graph(graph_def, allowed_kernels=["allowed::copy", token])
    with tf.Session(graph=again) as session:
        assert session.run("result:0").tolist() == [2, 3]
    with pytest.raises(ValueError, match="calls 'allowed::copy'"):
        tf.load_graph(graph_def, allowed_kernels=[token])
    with pytest.raises(ValueError, match=f"calls '{token}'"):
        tf.load_graph(graph_def, allowed_kernels=["allowed::copy"])


@LOADERS
@pytest.mark.parametrize("allowed", ["my::kernel", b"my::kernel", [b"my::kernel"], [None]])
def test_allowed_kernels_are_names(load: Callable[..., Any], allowed: Any) -> None:
    """One text would allow every name that it contains."""
    with tf.Graph().as_default(), pytest.raises(TypeError, match="must be a list of names"):
        load(messages.GraphDef(), allowed_kernels=allowed)


def test_a_graph_without_calls_needs_no_permission() -> None:
    """Our op types are no functions of anybody."""
    with tf.Graph().as_default() as graph:
        tf.add(tf.constant([1.0]), 2.0)
    again = tf.load_graph(graph.as_graph_def(), allowed_kernels=())
    assert len(again.get_operations()) == len(graph.get_operations())


@LOADERS
def test_malformed_names_are_refused_as_ever(load: Callable[..., Any]) -> None:
    """An attribute of the wrong kind, or none."""
    wrong, missing = node("DLBridge>Call", "x"), node("PyFunc", "x")
    wrong.node[0].attr["f"].s = b"x"
    del missing.node[0].attr["token"]
    for graph_def in (wrong, missing):
        with tf.Graph().as_default(), pytest.raises(ValueError, match="attribute"):
            load(graph_def, allowed_kernels=())


def test_calls_of_mpi_are_allowed_by_name() -> None:
    """Other processes wait for them."""
    graph = messages.GraphDef()
    made = graph.node.add(name="calls", op="DLBridge>Mpi", input=["x"])
    for name, value in (("call", b"allreduce"), ("op", b"sum")):
        made.attr[name].s = value
    made.attr["root"].i = made.attr["comm"].i = 0
    source = graph.node.add(name="x", op="Placeholder")
    for attrs, name in ((made.attr, "T"), (source.attr, "dtype")):
        attrs[name].type = 1
    with pytest.raises(ValueError, match=r"calls 'mpi\.allreduce', which allowed_kernels"):
        tf.load_graph(graph, allowed_kernels=())
    tf.load_graph(graph, allowed_kernels=["mpi.allreduce"])
