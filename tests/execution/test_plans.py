"""Plans: what is placed where, what crosses, what is compiled, what is freed."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge._core import native
from dlbridge.execution import backend
from dlbridge.execution.placement import HOST


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    graph = tf.Graph()
    with graph.as_default():
        yield graph


def steps_of(session: tf.Session, fetches: Any, feeds: Any = None) -> list[tuple[str, list[str]]]:
    """Return framework and nodes of each step of a run, without what is fed and fetched."""
    trace = tf.Trace()
    session.run(fetches, feeds, trace=trace)
    steps = [(event["tid"].split()[0], event["args"]["nodes"]) for event in trace.events]
    return [(framework, nodes) for framework, nodes in steps if nodes]


# ---- placement ---------------------------------------------------------------------------------


def test_nodes_run_where_they_were_placed(framework: Any) -> None:
    framework("torch")
    framework("jax")
    seen: dict[str, str] = {}

    def look(name: str) -> Any:
        def function(x: Any) -> Any:
            seen[name] = type(x).__module__.partition(".")[0]
            return x

        return function

    x = tf.constant([1.0])
    nodes = []
    for name in ("numpy", "torch", "jax"):
        with tf.framework(name):
            nodes.append(tf.call(look(name), [x], tf.float32, stateful=True))
    nodes.append(tf.call(look("session"), [x], tf.float32, stateful=True))
    tf.Session(framework="torch").run(nodes)
    assert seen == {"numpy": "numpy", "torch": "torch", "jax": "jaxlib", "session": "torch"}


def test_strings_stay_in_numpy(framework: Any) -> None:
    framework("torch")
    x = tf.identity(tf.constant([b"x"]))
    y = tf.reshape(x, [1, 1])
    assert tf.Session(framework="torch").run(y).tolist() == [[b"x"]]


@pytest.mark.parametrize("home", ["numpy", "torch", "jax"])
def test_arithmetic_of_shapes_runs_on_the_host(home: str, framework: Any) -> None:
    framework(home)
    x = tf.placeholder(tf.float32, [None, None])
    shape = tf.shape(x)
    wanted = tf.stack([shape[0] * shape[1], 1])
    y = tf.reshape(x + 1.0, wanted)
    session = tf.Session(framework=home)
    assert session.run(y, {x: np.zeros((2, 3))}).shape == (6, 1)
    assert session.run(y, {x: np.zeros((4, 3))}).shape == (12, 1)
    if home == "torch":
        steps = steps_of(session, y, {x: np.zeros((4, 3))})
        assert {where for where, _ in steps} == {"numpy", "torch"}
        host = [names for where, names in steps if where == "numpy"]
        assert ["mul"] in host
        assert ["stack"] in host


def test_values_computed_from_data_stay_with_it(framework: Any) -> None:
    """Else all that leads to an axis or a size would run on the host."""
    framework("torch")
    x = tf.placeholder(tf.float32, [None])
    y = tf.reshape(x * 2.0, [tf.cast(tf.reduce_sum(x * 3.0), tf.int32)])
    session = tf.Session(framework="torch")
    assert session.run(y, {x: [1 / 3] * 1}).tolist() == pytest.approx([2 / 3])
    steps = steps_of(session, y, {x: [1 / 3]})
    assert steps
    assert all(where == "torch" for where, names in steps if names != ["Cast"])


def test_devices_are_chosen_by_name() -> None:
    assert backend.choose("", "numpy") == ""
    assert backend.choose("/device:CPU:0", "numpy") == "CPU:0"
    assert backend.choose("/device:CPU:*", "numpy") == "CPU:0"
    assert backend.choose("/job:localhost/replica:0/task:0/device:CPU:0", "numpy") == "CPU:0"
    assert backend.choose("/job:localhost", "numpy") == ""
    for missing in ("/device:GPU:0", "/device:CPU:1", "/job:w", "/task:1", "nonsense"):
        assert backend.choose(missing, "numpy") is None
    assert HOST.device == ""


# ---- crossing ----------------------------------------------------------------------------------


def test_a_value_crosses_once_for_each_framework(framework: Any) -> None:
    framework("torch")
    x = tf.placeholder(tf.float32, [None])
    y = x + 1.0
    with tf.framework("torch"):
        outputs = [tf.call(lambda a: a * 2, [y], tf.float32) for _ in range(3)]
    session = tf.Session()
    log: list[Any] = []
    session.run(outputs, {x: np.ones(100, np.float32)}, receipts=log)
    crossings = [(each.source, each.target) for each in log]
    assert crossings.count(("numpy", "torch")) == 1
    assert all(each.shared for each in log)


def test_constants_cross_once_for_each_session(framework: Any) -> None:
    framework("torch")
    c = tf.constant(np.ones(100, np.float32))
    x = tf.placeholder(tf.float32, [100])
    y, z = x + c, x * c
    session = tf.Session(framework="torch")
    before = native.live()["exports"]
    for fetch in (y, z, [y, z]):
        log: list[Any] = []
        session.run(fetch, {x: np.ones(100, np.float32)}, receipts=log)
        assert len([each for each in log if each.target == "torch"]) <= 2
        assert native.live()["exports"] == before + 1  # the constant, which torch shares


# ---- compiled runs -----------------------------------------------------------------------------


def test_a_jax_graph_is_one_program(framework: Any) -> None:
    framework("jax")
    x = tf.placeholder(tf.float32, [None, 4])
    y = tf.reshape(tf.nn.relu(x * 2.0 - 1.0), [-1])
    z = tf.reduce_sum(y) + tf.cast(tf.shape(x)[0], tf.float32)
    session = tf.Session(framework="jax")
    for rows in (2, 3):
        value = np.ones((rows, 4), np.float32)
        assert session.run(z, {x: value}) == rows * 5
    assert len(steps_of(session, z, {x: value})) == 1


@pytest.mark.parametrize("kind", ["int64", "float64", "uint64", "complex128"])
def test_jax_keeps_64_bit_types(kind: str, framework: Any) -> None:
    jax = framework("jax")
    x = tf.placeholder(kind, [None])
    c = tf.constant(np.array([2**40], kind))
    y = x + c
    value = np.array([2**41 + 1], kind)
    session = tf.Session(framework="jax")
    found = session.run(y, {x: value})
    assert found.dtype == kind
    assert found[0] == 2**41 + 1 + 2**40
    assert session.run(y, {x: value}, to="jax").dtype == kind
    assert not jax.config.jax_enable_x64


def test_untraceable_operations_divide_a_run(framework: Any) -> None:
    framework("jax")
    x = tf.placeholder(tf.float32, [None])
    y = tf.py_func(lambda a: a[a > 1], [x * 2.0], tf.float32)
    z = y + 1.0
    session = tf.Session(framework="jax")
    assert session.run(z, {x: [1, 0]}).tolist() == [3]
    assert [where for where, _ in steps_of(session, z, {x: [1, 0]})] == ["jax", "numpy", "jax"]


def test_a_function_that_looks_at_values_runs_all_the_same(framework: Any) -> None:
    framework("jax")
    x = tf.placeholder(tf.float32, [])
    y = tf.call(lambda a: a * 2 if a > 0 else a, [x * 1.0], tf.float32) + 1.0
    session = tf.Session(framework="jax")
    assert session.run(y, {x: 3}) == 7
    assert session.run(y, {x: -3}) == -2


def test_shapes_from_outside_are_part_of_a_program(framework: Any) -> None:
    framework("jax")
    x = tf.placeholder(tf.float32, [None])
    shape = tf.placeholder(tf.int32, [None])
    y = tf.reshape(x + 1.0, shape) * 2.0
    session = tf.Session(framework="jax")
    for wanted in ([2, 3], [3, 2], [6], [2, 3]):
        assert session.run(y, {x: np.zeros(6), shape: wanted}).shape == tuple(wanted)


def test_a_value_of_the_program_may_be_a_shape_after_it(framework: Any) -> None:
    framework("jax")
    x = tf.placeholder(tf.int32, [None])
    y = tf.reshape(tf.ones([6]) + 1.0, x * 1)
    session = tf.Session(framework="jax")
    assert session.run(y, {x: [2, 3]}).shape == (2, 3)
    assert session.run(y, {x: [3, 2]}).shape == (3, 2)


@pytest.mark.full
def test_torch_runs_are_compiled_on_request(framework: Any) -> None:
    """Only a missing C++ compiler skips this: what torch.compile fails at is ours until shown."""
    framework("torch")
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler")
    x = tf.placeholder(tf.float32, [None])
    y = tf.tanh(x * 2.0) + 1.0
    session = tf.Session(framework="torch", compile=True)
    value = np.linspace(0, 1, 5, dtype=np.float32)
    found = session.run(y, {x: value})
    np.testing.assert_allclose(found, np.tanh(value * 2) + 1, rtol=1e-6)
    assert [where for where, _ in steps_of(session, y, {x: value})] == ["torch"]


def test_numpy_runs_are_one_step_however_they_are_interleaved() -> None:
    x = tf.placeholder(tf.float32, [None])
    y = tf.identity(x * 2.0) + 1.0
    z = tf.identity(tf.exp(y))
    session = tf.Session()
    assert session.run(z, {x: [0, 0]}).tolist() == pytest.approx([np.e, np.e])
    assert len(steps_of(session, z, {x: [0, 0]})) == 1


@pytest.mark.parametrize("dims", [[], [3], [2, 2]], ids=str)
def test_small_nodes_of_one_shape_are_one_step_though_nothing_connects_them(dims: Any) -> None:
    xs = [tf.placeholder(tf.float32, dims) for _ in range(5)]
    ys = [x * 2.0 if i % 2 else -x for i, x in enumerate(xs)]
    feeds = {x: np.full(dims, i, np.float32) for i, x in enumerate(xs)}
    with tf.Session() as session:
        steps = [step for step, nodes in steps_of(session, ys, feeds) if nodes]
        results = session.run(ys, feeds)
    assert len(steps) == 1
    expected = [i * 2.0 if i % 2 else -i for i in range(5)]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, np.full(dims, wanted, np.float32))


@pytest.mark.parametrize("shapes", [([3], [4]), ([2000], [2000]), ([None], [None]), (None, None)])
def test_others_that_nothing_connects_are_steps_of_their_own(shapes: Any) -> None:
    """One run for all would be left to NumPy, or keep large values that are not needed yet."""
    x, y = (tf.placeholder(tf.float32, shape) for shape in shapes)
    feeds = {
        each: np.ones([n or 2 for n in shape or [2]], np.float32)
        for each, shape in zip((x, y), shapes, strict=True)
    }
    with tf.Session() as session:
        assert len([nodes for _, nodes in steps_of(session, [-x, -y], feeds) if nodes]) == 2


def test_a_node_alone_runs_in_loops_unless_it_is_known_to_be_large() -> None:
    small, unknown, large = (tf.placeholder(tf.float32, dims) for dims in ([3], None, [1 << 16]))
    for x, ran in ((small, [True]), (unknown, [True]), (large, [])):
        trace = tf.Trace()
        with tf.Session() as session:
            session.run(-x, {x: np.zeros(1 << 16 if x is large else 3)}, trace=trace)
        assert [e["args"]["loops"] for e in trace.events if "loops" in e["args"]] == ran


@pytest.mark.parametrize("first", [[2], []], ids=str)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_sum_of_several_shapes_is_refused_in_a_run_as_well(
    name: str, first: Any, framework: Any
) -> None:
    """Loops would broadcast them."""
    framework(name)
    x, y, z = (tf.placeholder(tf.float32) for _ in range(3))
    with tf.Session(framework=name) as session:
        total = tf.add_n([x * 2.0, y, z]) + 1.0
        assert session.run(total, {x: [1, 2], y: [3, 4], z: [5, 6]}).tolist() == [11, 15]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same size"):
            session.run(total, {x: np.ones(first), y: np.ones(first), z: [[1]]})
        assert session.run(total, {x: 1, y: 2, z: 3}) == 8


def test_a_fed_result_within_a_run_is_the_one_fed() -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x * 2.0
    with tf.control_dependencies([y]):
        z = y + 1.0
    assert tf.Session().run(z, {x: [1], y: [10]}).tolist() == [11]


def test_a_node_that_nobody_takes_runs_all_the_same() -> None:
    """Fetching an operation tells of its errors."""
    x, y = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    good, bad = x + x, tf.add(x, y)
    session = tf.Session()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        session.run([good.op, (bad * 2.0).op], {x: [1, 2], y: [1, 2, 3]})
    assert caught.value.op is bad.op


# ---- memory ------------------------------------------------------------------------------------


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[weakref.ref[Any]] = []
    counts: list[int] = []

    def make(x: Any) -> Any:
        result = x + 1
        alive.append(weakref.ref(result))
        counts.append(sum(each() is not None for each in alive))
        return result

    x = tf.constant(np.zeros(10, np.float32))
    for _ in range(6):
        x = tf.py_func(make, [x], tf.float32)
    session = tf.Session()
    value = session.run(x)
    assert value.tolist() == [6.0] * 10
    assert max(counts) == 2  # the argument and the result
    del value
    gc.collect()
    assert not any(each() is not None for each in alive)


def test_slots_are_used_again() -> None:
    x = tf.constant(np.zeros(10, np.float32))
    for _ in range(100):
        x = tf.reshape(x, [-1])
    session = tf.Session()
    session.run(x)
    (kept,) = session._plans.values()  # nothing public counts slots: they only cost memory
    plan = kept.plan
    assert plan.program.slot_count - len(plan.constants) < 5


def test_an_error_frees_what_was_computed() -> None:
    alive: list[weakref.ref[Any]] = []

    def make(x: Any) -> Any:
        result = x + 1
        alive.append(weakref.ref(result))
        return result

    def fail(x: Any) -> Any:
        raise ValueError("no")

    x = tf.py_func(make, [tf.constant(np.zeros(10, np.float32))], tf.float32)
    y = tf.py_func(fail, [x], tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.Session().run(x + y)
    gc.collect()
    assert alive
    assert alive[0]() is None


def test_a_large_result_is_handed_out_without_a_copy() -> None:
    made: list[int] = []

    def make() -> Any:
        result = np.ones(1 << 20, np.float32)
        made.append(result.ctypes.data)
        return result

    x = tf.py_func(make, [], tf.float32, stateful=True)
    assert tf.Session().run(x).ctypes.data == made[0]


# ---- constants of a GraphDef -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_constants_of_a_graphdef_run_in_loops_wherever_they_lie_in_it(count: int) -> None:
    """Their contents begin at any byte; loops take aligned arrays alone."""
    for shift in range(8):
        with tf.Graph().as_default() as source:
            x = tf.placeholder(tf.float64, [count], name="x" * (shift + 1))
            values = np.arange(count, dtype=np.float64)
            z = tf.add(tf.add(x, tf.constant(values)), 1.5, name="z")
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(source.as_graph_def().SerializeToString(), name="")
        trace = tf.Trace()
        with tf.Session(graph=graph) as session:
            result = session.run(z.name, {x.name: values}, trace=trace)
        np.testing.assert_array_equal(result, 2 * values + 1.5)
        ran = [event["args"]["loops"] for event in trace.events if "loops" in event["args"]]
        assert ran == [True]


def test_constants_of_a_graphdef_stay_read_only() -> None:
    with tf.Graph().as_default() as source:
        for i in range(8):
            tf.constant(np.arange(3.0), name=f"c{'c' * i}")
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(source.as_graph_def().SerializeToString(), name="")
    with tf.Session(graph=graph) as session:
        for i in range(8):
            value = session.run(f"c{'c' * i}:0", copy=False)
            assert not value.flags.writeable
            np.testing.assert_array_equal(value, np.arange(3.0))
