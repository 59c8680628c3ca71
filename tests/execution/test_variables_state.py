"""The state of variables in sessions: memory shared with frameworks, threads, lifetime, order."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from measuring import instances

import dlbridge.graph as tf
from dlbridge.errors import ArgumentError
from dlbridge.execution.variables import VariableState
from dlbridge.proto.datatypes import float32, int32

FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.fixture(params=FRAMEWORKS)
def place(framework, request) -> str:
    framework(request.param)
    return request.param


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


def start(value: Any, place: str = "numpy") -> tuple[tf.Variable, tf.Session]:
    variable, session = tf.Variable(value, name="v"), tf.Session(framework=place)
    session.run(variable.initializer)
    return variable, session


# ---- shared memory -----------------------------------------------------------------------------


def test_memory_of_torch_is_seen_by_the_next_run_and_sees_assignments(
    graph, framework, place
) -> None:
    torch = framework("torch")
    weights = torch.zeros(3)
    v, session = start([1.0, 2.0, 3.0], place)
    v.share(weights, session)
    assert session.run(v).tolist() == [0.0, 0.0, 0.0]
    weights.add_(5.0)
    assert session.run(v * 2.0).tolist() == [10.0, 10.0, 10.0]
    assert session.run(v.assign_add([1.0, 2.0, 3.0])).tolist() == [6.0, 7.0, 8.0]
    assert weights.tolist() == [6.0, 7.0, 8.0]
    session.run(v.assign([0.0, 0.0, 1.0]))
    assert weights.tolist() == [0.0, 0.0, 1.0]
    session.run(tf.scatter_update(v, [0], [9.0]))
    assert weights.tolist() == [9.0, 0.0, 1.0]


def test_memory_of_numpy_is_seen_by_the_next_run_and_sees_assignments(graph, place) -> None:
    v, session = start([1.0, 2.0], place)
    array = np.array([[5.0, 0.0], [6.0, 0.0]], np.float32)[:, 0]  # with strides
    v.share(array, session)
    assert session.run(v).tolist() == [5.0, 6.0]
    array[1] = -1.0
    assert session.run(v).tolist() == [5.0, -1.0]
    session.run(v.initializer)
    assert array.tolist() == [1.0, 2.0]


def test_parameters_of_a_module_can_be_the_state_of_a_variable(graph, framework) -> None:
    torch = framework("torch")
    layer = torch.nn.Linear(2, 1, bias=False)
    v, session = start([[1.0, 2.0]], "torch")
    v.share(layer.weight, session)
    session.run(v.initializer)
    assert layer(torch.tensor([1.0, 10.0])).item() == 21.0
    with torch.no_grad():
        layer.weight *= 2.0
    assert session.run(v).tolist() == [[2.0, 4.0]]
    assert v.state(session, "torch").data_ptr() == layer.weight.data_ptr()


def test_a_reader_before_a_writer_in_one_run_keeps_what_it_read(graph, place) -> None:
    """The memory is shared, yet a run must be as if it were not."""
    v, session = start([1.0, 2.0], place)
    memory = np.array([1.0, 2.0], np.float32)
    v.share(memory, session)
    before = v.read_value()
    part = tf.reshape(v, [2, 1])
    with tf.control_dependencies([before, part]):
        assigned = v.assign([7.0, 8.0])
    with tf.control_dependencies([assigned.op]):
        total = before + tf.reshape(part, [2])
        after = v.read_value()
    got = session.run([before, total, after])
    assert [each.tolist() for each in got] == [[1.0, 2.0], [2.0, 4.0], [7.0, 8.0]]
    assert memory.tolist() == [7.0, 8.0]


def test_a_run_that_only_reads_does_not_copy_shared_memory(graph) -> None:
    v, session = start([1.0, 2.0])
    memory = np.array([1.0, 2.0], np.float32)
    v.share(memory, session)
    assert np.shares_memory(session.run(v.value(), copy=False), memory)


def test_a_fetched_value_does_not_follow_shared_memory(graph, place) -> None:
    v, session = start([1.0, 2.0], place)
    memory = np.array([1.0, 2.0], np.float32)
    v.share(memory, session)
    got, given = session.run(v), session.run(v, to="torch") if place == "torch" else None
    memory[:] = 0.0
    assert got.tolist() == [1.0, 2.0]
    assert given is None or given.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(2), "dtype float32, the array has float64"),
        (np.zeros(3, np.float32), r"shape \[2\], the array \[3\]"),
        (np.zeros((2, 1), np.float32), r"shape \[2\], the array \[2,1\]"),
    ],
)
def test_an_array_that_does_not_fit_is_not_shared(graph, array, reason) -> None:
    v, session = start([1.0, 2.0])
    with pytest.raises(ArgumentError, match=reason):
        v.share(array, session)
    assert session.run(v).tolist() == [1.0, 2.0]


def test_read_only_memory_is_not_shared(graph, framework) -> None:
    jax = framework("jax")
    v, session = start([1.0, 2.0])
    array = np.zeros(2, np.float32)
    array.flags.writeable = False
    for each in (array, jax.numpy.zeros(2)):
        with pytest.raises(ArgumentError, match="read-only"):
            v.share(each, session)


def test_shared_memory_keeps_its_shape_where_the_variable_would_change_it(graph) -> None:
    v = tf.Variable([1.0], validate_shape=False)
    with tf.Session() as session:
        v.share(np.zeros(1, np.float32), session)
        with pytest.raises(tf.errors.InvalidArgumentError, match="memory shared"):
            session.run(v.assign([1.0, 2.0]))


def test_shared_memory_stays_with_its_owner_when_the_session_ends(graph) -> None:
    memory = np.ones(2, np.float32)
    v, session = start([1.0, 2.0])
    v.share(memory, session)
    session.close()
    memory += 1.0
    assert memory.tolist() == [2.0, 2.0]


# ---- the state from outside --------------------------------------------------------------------


def test_the_state_is_the_memory_of_the_variable(graph, place) -> None:
    v, session = start([1.0, 2.0], place)
    first = v.state(session)
    assert first.tolist() == [1.0, 2.0]
    assert not first.flags.writeable
    session.run(v.assign([3.0, 4.0]))
    assert first.tolist() == [1.0, 2.0], "a value that was read never changes"
    assert v.state(session).tolist() == [3.0, 4.0]
    with session.as_default():
        assert v.state().tolist() == [3.0, 4.0]


def test_the_state_needs_a_session_of_the_graph(graph) -> None:
    v, session = start(1.0)
    for call in (v.state, lambda: v.share(np.zeros((), np.float32)), lambda: v.load(1.0)):
        with pytest.raises(ValueError, match="No default session"):
            call()
    with tf.Graph().as_default():
        other = tf.Variable(1.0)
        with pytest.raises(ValueError, match="not a variable of the session's graph"):
            other.state(session)
    with pytest.raises(ValueError, match="not a variable of the session's graph"):
        session.state_of(v.initial_value)
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        v.state(session)


def test_two_handles_of_one_shared_name_are_one_variable(graph) -> None:
    from dlbridge.graph.core.default_graph import apply

    _, session = start([1.0, 2.0])
    attrs = {"dtype": float32, "shape": [2], "shared_name": b"v"}
    other = apply("VarHandleOp", (), attrs).outputs[0]
    assert session.run(other).tolist() == [1.0, 2.0]
    wrong = apply("VarHandleOp", (), {**attrs, "dtype": int32}).outputs[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="with dtype int32"):
        session.run(wrong)
    in_container = apply("VarHandleOp", (), {**attrs, "container": b"c"}).outputs[0]
    with pytest.raises(tf.errors.FailedPreconditionError):
        session.run(in_container)


# ---- lifetime ----------------------------------------------------------------------------------


def test_closing_a_session_frees_the_values_of_its_variables(graph, framework) -> None:
    torch = framework("torch")
    v, session = start([1.0, 2.0])
    memory = torch.zeros(2)
    held = weakref.ref(memory)
    v.share(memory, session)
    session.run(v)
    del memory
    gc.collect()
    session.close()
    gc.collect()
    assert held() is None


def test_an_old_value_is_freed_with_its_last_reader(graph) -> None:
    v, session = start(np.zeros(1000, np.float32))
    value = weakref.ref(session.state_of(v).value)
    reader = v.state(session)
    session.run(v.initializer)
    assert value() is not None
    del reader
    assert value() is None
    session.close()


def test_destroying_a_variable_leaves_it_without_a_value(graph) -> None:
    from dlbridge.graph.core.default_graph import apply

    v, session = start(1.0)
    session.run(apply("DestroyResourceOp", (v.handle,)))
    assert not session.run(v.is_initialized())


# ---- threads -----------------------------------------------------------------------------------


def test_additions_of_several_threads_all_count(graph, place) -> None:
    v, session = start(np.zeros(4, np.int64), place)
    add = v.assign_add([1, 1, 1, 1], read_value=False)
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(50):
                session.run(add)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    assert session.run(v).tolist() == [200] * 4


def test_a_reader_never_sees_half_of_an_assignment(graph) -> None:
    v, session = start(np.zeros(100_000, np.float32))
    given = tf.placeholder(tf.float32, [100_000])
    assign = v.assign(given, read_value=False)
    done = threading.Event()
    torn: list[Any] = []

    def write() -> None:
        for number in range(100):
            session.run(assign, {given: np.full(100_000, number, np.float32)})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        got = session.run(v)
        if got.min() != got.max():
            torn.append(got)
    writer.join()
    assert not torn


# ---- order -------------------------------------------------------------------------------------


def test_unordered_operations_run_in_the_order_of_creation(graph, place) -> None:
    """TensorFlow promises nothing; a program that is read from the top has one meaning here."""
    v, session = start(1.0, place)
    first = v.value()
    double = v.assign(first * 2.0, read_value=False)
    second = v.value()
    add = v.assign_add(10.0, read_value=False)
    third = v.value()
    for fetches in ([third, second, first, add, double], [add, double, first, second, third]):
        session.run(v.initializer)
        got = [each for each in session.run(fetches) if each is not None]
        assert sorted(float(each) for each in got) == [1.0, 2.0, 12.0]


def test_values_cross_frameworks_between_assignments(graph, framework) -> None:
    framework("torch")
    framework("jax")
    v, session = start([1.0, 2.0])
    for name in ("torch", "jax", "numpy"):
        with tf.framework(name):
            changed = v.assign_add([1.0, 1.0])
        session.run(changed.op)
    assert session.run(v).tolist() == [4.0, 5.0]


# ---- VariableState by itself -------------------------------------------------------------------


def test_a_fresh_value_is_taken_and_others_are_copied() -> None:
    state = VariableState("v", float32, (2,))
    array = np.array([1.0, 2.0], np.float32)
    state.assign(array)
    assert not np.shares_memory(state.value, array)
    state.assign(array, is_fresh=True)
    assert state.value is array


def test_a_value_is_converted_for_a_framework_once(framework) -> None:
    framework("torch")
    state = VariableState("v", float32, None)
    state.assign(np.array([1.0, 2.0], np.float32))
    assert state.read("torch") is state.read("torch")
    assert state.read("torch").data_ptr() == state.value.ctypes.data


def test_a_dropped_session_frees_its_variables_at_once(place: str, graph: Any) -> None:
    """Without the cyclic collector, which would let the values of many sessions pile up."""

    def own(others: list[Any]) -> list[Any]:
        return [each for each in instances(VariableState) if all(each is not x for x in others)]

    variable = tf.get_variable("v", initializer=np.ones(3, np.float32))
    other = tf.get_variable("r", initializer=np.ones(3, np.float32), use_resource=True)
    fed = tf.placeholder(tf.float32, [3])
    total = tf.exp(variable + fed * 2.0) + tf.random_normal([3])
    change = variable.assign_add(fed)
    gc.collect()
    gc.disable()
    try:
        others = instances(VariableState)
        session = tf.Session(framework=place)
        session.run(tf.global_variables_initializer())
        session.run([total, change, other + fed], {fed: np.ones(3)})
        session.run({"a": total}, {fed: np.ones(3)}, trace=True)
        session.make_callable([variable, fed], [fed])(np.ones(3))
        assert len(own(others)) == 2
        del session
        assert not own(others)
    finally:
        gc.enable()
