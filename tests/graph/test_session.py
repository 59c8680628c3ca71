"""Sessions: their life, errors of operations, threads, callables."""

from __future__ import annotations

import gc
import itertools
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from measuring import taken

import dlbridge.graph as tf
from dlbridge._core import native
from dlbridge.graph.session import session as sessions
from dlbridge.graph.session.session import PLANS_KEPT


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    graph = tf.Graph()
    with graph.as_default():
        yield graph


# ---- life --------------------------------------------------------------------------------------


def test_the_classic_first_session(graph: tf.Graph) -> None:
    a = tf.constant(3.0, dtype=tf.float32)
    b = tf.constant(4.0)
    total = a + b
    assert str(a) == 'Tensor("Const:0", shape=(), dtype=float32)'
    assert str(b) == 'Tensor("Const_1:0", shape=(), dtype=float32)'
    assert str(total) == 'Tensor("add:0", shape=(), dtype=float32)'
    value = tf.Session().run(total)
    assert value == 7.0
    assert type(value) is np.float32


def test_a_with_block_makes_session_and_graph_the_defaults() -> None:
    graph = tf.Graph()
    before = tf.get_default_graph()
    with tf.Session(graph=graph) as session:
        assert tf.get_default_session() is session
        assert tf.get_default_graph() is graph
        assert tf.constant(2.0).eval() == 2
        assert tf.no_op().run() is None
    assert tf.get_default_session() is None
    assert tf.get_default_graph() is before


def test_the_end_of_a_with_block_closes(graph: tf.Graph) -> None:
    c = tf.constant(1)
    with tf.Session() as session:
        call = session.make_callable(c)
        assert session.run(c) == call() == 1
    for use in (lambda: session.run(c), call, lambda: session.run([c])):
        with pytest.raises(RuntimeError, match=r"Attempted to use a closed Session\."):
            use()
    session.close()


def test_as_default_does_not_close(graph: tf.Graph) -> None:
    c = tf.constant(1)
    session = tf.Session()
    with session.as_default() as found:
        assert found is session is tf.get_default_session()
        assert c.eval() == 1
    assert session.run(c) == 1


def test_blocks_nest(graph: tf.Graph) -> None:
    outer, inner = tf.Session(), tf.Session()
    with outer:
        with inner:
            assert tf.get_default_session() is inner
        assert tf.get_default_session() is outer
    first, second = tf.Session().as_default(), tf.Session().as_default()
    first.__enter__()
    second.__enter__()
    with pytest.raises(AssertionError, match="Nesting violated"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)


def test_an_interactive_session_is_the_default_until_it_is_closed(graph: tf.Graph) -> None:
    session = tf.InteractiveSession()
    try:
        assert tf.constant(2.0).eval() == 2
    finally:
        session.close()
    assert tf.get_default_session() is None
    with pytest.raises(ValueError, match="No default session"):
        tf.constant(2.0).eval()


def test_without_a_session_nothing_is_evaluated(graph: tf.Graph) -> None:
    with pytest.raises(ValueError, match=r"Cannot evaluate tensor using `eval\(\)`"):
        tf.constant(1).eval()
    with pytest.raises(ValueError, match=r"Cannot execute operation using `run\(\)`"):
        tf.no_op().run()


def test_the_default_session_must_be_of_the_graph(graph: tf.Graph) -> None:
    c = tf.constant(1)
    with (
        tf.Session(graph=tf.Graph()),
        pytest.raises(ValueError, match="its graph is different"),
    ):
        c.eval()
    assert c.eval(session=tf.Session(graph=graph)) == 1


def test_an_empty_graph_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="graph is empty"):
        tf.Session(graph=tf.Graph()).run([])


def test_a_graph_may_grow_between_runs(graph: tf.Graph) -> None:
    session = tf.Session()
    x = tf.constant(1.0)
    for count in range(2, 6):
        x = x + 1.0
        assert session.run(x) == count


def test_arguments_are_checked(graph: tf.Graph) -> None:
    with pytest.raises(TypeError, match="graph must be"):
        tf.Session(graph=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="runs no nodes"):
        tf.Session(framework="fortran")
    with pytest.raises(tf.errors.NotFoundError, match=r"make a tf.train.Server first"):
        tf.Session("grpc://there")


def test_a_session_forgets_plans_when_there_are_too_many(graph: tf.Graph) -> None:
    class Key:
        """What a plan keeps: it stands in the structure that is fetched."""

    session = tf.Session()
    c = tf.constant(1)
    keys = weakref.WeakSet()
    for _ in range(PLANS_KEPT + 5):
        key = Key()
        keys.add(key)
        session.run({key: c})
    del key
    gc.collect()
    assert 0 < len(keys) < PLANS_KEPT


def test_plans_of_a_growing_graph_are_bounded_by_their_nodes(
    graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of a program that adds to its graph needs a plan of its own, larger and larger."""
    monkeypatch.setattr(sessions, "NODES_KEPT", 500)
    session = tf.Session()
    y = x = tf.placeholder(tf.float32, [2])
    kept = []
    for count in range(1, 61):
        y = tf.reduce_sum(y) * 0.5 + tf.ones([2])
        assert session.run(y, {x: [0.0, 0.0]}).tolist() == [float(count)] * 2
        plans = [each.plan for each in session._plans.values()]
        kept.append(sum(len(step.nodes) for plan in plans for step in plan.steps))
    assert max(kept) <= sessions.LARGEST_KEPT * 60 * 4
    assert any(after < before for before, after in pairwise(kept)), "plans were dropped"
    small = [tf.constant(float(i)) + 1.0 for i in range(20)]
    session._forget()
    for each in small * 2:
        session.run(each)
    assert len(session._plans) == 20, "small ones stay"


def test_a_plan_takes_little_memory_for_each_node(graph: tf.Graph) -> None:
    """NODES_KEPT of them stay, so that a kilobyte more for each is 50 MB of a growing graph."""
    x = tf.placeholder(tf.float32, [4])
    last = []
    y = x
    for _ in range(400):
        y = tf.add(y, 1.0)
        last.append(y)
    session = tf.Session()
    session.run(last[200:], {x: np.ones(4, np.float32)})  # what all plans share is made

    def plan() -> None:
        for each in last[200::10]:
            session.run(each, {x: np.ones(4, np.float32)})

    nodes = session._nodes_kept
    memory = taken(plan)
    assert len(session._plans) > 20
    assert memory / (session._nodes_kept - nodes) < 800


def test_a_closed_session_lets_go_of_everything(framework: Any) -> None:
    framework("torch")
    graph = tf.Graph()
    with graph.as_default():
        y = tf.constant(np.ones(1000)) + 1.0
    before = native.live()
    session = tf.Session(graph=graph, framework="torch")
    session.run(y)
    assert native.live() != before  # torch has the memory of the constant
    session.close()
    gc.collect()
    assert native.live() == before


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_is_dropped_lets_go_of_its_variables_at_once(
    name: str, fails: bool, framework: Any
) -> None:
    """Without `close`, and without the collector: nothing that a run makes refers back to it."""
    framework(name)
    graph = tf.Graph()
    with graph.as_default():
        v = tf.get_variable("v", initializer=np.ones(1000, "f4"))
        w = tf.get_variable("w", initializer=np.ones(1000, "f4"), use_resource=True)
        y, changed = v * 2.0 + w, tf.assign_add(v, w)
        raising = tf.py_func(lambda x: 1 / 0, [y], tf.float32)
    gc.collect()
    gc.disable()
    try:
        session = tf.Session(graph=graph, framework=name)
        session.run([v.initializer, w.initializer])
        assert session.run(changed)[0] == 2
        assert session.make_callable(y)()[0] == 5
        states = session._runtime.resources.values()
        values = [weakref.ref(state.value) for state in states]
        del states
        if fails:
            with pytest.raises(tf.errors.UnknownError):
                session.run(raising)
        watch = weakref.ref(session)
        del session
        assert watch() is None
        assert [value() for value in values] == [None, None]
    finally:
        gc.enable()


# ---- callables ---------------------------------------------------------------------------------


def test_callables_take_values_by_position(graph: tf.Graph) -> None:
    a, b = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    session = tf.Session()
    subtract = session.make_callable({"difference": a - b}, [b, a])
    assert subtract(1, 5) == {"difference": 4}
    both = session.make_callable([a, b], [(a, b)])
    assert both((1, 2)) == [1, 2]


@pytest.mark.parametrize("values", [(), (1, 2)])
def test_another_number_of_values_is_a_type_error(graph: tf.Graph, values: Any) -> None:
    """TensorFlow ignores what is too much, and complains later of what is missing."""
    a = tf.placeholder(tf.float32)
    call = tf.Session().make_callable(a + a, [a])
    with pytest.raises(TypeError, match="takes 1 values"):
        call(*values)


def test_a_feed_list_is_a_list(graph: tf.Graph) -> None:
    a = tf.placeholder(tf.float32)
    with pytest.raises(TypeError, match="feed_list must be a list or tuple"):
        tf.Session().make_callable(a, a)


# ---- errors ------------------------------------------------------------------------------------


def test_an_unfed_placeholder_says_so(graph: tf.Graph) -> None:
    p = tf.placeholder(tf.float32, [None, 3], name="p")
    y = p + p
    session = tf.Session()
    for fetch in (p, y, p.op):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(fetch)
        error = caught.value
        assert (
            "You must feed a value for placeholder tensor 'p' with dtype float and shape [?,3]"
            in str(error)
        )
        assert error.op is p.op
        assert error.error_code == 3
        assert error.node_def.name == "p"
    assert session.run(y, {p: [[1, 2, 3]]}).tolist() == [[2, 4, 6]]


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (ValueError, tf.errors.InvalidArgumentError, 3),
        (TypeError, tf.errors.InvalidArgumentError, 3),
        (StopIteration, tf.errors.OutOfRangeError, 11),
        (MemoryError, tf.errors.ResourceExhaustedError, 8),
        (NotImplementedError, tf.errors.UnimplementedError, 12),
        (KeyError, tf.errors.UnknownError, 2),
        (RuntimeError, tf.errors.UnknownError, 2),
    ],
)
def test_errors_of_python_functions_have_tensorflows_class(
    graph: tf.Graph, raised: type[Exception], kind: type[Exception], code: int
) -> None:
    def fail(_: Any) -> Any:
        raise raised("so it is")

    y = tf.py_func(fail, [tf.constant(1.0)], tf.float32, name="f")
    session = tf.Session()
    with pytest.raises(kind, match=f"{raised.__name__}.*so it is") as caught:
        session.run(y)
    assert caught.value.error_code == code  # type: ignore[attr-defined]
    assert caught.value.op is y.op  # type: ignore[attr-defined]
    assert type(caught.value.__cause__) is raised
    assert session.run(tf.constant(1)) == 1


CLASSES = sorted(
    [tf.errors.OpError, *tf.errors.OpError.__subclasses__()],
    key=lambda each: (each.code, each.__name__),
)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_of_tensorflow_that_a_function_raises_arrives_as_that_class(
    graph: tf.Graph, kind: type[tf.errors.OpError]
) -> None:
    code = 11 if kind is tf.errors.OpError else kind.code

    def fail() -> Any:
        raise kind(None, None, "end", code)

    y = tf.py_func(fail, [], tf.float32)
    with pytest.raises(kind) as caught:
        tf.Session().run(y)
    error = caught.value
    assert type(error) is kind
    assert (error.message, error.op, error.error_code) == ("end", y.op, code)
    assert error.__cause__ is not error


def test_an_error_of_another_session_in_a_function_is_unknown(graph: tf.Graph) -> None:
    def run_another() -> Any:
        with tf.Graph().as_default():
            return tf.Session().run(tf.placeholder(tf.float32))

    with pytest.raises(tf.errors.UnknownError, match="InvalidArgumentError: You must feed"):
        tf.Session().run(tf.py_func(run_another, [], tf.float32))


def test_errors_take_the_arguments_of_tensorflow_by_place_and_by_name(graph: tf.Graph) -> None:
    op = tf.constant(1).op
    kind = tf.errors.NotFoundError
    for error in (kind("gone", op), kind(None, op, "gone"), kind(op=op, message="gone"),
                  kind(None, None, message="gone"), kind(op.node_def, None, "gone")):  # fmt: skip
        assert (error.message, error.error_code) == ("gone", 5)
        assert str(error).startswith("gone")
    for error in (kind(op.node_def, None, "gone"), kind("gone", op)):
        assert error.node_def.name == "Const"
    assert tf.errors.OpError(None, None, "gone", 7).error_code == 7
    for wrong in (lambda: kind("gone", op, "x"), lambda: kind("gone", text="x"),
                  lambda: kind("gone", message="x"), lambda: kind(*range(5))):  # fmt: skip
        with pytest.raises(TypeError, match=r"NotFoundError takes \(message, op\) or"):
            wrong()
    assert pickle.loads(pickle.dumps(kind(None, None, "gone"))).message == "gone"


def test_an_interrupt_is_not_an_error_of_an_operation(graph: tf.Graph) -> None:
    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    y = tf.py_func(interrupt, [tf.constant(1.0)], tf.float32)
    with pytest.raises(KeyboardInterrupt):
        tf.Session().run(y)


def test_an_error_in_what_is_not_needed_is_not_seen(graph: tf.Graph) -> None:
    p = tf.placeholder(tf.float32)
    bad = p + 1.0
    good = tf.constant(2.0)
    assert tf.Session().run(good) == 2
    del bad


def test_a_shape_that_is_wrong_at_run_time_names_the_operation(graph: tf.Graph) -> None:
    a, b = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    y = tf.add(a + 1.0, b, name="here") * 2.0
    for framework in ("numpy", "torch", "jax"):
        pytest.importorskip(framework)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            tf.Session(framework=framework).run(y, {a: np.ones(2), b: np.ones(3)})
        assert caught.value.op.name == "here"


# ---- runs within and beside runs ---------------------------------------------------------------


def test_a_run_within_a_function(graph: tf.Graph) -> None:
    session = tf.Session()
    inner = tf.constant(2.0) * 3.0
    outer = tf.py_func(lambda x: session.run(inner) + x, [tf.constant(np.float32(1))], tf.float32)
    assert session.run(outer + 1.0) == 8


def test_runs_in_many_threads(graph: tf.Graph) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x
    for _ in range(20):
        y = y * 1.0 + 1.0
    session = tf.Session()
    wrong: list[Any] = []

    def work(number: int) -> None:
        for i in range(50):
            size = 1 + (number * 7 + i) % 30
            found = session.run([y, x], {x: np.full(size, number)})
            if found[0].tolist() != [number + 20.0] * size or len(found[1]) != size:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_stateful_operations_run_in_order_of_creation_and_once(graph: tf.Graph) -> None:
    """TensorFlow promises no order; we promise this one."""
    log: list[int] = []

    def note(number: int) -> Any:
        def function() -> Any:
            log.append(number)
            return np.float32(number)

        return function

    notes = [tf.py_func(note(i), [], tf.float32, stateful=True) for i in range(6)]
    session = tf.Session()
    session.run([each.op for each in reversed(notes)])
    assert log == list(range(6))
    log.clear()
    session.run([notes[3], notes[3] + notes[1], notes[1]])
    assert log == [1, 3]


def test_control_edges_run_first(graph: tf.Graph) -> None:
    log: list[str] = []
    first = tf.py_func(lambda: log.append("first"), [], [])
    with graph.control_dependencies([first]):
        second = tf.py_func(lambda: log.append("second"), [], [])
    with graph.control_dependencies([second]):
        value = tf.constant(1.0) + 1.0
    assert tf.Session().run(value) == 2
    assert log == ["first", "second"]


# ---- devices -----------------------------------------------------------------------------------


def test_a_device_that_is_missing_matters_where_it_is_needed(graph: tf.Graph) -> None:
    """In TensorFlow one such operation makes every run of the session fail."""
    with tf.device("/device:GPU:77"):
        bad = tf.constant(1.0) + tf.placeholder(tf.float32)
    with tf.device("/job:elsewhere"):
        far = tf.identity(tf.constant(1.0)) + 1.0
    good = tf.constant(2.0) + 1.0
    session = tf.Session()
    assert session.run(good) == 3
    for each, device in ((bad, "/device:GPU:77"), (far, "/job:elsewhere")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="/device:CPU:0") as caught:
            session.run(each)
        assert device in str(caught.value)
        assert caught.value.op.device == device


def test_soft_placement_takes_another_device(graph: tf.Graph) -> None:
    class Config:
        allow_soft_placement = True

    with tf.device("/device:GPU:77"):
        y = tf.constant(1.0) + 1.0
    assert tf.Session(config=Config()).run(y) == 2


@pytest.mark.parametrize("device", ["/cpu:0", "/device:CPU:*", "/job:localhost/task:0/cpu:0"])
def test_the_cpu_is_there(graph: tf.Graph, device: str) -> None:
    with tf.device(device):
        y = tf.constant(1.0) + 1.0
    assert tf.Session().run(y) == 2


# ---- traces ------------------------------------------------------------------------------------


def test_a_trace_has_a_bar_for_each_step(graph: tf.Graph, framework: Any) -> None:
    framework("torch")
    x = tf.placeholder(tf.float32, [None], name="x")
    y = tf.add(x, 1.0, name="y") * 2.0
    with tf.framework("torch"):
        z = tf.add(y, 1.0, name="z")
    session = tf.Session()
    plain = session.run(z, {x: [1, 2]})
    assert session.run(z, {x: [1, 2]}, trace=True).tolist() == plain.tolist() == [5, 7]
    import json

    read = json.loads(session.trace.to_json())["traceEvents"]
    bars = [each for each in read if each["ph"] == "X"]
    rows = {each["args"]["name"]: each["tid"] for each in read if each["ph"] == "M"}
    assert [each["cat"] for each in bars] == [
        "fed and fetched", "run", "move", "node", "fed and fetched"
    ]  # fmt: skip
    assert bars[1]["args"]["nodes"] == ["y", "mul"]
    assert bars[1]["tid"] == rows["numpy"]
    assert bars[3]["args"]["nodes"] == ["z"]
    assert bars[3]["tid"] == rows["torch"]
    assert bars[3]["args"]["results"] == ["float32[2]"]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.002 for a, b in itertools.pairwise(bars))


def test_an_error_in_a_traced_run_is_the_same(graph: tf.Graph) -> None:
    p = tf.placeholder(tf.float32, name="p")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.Session().run(p + 1.0, trace=True)
    assert caught.value.op is p.op


def test_receipts_tell_how_values_crossed(graph: tf.Graph, framework: Any) -> None:
    framework("torch")
    x = tf.placeholder(tf.float32, [None])
    with tf.framework("torch"):
        y = x + 1.0
    log: list[Any] = []
    with tf.Session() as session:
        session.run(y, {x: np.ones(1000, np.float32)}, receipts=log)
    ways = [(each.source, each.target, each.shared) for each in log]
    assert ("numpy", "torch", True) in ways
    assert ("torch", "numpy", True) in ways
    assert all(shared for _, _, shared in ways)


def test_a_framework_that_is_not_installed_is_named() -> None:
    """Nodes may ask for it, or the session itself."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import dlbridge.graph as tf\n"
        "from dlbridge.errors import FrameworkMissingError\n"
        "x = tf.constant([1.0])\n"
        "with tf.framework('torch'):\n"
        "    y = x + 1.0\n"
        "for make in (lambda: tf.Session(framework='torch'), lambda: tf.Session().run(y)):\n"
        "    try:\n"
        "        make()\n"
        "    except FrameworkMissingError as error:\n"
        "        print('dlbridge[torch]' in str(error))\n"
        "print(tf.Session().run(x + x))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.stdout.splitlines() == ["True", "True", "[2.]"], found.stderr


# ---- plans -------------------------------------------------------------------------------------


def test_an_earlier_fetch_may_be_excluded(graph: tf.Graph) -> None:
    a = tf.constant(1.0)
    with tf.Session() as session:
        assert session.run(a) == 1
        graph.prevent_fetching(a.op)
        with pytest.raises(ValueError, match="not fetchable"):
            session.run(a)


def test_set_shape_that_adds_nothing_keeps_plans(graph: tf.Graph, framework: Any) -> None:
    """A function in a program of JAX is called once for each plan, while JAX traces it."""
    framework("jax")
    traced: list[Any] = []
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [None])
    z = tf.call(lambda a, b: traced.append(None) or a + b, [x, y], tf.float32)
    with tf.Session(framework="jax") as session:
        session.run(z, {x: [1, 2], y: [1, 2]})
        first = len(traced)
        x.set_shape([2])
        session.run(z, {x: [1, 2], y: [1, 2]})
        assert len(traced) == first
        y.set_shape([2])
        session.run(z, {x: [1, 2], y: [1, 2]})
        assert len(traced) > first


def test_programs_of_jax_for_many_shapes_are_forgotten(
    graph: tf.Graph, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds more than a megabyte, and jax.jit keeps thousands."""
    jax = framework("jax")
    from dlbridge.frameworks.jax import graph as jax_graph

    made = []

    def jit(function: Any) -> Any:
        made.append(jax.jit(function))
        return made[-1]

    monkeypatch.setattr(jax_graph, "SHAPES_KEPT", 3)
    monkeypatch.setattr(jax_graph, "jax", SimpleNamespace(**{**vars(jax), "jit": jit}))
    x = tf.placeholder(tf.float32, [None])
    y = tf.nn.relu(x - 2)
    with tf.Session(framework="jax") as session:
        for count in [*range(1, 8), 2, 2]:
            result = session.run(y, {x: np.arange(count)})
            assert result.tolist() == [max(i - 2, 0) for i in range(count)]
        sizes = [each._cache_size() for each in made]
    assert sizes == [4, 4, 1]


def test_sessions_left_out_of_order_stay_as_they_are() -> None:
    graph = tf.Graph()
    with graph.as_default():
        one = tf.constant(1.0)
    outer, inner = tf.Session(graph=graph), tf.Session(graph=graph)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(AssertionError, match="leave the inner block first"):
        outer.__exit__(None, None, None)
    assert tf.get_default_session() is inner
    assert (outer.run(one), inner.run(one)) == (1, 1)
    inner.__exit__(None, None, None)
    assert tf.get_default_session() is outer
    with pytest.raises(AssertionError, match="Nesting violated"):
        inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert tf.get_default_session() is None
    for each in (outer, inner):
        with pytest.raises(RuntimeError, match="closed"):
            each.run(one)
