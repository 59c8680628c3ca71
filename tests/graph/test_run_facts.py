"""Runs, attacked: what is fed and fetched stays whole, plans stay true, numbers are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.errors import FrameworkMissingError
from dlbridge.execution import devices
from dlbridge.graph.core.default_graph import apply

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


# ---- what is fed -------------------------------------------------------------------------------


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
        result = session.run(y, {x: array}, as_="jax", copy=copy)
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


# ---- what is fetched ---------------------------------------------------------------------------


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
        one, other = session.run([y, tf.identity(y)], {x: [1, 2]}, as_=as_)
    one[0] = 9
    assert other.tolist() == [2, 4]


def test_keys_of_dicts_that_are_equal_come_back_as_they_went(graph: tf.Graph) -> None:
    a = tf.constant(1.0)
    with tf.Session() as session:
        for key in (1, True, 1.0):
            (found,) = session.run({key: a})
            assert type(found) is type(key)


# ---- plans -------------------------------------------------------------------------------------


def test_what_was_fetched_before_may_be_excluded(graph: tf.Graph) -> None:
    a = tf.constant(1.0)
    with tf.Session() as session:
        assert session.run(a) == 1
        graph.prevent_fetching(a.op)
        with pytest.raises(ValueError, match="not fetchable"):
            session.run(a)


def test_set_shape_that_adds_nothing_keeps_plans(graph: tf.Graph) -> None:
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as session:
        session.run(x, {x: [1, 2]})
        plans = dict(session._plans)
        x.set_shape([2])
        session.run(x, {x: [1, 2]})
        assert session._plans == plans


def test_programs_of_jax_for_many_shapes_are_forgotten(
    graph: tf.Graph, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds more than a megabyte, and jax.jit keeps thousands."""
    jax = framework("jax")
    from dlbridge.frameworks.jax import graph_runs as jax_runs

    made = []

    def jit(function: Any) -> Any:
        made.append(jax.jit(function))
        return made[-1]

    monkeypatch.setattr(jax_runs, "SHAPES_KEPT", 3)
    monkeypatch.setattr(jax_runs, "jax", SimpleNamespace(jit=jit, numpy=jax.numpy))
    x = tf.placeholder(tf.float32, [None])
    y = tf.nn.relu(x - 2)
    with tf.Session(framework="jax") as session:
        for count in [*range(1, 8), 2, 2]:
            result = session.run(y, {x: np.arange(count)})
            assert result.tolist() == [max(i - 2, 0) for i in range(count)]
        sizes = [each._cache_size() for each in made]
    assert sizes == [4, 4, 1]


# ---- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_integers_are_raised_to_any_power(
    graph: tf.Graph, framework: Any, name: str, dtype: str
) -> None:
    """`jax.numpy.power` takes six bits of an exponent."""
    framework(name)
    x, y = np.meshgrid(np.array([-3, -1, 0, 1, 2, 3], dtype), np.array([0, 1, 63, 64, 127], dtype))
    width = np.dtype(dtype).itemsize * 8
    exact = [int(a) ** int(b) for a, b in zip(x.ravel(), y.ravel(), strict=True)]
    wrapped = [(n + (1 << width - 1)) % (1 << width) - (1 << width - 1) for n in exact]
    with tf.Session(framework=name) as session:
        assert session.run(tf.pow(x, y)).ravel().tolist() == wrapped


@pytest.mark.parametrize("op", ["LeakyRelu", "Selu", "Elu", "Softplus", "Softsign", "Relu6"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_activations_keep_bfloat16(graph: tf.Graph, framework: Any, name: str, op: str) -> None:
    framework(name)
    x = tf.placeholder(tf.bfloat16, [3])
    with tf.Session(framework=name) as session:
        result = session.run(apply(op, [x], {}, None).outputs[0], {x: [-1, 0, 1]})
    assert result.dtype == tf.bfloat16.as_numpy_dtype


def test_attributes_are_floats_of_32_bits(graph: tf.Graph) -> None:
    """A GraphDef holds no more: a graph must compute the same before and after its export."""
    x = tf.constant([-1.0], tf.float64)
    for slope in (tf.nn.leaky_relu(x), tf.nn.leaky_relu(x, 0.3)):
        alpha = slope.op.get_attr("alpha")
        assert alpha == float(np.float32(alpha))
    assert np.float32(0.2) == apply("LeakyRelu", [x], {}, None).get_attr("alpha")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_bits_are_counted(graph: tf.Graph, framework: Any, name: str) -> None:
    framework(name)
    x = tf.constant([0, 1, -1, 127, -128], tf.int8)
    with tf.Session(framework=name) as session:
        (counts,) = session.run(apply("PopulationCount", [x], {}, None).outputs)
    assert counts.tolist() == [0, 1, 8, 7, 1]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_special_functions_have_limits(graph: tf.Graph, framework: Any, name: str) -> None:
    framework(name)
    x = tf.constant([np.inf, -np.inf, -1, np.nan], tf.float64)
    with tf.Session(framework=name) as session:
        result = session.run(tf.digamma(x))
        np.testing.assert_array_equal(result, [np.inf, np.nan, np.nan, np.nan])
        assert session.run(tf.lgamma(x))[:3].tolist() == [np.inf] * 3


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_quotient_of_integers_that_is_no_integer_is_refused(
    graph: tf.Graph, framework: Any, name: str
) -> None:
    """TensorFlow declares RealDiv for integers, and has no kernel for them."""
    framework(name)
    x = tf.constant([1, 2])
    quotient = apply("RealDiv", [x, x], {}, None)
    half = apply("RealDiv", [tf.constant([1.0]), tf.constant([2.0])], {}, None).outputs[0]
    with tf.Session(framework=name) as session:
        with pytest.raises(tf.errors.UnimplementedError, match="truediv"):
            session.run(quotient)
        assert session.run(half).tolist() == [0.5]


# ---- words and places --------------------------------------------------------------------------


def test_text_and_bytes_make_one_constant(graph: tf.Graph) -> None:
    """NumPy would read bytes next to a str as ASCII."""
    with tf.Session() as session:
        found = session.run(tf.constant([["x", b"\xff"], ["é", b"c\0"]]))
    assert found.tolist() == [[b"x", b"\xff"], [b"\xc3\xa9", b"c\0"]]


def test_cupy_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr(devices, "import_module", {"cupy": cupy}.__getitem__)
    with pytest.raises(FrameworkMissingError, match="needs a GPU"):
        devices.devices.__wrapped__("cupy")
