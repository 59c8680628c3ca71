"""Graph sessions on /device:GPU:0 in each framework that has one."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge import from_dlpack, to_numpy

pytestmark = pytest.mark.gpu

NAMES = ("torch", "cupy", "jax")


def model(device: str = "/device:GPU:0"):
    """Return placeholder and result of a small network, on one device."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(device):
        x = tf.placeholder(tf.float32, [None, 8], name="x")
        weights = tf.constant(np.arange(32, dtype=np.float32).reshape(8, 4) / 16)
        y = tf.nn.relu(tf.matmul(x, weights) - 3.0)
        y = tf.reduce_sum(y * y, axis=1) + 1.0
    return graph, x, y


def expected(x: np.ndarray) -> np.ndarray:
    y = np.maximum(x @ (np.arange(32, dtype=np.float32).reshape(8, 4) / 16) - 3.0, 0)
    return (y * y).sum(axis=1) + 1.0


def rows(count: int = 5) -> np.ndarray:
    return (np.arange(count * 8, dtype=np.float32).reshape(count, 8) % 5) / 4


@pytest.mark.parametrize("name", NAMES)
def test_nodes_run_on_the_gpu(name, load):
    load(name)
    graph, x, y = model()
    with tf.Session(graph=graph, framework=name) as session:
        for count in (1, 5, 64):
            got = session.run(y, {x: rows(count)})
            np.testing.assert_allclose(got, expected(rows(count)), rtol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_feeds_and_fetches_may_stay_on_the_gpu(name, load):
    framework = load(name)
    graph, x, y = model()
    fed = framework.put(rows())
    with tf.Session(graph=graph, framework=name) as session:
        got = session.run(y, {x: fed}, to=name)
    assert str(from_dlpack(got).device) == "cuda:0"
    np.testing.assert_allclose(to_numpy(got, device="cpu"), expected(rows()), rtol=2e-3)


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_values_go_between_frameworks_on_the_gpu_without_a_copy(first, second, load):
    if first == second:
        pytest.skip("one framework alone shares nothing")
    load(first), load(second)
    graph = tf.Graph()
    with graph.as_default(), tf.device("/device:GPU:0"):
        x = tf.placeholder(tf.float32, [None, 8])
        with tf.framework(first):
            a = x * 2.0
        with tf.framework(second):
            b = tf.tanh(a + 1.0)
        with tf.framework(first):
            c = b - a
    log: list[dlbridge.Receipt] = []
    with tf.Session(graph=graph) as session:
        got = session.run(c, {x: rows()}, receipts=log)
    np.testing.assert_allclose(got, np.tanh(rows() * 2 + 1) - rows() * 2, rtol=2e-3, atol=1e-5)
    between = [each for each in log if {each.source, each.target} == {first, second}]
    assert between
    assert all(each.shared for each in between), between


@pytest.mark.parametrize("name", NAMES)
def test_values_cross_between_the_cpu_and_the_gpu(name, load):
    load(name)
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None, 8])
        with tf.device("/device:CPU:0"), tf.framework("numpy"):
            a = x + 1.0
        with tf.device("/device:GPU:0"), tf.framework(name):
            b = a * a
        with tf.device("/device:CPU:0"), tf.framework("numpy"):
            c = b - x
    with tf.Session(graph=graph) as session:
        got = session.run(c, {x: rows()})
    np.testing.assert_allclose(got, (rows() + 1) ** 2 - rows(), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_variables_live_on_the_gpu(name, load):
    load(name)
    graph = tf.Graph()
    with graph.as_default(), tf.device("/device:GPU:0"):
        state = tf.Variable(np.zeros(4, np.float32), name="state")
        step = state.assign_add(np.arange(4, dtype=np.float32))
    with tf.Session(graph=graph, framework=name) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        assert session.run(state).tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_device_that_is_not_there_is_named(load):
    load("torch")
    graph, x, y = model("/device:GPU:99")
    with (
        tf.Session(graph=graph, framework="torch") as session,
        pytest.raises(Exception, match="GPU:99"),
    ):
        session.run(y, {x: rows()})
