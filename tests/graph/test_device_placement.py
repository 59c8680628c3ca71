"""Devices of operations: of imported ones, and where a device is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from graph.small_graphs import exported

import dlbridge.graph as tf
from dlbridge.errors import FrameworkMissingError
from dlbridge.execution import backend
from dlbridge.execution.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_imports_are_placed_with_what_the_block_says() -> None:
    def build() -> None:
        with tf.device("/cpu:0"):
            x = tf.constant(1.0, name="x")
        with tf.colocate_with(x):
            tf.constant(2.0, name="y")
        tf.constant(3.0, name="z")

    written = exported(build)
    with tf.device("/gpu:2"):
        base = tf.constant(1.0, name="base")
    with tf.colocate_with(base), tf.device("/job:w"):
        found = tf.import_graph_def(written, return_elements=["x", "y", "z"])
    assert {op.device for op in found} == {"/device:GPU:2"}
    assert [op.colocation_groups() for op in found] == [[b"loc:@base"]] * 3


def test_imports_are_placed_with_operations_that_have_no_device() -> None:
    written = exported(lambda: tf.constant(3.0, name="z"))
    base = tf.constant(1.0, name="base")
    with tf.device("/job:w"), tf.colocate_with(base):
        (found,) = tf.import_graph_def(written, return_elements=["z"])
    assert (found.device, found.get_attr("_class")) == ("", [b"loc:@base"])


def test_a_missing_device_harms_only_what_needs_it() -> None:
    """In TensorFlow every run of the session fails."""
    with tf.device("/gpu:7"):
        far = tf.constant(1.0, name="far")
    near = tf.constant(2.0)
    with tf.Session() as session:
        assert session.run(near) == 2.0
        with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation far"):
            session.run(far)
        assert session.run(near) == 2.0


def test_cupy_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlbridge.frameworks.cupy import graph as cupy_graph

    cupy = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr(cupy_graph, "import_module", {"cupy": cupy}.__getitem__)
    with pytest.raises(FrameworkMissingError, match="needs a GPU"):
        backend.devices.__wrapped__("cupy")


def test_a_default_device_that_is_not_the_host_is_where_its_nodes_run(run_python) -> None:
    """JAX's default device is the GPU where there is one: here its second CPU stands for that."""
    pytest.importorskip("jax")
    run_python(
        """
        import jax, numpy as np
        import dlbridge.graph as tf
        from dlbridge.execution.backend import backend
        from dlbridge.frameworks.jax import graph as jax_graph

        devices, seen = jax.devices(), []
        backend("jax").default_device = lambda: devices[1]
        jit = jax.jit

        def watched(function):
            compiled = jit(function)
            def call(*arrays):
                results = compiled(*arrays)
                seen.extend(each.devices() for each in jax.tree.leaves((arrays, results)))
                return results
            return call

        jax_graph.jax.jit = watched
        graph = tf.Graph()
        with graph.as_default():
            x = tf.placeholder(tf.float32, [3])
            loose = tf.tanh(x) + tf.constant([1.0, 2.0, 3.0])
            with tf.device("/device:CPU:1"):
                placed = tf.tanh(x) + tf.constant([1.0, 2.0, 3.0])
        want = np.tanh(np.ones(3, np.float32)) + np.array([1, 2, 3], np.float32)
        feeds = [np.ones(3, np.float32), *(jax.device_put(np.ones(3, "f"), d) for d in devices)]
        with tf.Session(graph=graph, framework="jax") as session:
            for fed in feeds:
                for y in session.run([loose, placed], {x: fed}):
                    np.testing.assert_allclose(y, want, rtol=1e-6)
        assert seen and set(map(frozenset, seen)) == {frozenset({devices[1]})}, seen
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=3",
    ).check()
