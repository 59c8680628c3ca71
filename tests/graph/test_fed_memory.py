"""Memory that is fed or fetched: any layout goes in, and nothing that came out changes later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf

FRAMEWORKS = ["numpy", "torch", "jax"]
COUNT = 1_000_000


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def aligned(count: int) -> Any:
    """Return ones that JAX takes without a copy: they begin at a multiple of 64 bytes."""
    room = np.empty(count * 4 + 64, np.uint8)
    start = -room.ctypes.data % 64
    array = room[start : start + count * 4].view(np.float32)
    array[:] = 1
    return array


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_assigned_value_stays_when_the_memory_fed_changes_after_the_run(
    graph: tf.Graph, framework: Any, name: str, kind: str
) -> None:
    """JAX computes after a call has returned, and its arrays' `clone` shares their memory."""
    framework(name)
    x = tf.placeholder(tf.float32, [COUNT])
    variable = tf.Variable(np.zeros(COUNT, np.float32))
    slow = x
    for _ in range(20):
        slow = tf.minimum(tf.sin(slow) + x, 1.0)
    programs = {
        "assign": (variable.assign(x), 1),
        "slow assign": (variable.assign(slow), 1),
        "assign_add": (variable.assign_add(x), 2),
    }
    with tf.Session(framework=name) as session:
        session.run(tf.global_variables_initializer())
        for program, (result, expected) in programs.items():
            array = aligned(COUNT)
            fed = array if kind == "numpy" else framework("torch").from_numpy(array)
            session.run(result.op, {x: fed})
            array[:] = 8
            value = session.run(variable)
            assert {value.min(), value.max()} == {expected}, program


@pytest.mark.parametrize("copy", [True, False])
def test_a_result_in_jax_is_computed_when_the_run_returns(
    graph: tf.Graph, framework: Any, copy: bool
) -> None:
    framework("jax")
    x = tf.placeholder(tf.float32, [COUNT])
    y = x
    for _ in range(20):
        y = tf.minimum(tf.sin(y) + x, 1.0)
    with tf.Session(framework="jax") as session:
        array = aligned(COUNT)
        result = session.run(y, {x: array}, to="jax", copy=copy)
        array[:] = 8
        assert float(result.min()) == float(result.max()) == 1


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shape_that_was_fed_may_change_in_place_after_the_run(
    graph: tf.Graph, framework: Any, name: str
) -> None:
    """A program of JAX, made for the shape's values, is compiled again for another array."""
    framework(name)
    x, shape = tf.placeholder(tf.float32), tf.placeholder(tf.int32)
    y = tf.reshape(x + 1, shape)
    with tf.Session(framework=name) as session:
        fed = np.array([2, 3], np.int32)
        assert session.run(y, {x: np.zeros(6), shape: fed}).shape == (2, 3)
        fed[:] = 3, 2
        again = session.run(y, {x: np.zeros((1, 6)), shape: np.array([2, 3], np.int32)})
        assert again.shape == (2, 3)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "strided": lambda a: np.repeat(a, 4)[::4],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "misaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32),
    "big-endian": lambda a: a.astype(">f4"),
    "float64": lambda a: a.astype(np.float64),
    "list": lambda a: a.tolist(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_layout_is_fed(graph: tf.Graph, framework: Any, name: str, layout: str) -> None:
    framework(name)
    x = tf.placeholder(tf.float32, [6])
    y = tf.nn.relu(tf.sqrt((x * 2 + 1) * x) - 3)
    array = np.arange(6, dtype=np.float32)
    with tf.Session(framework=name) as session:
        result = session.run([y, tf.reduce_sum(y * x)], {x: LAYOUTS[layout](array)})
    expected = np.maximum(np.sqrt((array * 2 + 1) * array) - 3, 0)
    np.testing.assert_allclose(result[0], expected, rtol=1e-6)
    np.testing.assert_allclose(result[1], (expected * array).sum(), rtol=1e-6)


@pytest.mark.parametrize("as_", ["numpy", "torch"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_value_and_what_forwards_it_are_separate_arrays(
    graph: tf.Graph, framework: Any, name: str, as_: str
) -> None:
    framework(name)
    framework(as_)
    x = tf.placeholder(tf.float32, [2])
    y = x * 2
    with tf.Session(framework=name) as session:
        one, other = session.run([y, tf.identity(y)], {x: [1, 2]}, to=as_)
    one[0] = 9
    assert other.tolist() == [2, 4]
