"""Variables: the same programs here and in TensorFlow with its resource variables.

Compared are the operations made (type, name, inputs, control inputs, shapes), values, and the
built-in class of errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours
from dlbridge.graph.core.default_graph import apply

FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def variable(tf: Any, *args: Any, **kwargs: Any) -> Any:
    return tf.Variable(*args, use_resource=True, **kwargs)


def resources(tf: Any) -> Any:
    """Return a block in which `get_variable` of TensorFlow also makes resource variables."""
    return tf.variable_scope("", use_resource=True)


def operations(tf: Any) -> list[Any]:
    """Return what was made, in order; shapes as TensorFlow prints them."""
    return [
        (
            op.type,
            op.name,
            [each.name for each in op.inputs],
            [each.name for each in op.control_inputs],
            [None if each.shape.rank is None else each.shape.as_list() for each in op.outputs],
        )
        for op in tf.get_default_graph().get_operations()
    ]


def vector(tf: Any) -> Any:
    return variable(tf, [1.0, 2.0], name="v")


BUILT: dict[str, Callable[[Any], Any]] = {
    "a value": vector,
    "default names": lambda tf: (variable(tf, 0), variable(tf, 1)),
    "a tensor": lambda tf: variable(tf, tf.constant(1.0)),
    "a function": lambda tf: variable(tf, lambda: tf.constant(1.0)),
    "a scope": lambda tf: scoped(tf),
    "a control dependency": lambda tf: under_control(tf),
    "add": lambda tf: vector(tf) + 1.0,
    "radd": lambda tf: 1.0 + vector(tf),
    "array add": lambda tf: np.float32(1) + vector(tf),
    "neg": lambda tf: -vector(tf),
    "pow": lambda tf: vector(tf) ** 2.0,
    "less": lambda tf: vector(tf) < 2.0,
    "matmul": lambda tf: tf.matmul([vector(tf)], [[1.0], [2.0]]),
    "function": lambda tf: tf.add(vector(tf), 1.0, name="s"),
    "identity": lambda tf: tf.identity(vector(tf)),
    "convert": lambda tf: (tf.convert_to_tensor(vector(tf), name="q"), tf.constant(1)),
    "getitem": lambda tf: vector(tf)[0],
    "stack": lambda tf: (lambda v: tf.stack([v, v]))(vector(tf)),
    "value": lambda tf: vector(tf).value(),
    "read_value": lambda tf: vector(tf).read_value(),
    "is_initialized": lambda tf: vector(tf).is_initialized(),
    "is_variable_initialized": lambda tf: tf.is_variable_initialized(vector(tf)),
    "sparse_read": lambda tf: vector(tf).sparse_read([0]),
    "assign": lambda tf: vector(tf).assign([3.0, 4.0]),
    "assign by name": lambda tf: vector(tf).assign([3.0, 4.0], name="x"),
    "assign_add": lambda tf: vector(tf).assign_add([3.0, 4.0]),
    "assign_sub": lambda tf: vector(tf).assign_sub([3.0, 4.0], read_value=False),
    "functions": lambda tf: (lambda v: (tf.assign(v, [1.0, 2.0]), tf.assign_add(v, [1.0, 2.0])))(
        vector(tf)
    ),
    "assigned twice": lambda tf: vector(tf).assign([3.0, 4.0]).assign_add([1.0, 1.0]),
    "assigned and used": lambda tf: vector(tf).assign([3.0, 4.0]) + 1.0,
    "scatter_add": lambda tf: tf.scatter_add(vector(tf), [0], [2.0]),
    "scatter_nd_update": lambda tf: tf.scatter_nd_update(vector(tf), [[0]], [2.0]),
    "scatter slices": lambda tf: vector(tf).scatter_update(
        tf.IndexedSlices(tf.constant([2.0]), tf.constant([0]))
    ),
    "group": lambda tf: tf.group(vector(tf)),
    "group of assigned": lambda tf: tf.group(vector(tf).assign([1.0, 2.0])),
    "init": lambda tf: (vector(tf), tf.global_variables_initializer()),
    "no variables": lambda tf: tf.global_variables_initializer(),
    "local init": lambda tf: (tf.get_local_variable("l", [1]), tf.local_variables_initializer()),
}


def scoped(tf: Any) -> None:
    with tf.name_scope("s"):
        variable(tf, 1.0, name="v")
        variable(tf, 1.0, name="v")


def under_control(tf: Any) -> None:
    with tf.control_dependencies([tf.no_op()]):
        v = variable(tf, [1.0])
        v.read_value()
    with tf.control_dependencies([v]):
        tf.no_op(name="after")


def built(tf: Any, program: Callable[[Any], Any]) -> Any:
    with tf.Graph().as_default():
        program(tf)
        return operations(tf)


@pytest.mark.parametrize("name", BUILT)
def test_the_operations_are_those_of_tensorflow(tf1, name) -> None:
    assert built(ours, BUILT[name]) == built(tf1, BUILT[name])


def test_attributes_of_the_handle_are_those_of_tensorflow(tf1) -> None:
    def attributes(tf: Any) -> dict[str, Any]:
        with tf.Graph().as_default(), tf.name_scope("s"):
            op = variable(tf, [1.0, 2.0], name="v").op
        return {
            "shared_name": op.get_attr("shared_name"),
            "container": op.get_attr("container"),
            "dtype": op.get_attr("dtype").name,
            "shape": [each.size for each in op.get_attr("shape").dim],
        }

    assert attributes(ours) == attributes(tf1)


# ---- what a variable tells ---------------------------------------------------------------------

TOLD: dict[str, Callable[[Any], Any]] = {
    "name": lambda tf: vector(tf).name,
    "repr": lambda tf: repr(vector(tf)),
    "shape": lambda tf: vector(tf).shape.as_list(),
    "get_shape": lambda tf: vector(tf).get_shape().as_list(),
    "dtype": lambda tf: vector(tf).dtype.name,
    "dtype given": lambda tf: variable(tf, 1, dtype=tf.float32).dtype.name,
    "device": lambda tf: with_device(tf),
    "initial value": lambda tf: vector(tf).initial_value.name,
    "initializer": lambda tf: vector(tf).initializer.name,
    "trainable": lambda tf: [variable(tf, 1.0, trainable=each).trainable for each in (True, False)],
    "trainable variables": lambda tf: collected(tf),
    "unknown shape": lambda tf: (
        variable(tf, tf.placeholder(tf.float32), validate_shape=False).shape.rank
    ),
    "shape given": lambda tf: variable(tf, [1.0], shape=[None]).shape.as_list(),
    "repr assigned": lambda tf: repr(vector(tf).assign([1.0, 2.0])),
    "op assigned": lambda tf: vector(tf).assign([1.0, 2.0]).op.name,
    "hash": lambda tf: len({vector(tf), vector(tf)}),
    "equality": lambda tf: vector(tf) == vector(tf),
}


def with_device(tf: Any) -> str:
    with tf.device("/cpu:0"):
        return vector(tf).device


def collected(tf: Any) -> list[Any]:
    variable(tf, 1, name="a", trainable=False)
    variable(tf, 1, name="b")
    variable(tf, 1, name="c", collections=["mine"])
    variable(tf, 1, name="d", collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    lists = [
        tf.global_variables(),
        tf.trainable_variables(),
        tf.local_variables(),
        tf.get_collection("mine"),
        tf.global_variables(scope="b"),
    ]
    return [[each.name for each in found] for found in lists]


@pytest.mark.parametrize("name", TOLD)
def test_a_variable_tells_what_tensorflow_tells(tf1, name) -> None:
    def told(tf: Any) -> Any:
        with tf.Graph().as_default():
            return TOLD[name](tf)

    assert told(ours) == told(tf1)


# ---- errors while building ---------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "no initial value": (lambda tf: variable(tf), ValueError),
    "initial dtype": (lambda tf: variable(tf, tf.constant(1), dtype=tf.float32), ValueError),
    "assigned shape": (lambda tf: vector(tf).assign([1.0]), ValueError),
    "added shape": (lambda tf: vector(tf).assign_add([1.0, 2.0, 3.0]), ValueError),
    "bool": (lambda tf: bool(vector(tf)), TypeError),
    "iteration": (lambda tf: list(vector(tf)), TypeError),
    "len": (lambda tf: len(vector(tf)), TypeError),
    "array": (lambda tf: np.array(vector(tf)), NotImplementedError),
    "item assignment": (lambda tf: exec("v[0] = 1", {"v": vector(tf)}), TypeError),
    "in place": (lambda tf: exec("v += 1", {"v": vector(tf)}), RuntimeError),
    "no slices": (lambda tf: vector(tf).scatter_add([0]), TypeError),
    "eval": (lambda tf: vector(tf).eval(), ValueError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_class_of_tensorflows(tf1, name) -> None:
    program, kind = REFUSED[name]
    for tf in (tf1, ours):
        with tf.Graph().as_default(), pytest.raises(kind):
            program(tf)


@pytest.mark.parametrize("call", ["assign", "assign_add", "assign_sub"])
def test_another_dtype_is_a_type_error(call) -> None:
    """So it is for the variables of TensorFlow 1.15."""
    with ours.Graph().as_default(), pytest.raises(TypeError, match=r"type int32.*float32.*'v:0'"):
        getattr(vector(ours), call)(ours.constant([1, 2]))


def test_a_reference_is_not_to_be_had() -> None:
    with ours.Graph().as_default(), pytest.raises(TypeError, match="is a resource"):
        apply("AssignAdd", (vector(ours), [1.0, 2.0]))


def test_an_initial_value_of_unknown_shape_must_be_allowed() -> None:
    """TensorFlow 1.15 refuses it; otherwise shapes would go missing without a word."""
    with ours.Graph().as_default(), pytest.raises(ValueError, match="validate_shape=False"):
        ours.Variable(ours.placeholder(ours.float32))


@pytest.mark.parametrize("name", ["expected_shape", "import_scope", "variable_def"])
def test_an_argument_without_a_meaning_here_is_refused(name) -> None:
    with ours.Graph().as_default(), pytest.raises(ValueError, match=name):
        ours.Variable(1.0, **{name: lambda x: x})


def test_a_constraint_is_kept_and_must_be_a_function(tf1) -> None:
    for tf in (tf1, ours):
        with tf.Graph().as_default():
            made = tf.Variable([1.0], constraint=abs, caching_device="/cpu:0", use_resource=True)
            assert made.constraint is abs
            with pytest.raises(ValueError, match=r"`constraint` (argument )?must be"):
                tf.Variable([1.0], constraint=3)
    with ours.Graph().as_default():
        assert ours.Variable([1.0], constraint=abs).assign([2.0]).constraint is abs


# ---- values ------------------------------------------------------------------------------------


def ordered(tf: Any, session: Any) -> Any:
    """Read before and after, as control dependencies say."""
    v = variable(tf, 1.0)
    before = v.read_value()
    with tf.control_dependencies([before]):
        assigned = v.assign(5.0)
    with tf.control_dependencies([assigned.op]):
        after = v.read_value()
    session.run(v.initializer)
    return session.run([before, assigned, after, after + 1.0])


def scattered(tf: Any, session: Any) -> Any:
    v = variable(tf, np.arange(6, dtype=np.float32).reshape(3, 2))
    session.run(v.initializer)
    out = [session.run(tf.scatter_add(v, [0, 2, 0], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))]
    out.append(session.run(tf.scatter_sub(v, 1, [1.0, 1.0])))
    out.append(session.run(tf.scatter_update(v, [[2]], [[[9.0, 9.0]]])))
    out.append(session.run(tf.scatter_nd_update(v, [[0, 1]], [7.0])))
    out.append(session.run(v.sparse_read([[2, 0], [1, 1]])))
    return [each.tolist() for each in out]


def per_session(tf: Any, session: Any) -> Any:
    v = variable(tf, 1.0)
    with tf.Session(graph=v.graph) as other:
        session.run(v.initializer)
        other.run(v.initializer)
        session.run(v.assign_add(1.0))
        return session.run(v), other.run(v)


def loaded(tf: Any, session: Any) -> Any:
    v = vector(tf)
    v.load([7.0, 8.0], session)
    return session.run(v).tolist(), v.eval(session).tolist()


def initialised(tf: Any, session: Any) -> Any:
    a, b = variable(tf, 1.0, name="a"), variable(tf, 2.0, name="b")
    missing, known = tf.report_uninitialized_variables(), tf.is_variable_initialized(a)
    out = [session.run([missing, known])]
    session.run(a.initializer)
    out.append(session.run([missing, known]))
    session.run(tf.variables_initializer([b]))
    out.append(session.run([missing, known]))
    return [(names.tolist(), bool(is_known)) for names, is_known in out]


def of_any_shape(tf: Any, session: Any) -> Any:
    given = tf.placeholder(tf.float32)
    v = variable(tf, given, validate_shape=False)
    session.run(v.initializer, {given: [1.0]})
    session.run(v.assign([[1.0, 2.0]]))
    return session.run(v).tolist(), session.run(tf.shape(v)).tolist()


def strings(tf: Any, session: Any) -> Any:
    v = variable(tf, ["a", "b"])
    session.run(v.initializer)
    return session.run(v).tolist(), session.run(v.assign(["x", ""])).tolist()


def integers(tf: Any, session: Any) -> Any:
    v = variable(tf, np.array([2**40, -1]))
    session.run(v.initializer)
    return session.run(v.assign_sub([1, 1])).tolist(), session.run(v).dtype.name


def booleans(tf: Any, session: Any) -> Any:
    v = variable(tf, [True, False])
    session.run(v.initializer)
    return session.run(v).tolist(), session.run(tf.logical_not(v)).tolist()


def chained(tf: Any, session: Any) -> Any:
    v = variable(tf, 1.0)
    session.run(v.initializer)
    return session.run(v.assign(3.0).assign_add(4.0)), session.run(v)


def regularised(tf: Any, session: Any) -> Any:
    with tf.variable_scope("r", regularizer=lambda v: tf.reduce_sum(v) * 2.0):
        v = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    session.run(v.initializer)
    (loss,) = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    return loss.name, session.run(loss)


RUN = (
    ordered, scattered, per_session, loaded, initialised, of_any_shape, strings, integers,
    booleans, chained, regularised,
)  # fmt: skip


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("program", RUN, ids=lambda each: each.__name__)
def test_values_are_those_of_tensorflow(framework, tf1, program, place) -> None:
    framework(place)
    results = []
    for tf, arguments in ((ours, {"framework": place}), (tf1, {})):
        with tf.Graph().as_default(), resources(tf), tf.Session(**arguments) as session:
            results.append(program(tf, session))
    assert results[0] == results[1]


# ---- errors while running ----------------------------------------------------------------------


def unset(tf: Any, session: Any) -> Any:
    return session.run(vector(tf))


def another_shape_added(tf: Any, session: Any) -> Any:
    """Nothing is broadcast."""
    given, v = tf.placeholder(tf.float32), vector(tf)
    session.run(v.initializer)
    return session.run(v.assign_add(given), {given: [1.0]})


def an_index_too_large(tf: Any, session: Any) -> Any:
    v = vector(tf)
    session.run(v.initializer)
    return session.run(tf.scatter_add(v, [2], [1.0]))


def a_negative_index(tf: Any, session: Any) -> Any:
    v = vector(tf)
    session.run(v.initializer)
    return session.run(v.sparse_read([-1]))


FAILING = (
    unset, another_shape_added, an_index_too_large, a_negative_index,
)  # fmt: skip


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("program", FAILING, ids=lambda each: each.__name__)
def test_errors_of_a_run_are_those_of_tensorflow(framework, tf1, program, place) -> None:
    framework(place)
    codes = []
    for tf, arguments in ((ours, {"framework": place}), (tf1, {})):
        with (
            tf.Graph().as_default(),
            resources(tf),
            tf.Session(**arguments) as session,
            pytest.raises(tf.errors.OpError) as caught,
        ):
            program(tf, session)
        codes.append((type(caught.value).__name__, caught.value.error_code))
    assert codes[0] == codes[1]


@pytest.mark.parametrize("change", ["assign_add", "assign_sub", "scatter"])
def test_a_change_of_what_has_no_value_fails_as_in_tensorflow_1(change) -> None:
    """TensorFlow 2 has another class there, NotFoundError."""
    with ours.Graph().as_default(), ours.Session() as session:
        v = vector(ours)
        if change == "scatter":
            changed = ours.scatter_add(v, [0], [1.0])
        else:
            changed = getattr(v, change)([1.0, 1.0])
        with pytest.raises(ours.errors.FailedPreconditionError, match="uninitialized value v"):
            session.run(changed)


@pytest.mark.parametrize("place", FRAMEWORKS)
def test_a_value_of_another_shape_is_refused_when_run(framework, place) -> None:
    """TensorFlow 2 takes it, against the static shape that the graph was built with."""
    framework(place)
    with ours.Graph().as_default(), ours.Session(framework=place) as session:
        given, v = ours.placeholder(ours.float32), vector(ours)
        session.run(v.initializer)
        with pytest.raises(ours.errors.InvalidArgumentError, match=r"shape \[2\].*\[3\]"):
            session.run(v.assign(given), {given: [1.0, 2.0, 3.0]})
        assert session.run(v).tolist() == [1.0, 2.0]


def test_the_error_of_a_missing_value_names_the_variable_and_the_remedy() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        v = vector(ours)
        with pytest.raises(ours.errors.FailedPreconditionError) as caught:
            session.run(v + 1.0)
    assert "Attempting to use uninitialized value v" in str(caught.value)
    assert "global_variables_initializer" in str(caught.value)
    assert caught.value.error_code == 9
    assert caught.value.op.type == "ReadVariableOp"


# ---- fetches and feeds -------------------------------------------------------------------------


def test_a_variable_and_its_name_are_fetched_by_value() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        v = vector(ours)
        session.run(v.initializer)
        got = session.run({"v": v, "names": [v.name, v.handle]})
        assert got["v"].tolist() == [1.0, 2.0]
        assert [each.tolist() for each in got["names"]] == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize("key", ["variable", "name", "handle"])
def test_every_read_in_a_run_sees_the_value_fed_for_a_variable(key) -> None:
    """TensorFlow 1.15 does so; its resource variables would silently keep most reads."""
    with ours.Graph().as_default(), ours.Session() as session:
        v = vector(ours)
        total = v + ours.identity(v)
        keys = {"variable": v, "name": v.name, "handle": v.handle}
        assert session.run([v, total], {keys[key]: [5.0, 6.0]})[1].tolist() == [10.0, 12.0]
        with pytest.raises(ours.errors.FailedPreconditionError):
            session.run(total)
        with pytest.raises(ValueError, match="shape"):
            session.run(total, {v: [1.0]})


def test_a_fetched_value_is_the_users_alone() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        v = vector(ours)
        session.run(v.initializer)
        for fetch in (v, v.value(), ours.reshape(v, [1, 2]), v.assign([1.0, 2.0])):
            got = session.run(fetch)
            got += 100.0
            assert session.run(v).tolist() == [1.0, 2.0]


def test_an_assigned_value_is_a_copy_of_what_was_fed() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        given, v = ours.placeholder(ours.float32, [2]), vector(ours)
        array = np.array([3.0, 4.0], np.float32)
        session.run(v.assign(given), {given: array})
        array[:] = 0
        assert session.run(v).tolist() == [3.0, 4.0]


def test_an_imported_graph_refuses_to_be_fed_a_handle_that_nothing_reads() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        handle = apply("VarHandleOp", (), {"dtype": ours.float32, "shape": [2]}).outputs[0]
        with pytest.raises(TypeError, match="no operation reads"):
            session.run(ours.constant(1), {handle: [1.0, 2.0]})
