"""variable_scope, get_variable and initializers: the same programs here and in TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def run(tf: Any, program: Callable[[Any], Any]) -> Any:
    """Return what a program gives in a graph of its own, in which all variables are resources."""
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=True):
        return program(tf)


def made(tf: Any, name: str = "w", shape: Any = (2,), **kwargs: Any) -> str:
    kwargs.setdefault("initializer", tf.zeros_initializer())
    return tf.get_variable(name, shape, **kwargs).name


def op(tf: Any) -> str:
    return tf.constant(1, name="c").name


def scopes(tf: Any) -> Any:
    out = []
    with tf.variable_scope("a") as outer:
        out += [made(tf), op(tf), outer.name, outer.original_name_scope]
        with tf.name_scope("n"):
            out += [made(tf, "w2"), op(tf)]
        with tf.variable_scope("b/c") as inner:
            out += [made(tf), op(tf), inner.name, inner.original_name_scope]
    return out


def the_same_scope_again(tf: Any) -> Any:
    out = []
    with tf.variable_scope("a") as first:
        out.append(made(tf))
    with tf.variable_scope("a", reuse=True) as second:
        out += [tf.get_variable("w").name, op(tf), second.name, second.original_name_scope]
    with tf.variable_scope(first, auxiliary_name_scope=False):
        out += [op(tf), made(tf, "x")]
    with tf.variable_scope(first) as third:
        out += [op(tf), third.original_name_scope]
    with tf.variable_scope("b"):
        with tf.variable_scope(first, reuse=True):
            out += [tf.get_variable_scope().name, op(tf), tf.get_variable("w").name]
        out.append(made(tf))
    with tf.variable_scope(first), tf.variable_scope("") as empty:
        out += [empty.name.rstrip("/"), op(tf)]
    return out


def default_names(tf: Any) -> Any:
    out = []
    for _ in range(2):
        with tf.variable_scope(None, "d") as scope:
            out += [made(tf), op(tf), scope.name]
            for _ in range(2):
                with tf.variable_scope(None, "e"):
                    out += [made(tf), op(tf)]
    with tf.variable_scope("d"), tf.variable_scope(None, "e"):
        out.append(tf.get_variable_scope().name)
    with tf.variable_scope("g", "ignored"):
        out.append(tf.get_variable_scope().name)
    return out


def reuse(tf: Any) -> Any:
    out = []
    with tf.variable_scope("r", reuse=tf.AUTO_REUSE):
        first = tf.get_variable("x", [2])
        out.append(tf.get_variable("x", [2]) is first)
        with tf.variable_scope("inner"):
            out += [made(tf), made(tf)]
    with tf.variable_scope("s") as scope:
        first = tf.get_variable("x", [2])
        out.append(scope.reuse)
        scope.reuse_variables()
        out += [tf.get_variable("x", [2]) is first, scope.reuse]
    with tf.variable_scope("s"):
        out.append(tf.get_variable_scope().reuse)
    with tf.variable_scope("s", reuse=True), tf.variable_scope("t"):
        out.append(tf.get_variable_scope().reuse)
    return out


def root_reuse(tf: Any) -> Any:
    first = tf.get_variable("x", [2])
    tf.get_variable_scope().reuse_variables()
    return tf.get_variable("x") is first


def defaults_of_scopes(tf: Any) -> Any:
    out = []
    with tf.variable_scope("z", initializer=tf.ones_initializer(), dtype=tf.float64):
        x = tf.get_variable("x", [2])
        out += [x.dtype.name, x.initial_value.op.name]
        with tf.variable_scope("y"):
            out.append(tf.get_variable("x", [2]).dtype.name)
        y = tf.get_variable("y", [2], tf.int32, tf.zeros_initializer())
        out += [y.dtype.name, y.initial_value.op.name]
    out.append(tf.get_variable("x", [2]).dtype.name)
    return out


def of_scopes(tf: Any) -> Any:
    with tf.variable_scope("a") as scope:
        made(tf)
        made(tf, "x", trainable=False)
        tf.get_local_variable("l", [1])
    made(tf, "ab")
    return [
        [each.name for each in found]
        for found in (
            scope.global_variables(), scope.trainable_variables(), scope.local_variables(),
            tf.trainable_variables("a/"), tf.local_variables(),
        )
    ]  # fmt: skip


def variable_in_a_scope(tf: Any) -> Any:
    with tf.variable_scope("q"):
        names = [tf.Variable(1.0, name="v", use_resource=True).name for _ in range(2)]
        return [*names, made(tf, "v2")]


def values(tf: Any) -> Any:
    a = tf.get_variable("a", initializer=tf.constant([1.0, 2.0]))
    b = tf.get_variable("b", initializer=[1, 2])
    return [
        (each.name, each.dtype.name, each.shape.as_list(), each.initial_value.name)
        for each in (a, b)
    ]


def logged(log: list[Any], which: str) -> Callable[..., Any]:
    def getter(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        log.append((which, name, args, sorted(kwargs), kwargs["shape"], bool(kwargs["reuse"])))
        return getter(name, *args, **kwargs)

    return getter


def custom_getters(tf: Any) -> Any:
    log: list[Any] = []
    with tf.variable_scope("a", custom_getter=logged(log, "outer")) as outer:
        with tf.variable_scope("b", custom_getter=logged(log, "inner")):
            log.append(made(tf))
            log.append(made(tf, "own", custom_getter=logged(log, "own")))
        with tf.variable_scope("c", reuse=tf.AUTO_REUSE):
            log.append(made(tf))
    with tf.variable_scope(outer, custom_getter=logged(log, "again")):
        log.append(made(tf, "again"))
    return [str(each) for each in log]


def custom_getters_change_what_is_made(tf: Any) -> Any:
    def getter(getter: Any, name: str, shape: Any, dtype: Any, **kwargs: Any) -> Any:
        wide = getter(f"{name}_wide", shape, dtype=tf.float64, **kwargs)
        return tf.cast(wide, dtype, name="narrow") * 2.0

    with tf.variable_scope("a"):
        w = tf.get_variable("w", [3], custom_getter=getter, initializer=tf.ones_initializer())
    stored = tf.global_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run(w).tolist()
    return w.name, w.dtype.name, [(each.name, each.dtype.name) for each in stored], value


def initial_values_from_functions(tf: Any) -> Any:
    functions = {
        "floats": lambda: [2.0],
        "integers": lambda: [2, 3],
        "tensor": lambda: tf.constant([1, 2], tf.int64),
        "defaults": lambda n=3: [True] * n,
    }
    found = []
    for name, function in functions.items():
        variable = tf.get_variable(name, initializer=function)
        found.append((variable.name, variable.dtype.base_dtype.name, variable.shape.as_list()))
    with tf.variable_scope("a", initializer=lambda: [4, 5]):
        found.append(tf.get_variable("of_scope").dtype.name)
    for name, value in {"b": np.ones(2, np.int32), "c": 0.0}.items():
        with tf.variable_scope(name, initializer=value):
            of_value = tf.get_variable("of_scope")
            found.append((of_value.dtype.name, of_value.shape.as_list()))
    of_shape = tf.get_variable("shaped", [2], initializer=lambda shape, dtype: [1.0, 2.0])
    return found, of_shape.dtype.name


def constraints(tf: Any) -> Any:
    with tf.variable_scope("a", constraint=abs, caching_device="/cpu:0") as scope:
        with tf.variable_scope("b"):
            found = [tf.get_variable("w", [2]).constraint is abs]
        found.append(tf.get_variable("v", [2], constraint=len).constraint is len)
        return *found, scope.constraint is abs, scope.caching_device, scope.custom_getter


def defaults_that_are_set_later(tf: Any) -> Any:
    called = []

    def watched(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return getter(name, *args, **kwargs)

    with tf.variable_scope("a") as scope:
        scope.set_initializer(tf.constant_initializer(3))
        scope.set_dtype(tf.float64)
        scope.set_regularizer(tf.reduce_sum)
        scope.set_caching_device(None)
        scope.set_custom_getter(watched)
        scope.set_use_resource(True)
        with tf.variable_scope("b"):
            w = tf.get_variable("w", [2])
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    with tf.Session() as session:
        first = session.run(w.initial_value).tolist()
        session.run(tf.global_variables_initializer())
        value, loss = session.run([w, losses[0]])
    return called, w.name, w.dtype.base_dtype.name, first, value.tolist(), float(loss), len(losses)


PROGRAMS = (
    defaults_that_are_set_later,
    custom_getters, custom_getters_change_what_is_made, initial_values_from_functions, constraints,

    scopes, the_same_scope_again, default_names, reuse, root_reuse, defaults_of_scopes, of_scopes,
    variable_in_a_scope, values,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_scopes_work_as_in_tensorflow(tf1, program) -> None:
    assert run(ours, program) == run(tf1, program)


# ---- initializers ------------------------------------------------------------------------------

INITIALIZERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], str]] = {
    "none": (lambda tf: None, (2, 3), "float32"),
    "none of integers": (lambda tf: None, (2,), "int32"),
    "none of booleans": (lambda tf: None, (2,), "bool"),
    "zeros": (lambda tf: tf.zeros_initializer(), (2,), "float32"),
    "zeros, the class": (lambda tf: tf.zeros_initializer, (2,), "float32"),
    "ones": (lambda tf: tf.initializers.ones(), (), "float64"),
    "constant": (lambda tf: tf.constant_initializer(3), (2, 2), "float32"),
    "constant of a list": (lambda tf: tf.constant_initializer([1.0, 2.0]), (2,), "float32"),
    "uniform": (lambda tf: tf.random_uniform_initializer(-1, 1), (4,), "float32"),
    "normal": (lambda tf: tf.random_normal_initializer(stddev=0.5), (4,), "float32"),
    "truncated": (lambda tf: tf.truncated_normal_initializer(), (4,), "float32"),
    "variance": (lambda tf: tf.variance_scaling_initializer(), (3, 4), "float32"),
    "glorot": (lambda tf: tf.glorot_normal_initializer(), (3, 3, 4, 5), "float32"),
    "he": (lambda tf: tf.initializers.he_uniform(), (3, 4), "float32"),
    "lecun": (lambda tf: tf.initializers.lecun_normal(), (), "float32"),
    "a function": (lambda tf: lambda shape, dtype, **_: tf.zeros(shape, dtype), (2,), "float32"),
}


def initialised(tf: Any, name: str) -> Any:
    make, shape, dtype = INITIALIZERS[name]

    def program(tf: Any) -> Any:
        v = tf.get_variable("w", shape, dtype, make(tf))
        with tf.Session() as session:
            session.run(v.initializer)
            value = session.run(v)
        operations = [
            (op.type, op.name, [each.name for each in op.inputs])
            for op in tf.get_default_graph().get_operations()
        ]
        return operations, value

    return run(tf, program)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_make_the_operations_of_tensorflow(tf1, name) -> None:
    (got, value), (wanted, expected) = initialised(ours, name), initialised(tf1, name)
    assert got == wanted
    assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
    if not any("andom" in kind or "Normal" in kind for kind, _, _ in got):
        assert np.array_equal(value, expected)


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        (ours.initializers.glorot_uniform(1), 2 / (200 + 300)),
        (ours.initializers.glorot_normal(1), 2 / (200 + 300)),
        (ours.initializers.he_normal(1), 2 / 200),
        (ours.initializers.lecun_uniform(1), 1 / 200),
        (ours.initializers.variance_scaling(3.0, "fan_out", "untruncated_normal", 1), 3 / 300),
        (ours.initializers.random_normal(0.0, 0.1, 1), 0.01),
    ],
)
def test_random_initializers_have_the_variance_they_name(initializer, variance) -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        drawn = session.run(initializer([200, 300]))
    assert abs(drawn.mean()) < 4 * np.sqrt(variance / drawn.size)
    assert abs(drawn.var() / variance - 1) < 0.05


def test_the_identity_is_a_matrix() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        made = ours.initializers.identity(gain=2.0)([2, 3])
        assert session.run(made).tolist() == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
        with pytest.raises(ValueError, match="needs a matrix"):
            ours.initializers.identity()([2])


# ---- errors ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "known": (lambda tf: (made(tf), made(tf)), ValueError),
    "unknown": (lambda tf: within(tf, lambda: made(tf), reuse=True), ValueError),
    "no shape": (lambda tf: tf.get_variable("w"), ValueError),
    "a shape of a value": (lambda tf: tf.get_variable("w", [1], initializer=[1.0]), ValueError),
    "no name": (lambda tf: tf.variable_scope(None).__enter__(), (TypeError, ValueError)),
    "another shape": (lambda tf: again(tf, shape=[3]), ValueError),
    "another dtype": (lambda tf: again(tf, dtype=tf.int32), ValueError),
    "a shape beside a function without arguments": (
        lambda tf: tf.get_variable("w", [1], initializer=lambda: [2.0]), TypeError
    ),
    "a function of a shape, and none": (
        lambda tf: tf.get_variable("w", initializer=lambda shape, dtype: [2.0]), ValueError
    ),
    "a custom getter that is none": (
        lambda tf: tf.get_variable("w", [1], custom_getter=3), ValueError
    ),
    "unknown extent": (
        lambda tf: tf.get_variable("w", [None], initializer=tf.zeros_initializer()), ValueError
    ),
}  # fmt: skip


def within(tf: Any, call: Callable[[], Any], **kwargs: Any) -> Any:
    with tf.variable_scope("a", **kwargs):
        return call()


def again(tf: Any, **kwargs: Any) -> Any:
    tf.get_variable("w", [2])
    tf.get_variable_scope().reuse_variables()
    return tf.get_variable("w", **kwargs)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_class_of_tensorflows(tf1, name) -> None:
    program, kind = REFUSED[name]
    for tf in (tf1, ours):
        with pytest.raises(kind):
            run(tf, program)


def test_the_dtype_given_beside_a_value_counts() -> None:
    """TensorFlow ignores it without a word."""
    with ours.Graph().as_default():
        made = ours.get_variable("w", initializer=[1, 2], dtype=ours.float32)
        assert made.dtype is ours.float32


def test_each_thread_has_scopes_of_its_own() -> None:
    names: list[str] = []
    with ours.Graph().as_default() as graph, ours.variable_scope("a"):

        def work() -> None:
            with graph.as_default():
                names.append(ours.get_variable_scope().name)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert names == [""]


def test_an_error_in_a_scope_leaves_it() -> None:
    with ours.Graph().as_default():
        with pytest.raises(KeyError), ours.variable_scope("a"):
            raise KeyError
        assert ours.get_variable_scope().name == ""
        assert ours.no_op("n").name == "n"
