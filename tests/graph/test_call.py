"""Nodes that call functions: py_func, call, wrapped kernels, and what survives the wire."""

from __future__ import annotations

import gc
import random
import signal
import threading
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf

ERRORS: list[tuple[type[BaseException], str]] = [
    (ValueError, "InvalidArgumentError"),
    (TypeError, "InvalidArgumentError"),
    (StopIteration, "OutOfRangeError"),
    (MemoryError, "ResourceExhaustedError"),
    (NotImplementedError, "UnimplementedError"),
    (KeyError, "UnknownError"),
    (ZeroDivisionError, "UnknownError"),
]


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="module")
def axpy() -> Any:
    def axpy(x: Any, y: Any, *, alpha: float) -> Any:
        return x * alpha + y

    return dlbridge.wrap(
        axpy, "graphtest::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]",
        abi="python:numpy",
    )  # fmt: skip


def raising(error: type[BaseException]) -> Any:
    def fail(x: Any) -> Any:
        raise error("on purpose")

    return fail


# ---- py_func -----------------------------------------------------------------------------------


def test_py_func_has_tensorflows_form(graph, framework) -> None:
    """One dtype gives a Tensor, a list a list, an empty list the operation."""
    tf1 = framework("tensorflow").compat.v1

    def form(module: Any) -> list[Any]:
        with module.Graph().as_default():
            x = module.constant([1.0])
            one = module.py_func(lambda x: x, [x, 1], module.float32)
            two = module.py_func(lambda x: x, [x], [module.float32, module.int32], stateful=False)
            none = module.py_func(lambda x: None, [x], [])
            return [
                (one.name, one.op.type, one.shape.rank, [each.name for each in one.op.inputs]),
                ([each.name for each in two], two[0].op.type),
                (type(none).__name__, none.type),
                [each.name for each in one.op.get_attr("Tin")],
            ]

    assert form(tf) == form(tf1)


def test_py_func_gets_arrays_and_gives_them(graph) -> None:
    seen = []

    def function(x: Any, y: Any) -> Any:
        seen.append((type(x), x.dtype.name, y))
        return x + 1, "text", 3.5

    x = tf.constant([1.0, 2.0])
    out = tf.py_func(function, [x, b"a"], [tf.float32, tf.string, tf.float32])
    with tf.Session() as session:
        a, b, c = session.run(out)
    assert (a.tolist(), b, c) == ([2, 3], b"text", 3.5)
    assert seen == [(np.ndarray, "float32", b"a")]


@pytest.mark.parametrize(("error", "name"), ERRORS, ids=lambda x: getattr(x, "__name__", x))
def test_errors_get_the_classes_that_tensorflow_gives_them(
    graph, framework, error: type[BaseException], name: str
) -> None:
    tf1 = framework("tensorflow").compat.v1
    y = tf.py_func(raising(error), [1.0], tf.float32)
    with tf.Session() as session, pytest.raises(getattr(tf.errors, name), match="on purpose") as e:
        session.run(y)
    assert e.value.op is y.op
    with tf1.Graph().as_default(), tf1.Session() as session:
        theirs = tf1.py_func(raising(error), [1.0], tf1.float32)
        with pytest.raises(getattr(tf1.errors, name), match="on purpose"):
            session.run(theirs)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: np.float64(1.5), "0-th value returned by pyfunc_.* is float64, but expects float"),
        (lambda: "a", "but expects float"),
        (lambda: (1.0, 2.0), "returns 2 values, but expects to see 1 values"),
        (lambda: None, "returns 0 values, but expects to see 1 values"),
    ],
)
def test_results_must_be_what_was_promised(graph, function: Any, text: str) -> None:
    y = tf.py_func(function, [], tf.float32)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=text):
        session.run(y)


def test_a_run_within_a_function_works(graph) -> None:
    inner = tf.constant(2.0)
    with tf.Session() as session:
        y = tf.py_func(lambda x: x + session.run(inner), [1.0], tf.float32)
        assert session.run(y) == 3


def test_a_function_lives_as_long_as_its_graph() -> None:
    from dlbridge.graph.ops import call

    graph = tf.Graph()
    with graph.as_default():
        y = tf.py_func(lambda: 1.0, [], tf.float32)
    token = y.op.attrs["token"].decode()
    gc.collect()
    assert call.find_function(token).token == token
    del graph, y
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match=f"{token}' is not found"):
        call.find_function(token)


# ---- call --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_call_gives_a_function_the_arrays_of_its_framework(graph, framework, name: str) -> None:
    module = framework("jax.numpy" if name == "jax" else name)
    seen = []

    def double(x: Any) -> Any:
        seen.append(type(x).__module__.partition(".")[0])
        return module.concatenate([x, x])

    x = tf.placeholder(tf.float32, [None])
    y = tf.call(double, [x], tf.float32, name, shapes=[None])
    assert (y.op.name, y.op.framework, str(y.shape)) == ("double", name, "(?,)")
    with tf.Session() as session:
        assert session.run(y, {x: [1.0, 2.0]}).tolist() == [1, 2, 1, 2]
    assert set(seen) <= {name, "jaxlib"}


def test_call_refuses_results_of_other_dtypes(graph, framework) -> None:
    framework("torch")
    y = tf.call(lambda x: x.double(), [tf.constant([1.0])], tf.float32, "torch")
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"is torch.float64, but expects float"),
    ):
        session.run(y)


def test_call_takes_results_of_other_frameworks(graph, framework) -> None:
    framework("torch")
    y = tf.call(lambda x: np.ones(2, np.float32), [tf.constant([1.0])], tf.float32, "torch")
    with tf.Session() as session:
        assert session.run(y).tolist() == [1, 1]


def test_call_needs_dtypes_of_a_function(graph) -> None:
    with pytest.raises(TypeError, match="Tout is missing"):
        tf.call(lambda x: x, [1.0])
    with pytest.raises(TypeError, match="only kernels take scalars by name, got alpha"):
        tf.call(lambda x: x, [1.0], tf.float32, alpha=1)
    with pytest.raises(ValueError, match="'keras' runs no nodes"):
        tf.call(lambda x: x, [1.0], tf.float32, "keras")


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_kernel_knows_dtypes_and_shapes(graph, framework, axpy: Any, name: str) -> None:
    framework(name)
    x = tf.placeholder(tf.float32, [None])
    y = tf.call(axpy, [x, [1.0, 2.0]], framework=name, alpha=3.0)
    assert (y.dtype, y.shape.rank, y.op.name) == (tf.float32, 1, "axpy")
    with tf.Session() as session:
        assert session.run(y, {x: [1.0, 1.0]}).tolist() == [4, 5]


def test_a_kernel_checks_its_inputs_when_the_graph_is_built(graph, axpy: Any) -> None:
    with pytest.raises(TypeError, match="i32"):
        tf.call(axpy, [[1], [1.0]])
    with pytest.raises(ValueError, match="n"):
        tf.call(axpy, [[1.0], [1.0, 2.0]])
    with pytest.raises(TypeError, match=r"takes 2 tensors \(x, y\), got 1"):
        tf.call(axpy, [[1.0]])
    with pytest.raises(TypeError, match="Tout is"):
        tf.call(axpy, [[1.0], [1.0]], tf.int32)


def test_a_kernel_that_writes_is_refused(graph) -> None:
    writes = dlbridge.wrap(
        lambda x: None, "graphtest::writes(x!: f32[n]) -> ()", abi="python:numpy"
    )  # fmt: skip
    with pytest.raises(ValueError, match="writes to x"):
        tf.call(writes, [[1.0]])


# ---- on the wire -------------------------------------------------------------------------------


def test_kernels_and_functions_survive_export_and_import(graph, axpy: Any) -> None:
    """By the kernel's name, and by the token of a registered function."""
    register = tf.register_function(lambda x: x * 2, "graphtest.twice")
    x = tf.constant([1.0, 2.0])
    a = tf.call(axpy, [x, x], alpha=2.0, name="a")
    b = tf.call(register, [a], tf.float32, name="b")
    tf.py_func(register, [b], tf.float32, name="c")
    wire = graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default(), tf.Session() as session:
        (c,) = tf.import_graph_def(wire, return_elements=["c:0"], name="")
        assert session.run(c).tolist() == [12, 24]


def test_a_token_is_registered_once() -> None:
    tf.register_function(len, "graphtest.len")
    tf.register_function(len, "graphtest.len")
    with pytest.raises(ValueError, match=r"has the token 'graphtest.len'"):
        tf.register_function(max, "graphtest.len")


@pytest.mark.parametrize("threads", [-1, 0, 1])
def test_functions_are_called_in_turn_in_the_thread_of_the_run(threads: int) -> None:
    """Stateful ones in the order of their creation, whatever is fetched first."""
    calls: list[tuple[int, int]] = []

    def function(number: int) -> Any:
        def note(x: Any) -> Any:
            calls.append((number, threading.get_ident()))
            return x

        return note

    config = tf.ConfigProto(inter_op_parallelism_threads=threads)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        x = tf.placeholder(tf.float32, [])
        made = [tf.py_func(function(number), [x], tf.float32) for number in range(8)]
        session.run(made[::-1], {x: 1.0})
    assert calls == [(number, threading.get_ident()) for number in range(8)]


# ---- side by side ------------------------------------------------------------------------------

SIDE_BY_SIDE = tf.ConfigProto(inter_op_parallelism_threads=2)
PATIENCE = 20  # seconds; what is waited for comes at once


def test_functions_that_wait_for_each_other_finish_side_by_side(graph) -> None:
    """Also where the second one waits for a value, and the first is taken by others before it."""
    meet = threading.Barrier(2)

    def wait(x: Any) -> Any:
        meet.wait(PATIENCE)
        return x

    first = tf.py_func(wait, [1.0], tf.float32)
    taken = first * 2.0
    second = tf.py_func(wait, [tf.py_func(lambda: np.float32(3), [], tf.float32) + 1.0], tf.float32)
    with tf.Session(config=SIDE_BY_SIDE) as session:
        for _ in range(3):
            assert session.run([taken, second]) == [2, 4]


def test_side_by_side_control_dependencies_and_variables_keep_their_order(graph) -> None:
    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return x

    v = tf.get_variable("v", initializer=1.0, use_resource=True)
    before = tf.py_func(note, [v.read_value()], tf.float32)
    with tf.control_dependencies([tf.identity(before)]):
        changed = v.assign_add(1.0)
        changed = changed.op if hasattr(changed, "op") else changed
    with tf.control_dependencies([tf.group(changed)]):
        after = tf.py_func(note, [v.read_value()], tf.float32)
        changed_again = tf.assign_add(v, 5.0)
    with tf.control_dependencies([after, changed_again]):
        last = tf.py_func(note, [v.read_value()], tf.float32)
    with tf.Session(config=SIDE_BY_SIDE) as session:
        for i in range(20):
            seen.clear()
            session.run(v.initializer)
            assert session.run([last, after, before]) == [7, 2, 1], i
            assert seen == [1, 2, 7]


def test_no_more_functions_run_at_a_time_than_asked_for(graph) -> None:
    lock, running, most, pair = threading.Lock(), [0], [0], threading.Barrier(2)

    def work(x: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        pair.wait(PATIENCE)
        with lock:
            running[0] -= 1
        return x

    nodes = [tf.py_func(work, [float(i)], tf.float32) for i in range(8)]
    total = tf.add_n(nodes)
    with tf.Session(config=SIDE_BY_SIDE) as session:
        assert session.run([total, *nodes]) == [28, *range(8)]
    assert most[0] == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_side_by_side_ends_the_run(graph, error: type[BaseException]) -> None:
    release, later = threading.Event(), []

    def wait() -> Any:
        release.wait(PATIENCE)
        return np.float32(1)

    waiting = tf.py_func(wait, [], tf.float32)
    failing = tf.py_func(raising(error), [1.0], tf.float32)
    never = tf.py_func(lambda *x: later.append(x), [waiting, failing], [])
    expected = tf.errors.InvalidArgumentError if error is ValueError else error
    with tf.Session(config=SIDE_BY_SIDE) as session:
        with pytest.raises(expected, match="on purpose") as caught:
            session.run([waiting, failing, never])
        assert not release.is_set()  # nobody waited for the other function
        release.set()
        assert getattr(caught.value, "op", failing.op) is failing.op
        assert session.run(waiting) == 1
    assert not later


def test_a_signal_ends_a_run_side_by_side(graph) -> None:
    release, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        release.wait(PATIENCE)

    nodes = [tf.py_func(wait, [], []), tf.py_func(wait, [], [])]

    def interrupt() -> None:
        begun.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    # A shell starts what it runs in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with tf.Session(config=SIDE_BY_SIDE) as session:
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                session.run(nodes)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not release.is_set()
    release.set()
    sender.join()


def test_side_by_side_gives_what_one_after_another_gives(graph) -> None:
    """Graphs of functions, arithmetic and variables, by random edges."""
    choose = random.Random(0)
    v = tf.get_variable("v", initializer=1.0, use_resource=True)
    values: list[Any] = [tf.constant(1.0), v.read_value()]
    for _ in range(60):
        x, y = choose.choice(values), choose.choice(values)
        with tf.control_dependencies(choose.sample(values, choose.randint(0, 2))):
            kind = choose.randrange(4)
            if kind < 2:
                values.append(tf.py_func(lambda x, y: np.tanh(x - y), [x, y], tf.float32))
            elif kind == 2:
                values.append(tf.identity(x) * 0.5 + y)
            else:
                values.append(tf.assign_add(v, tf.tanh(x)))
    expected = None
    for config in (None, SIDE_BY_SIDE):
        with tf.Session(config=config) as session:
            session.run(v.initializer)
            found = [session.run([values[-1], values[20], *values[30:]]) for _ in range(10)]
        expected = expected or found
        assert found == expected
