"""Fetches of a session: structures, names, results and the errors of others."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.session import fetches


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any


class Attrs:
    """Looks like a class of attrs, without the package."""

    class _Attribute(NamedTuple):
        name: str
        init: bool = True

    __attrs_attrs__ = (_Attribute("_a"), _Attribute("b"))

    def __init__(self, a: Any, b: Any) -> None:
        self._a, self.b = a, b


@pytest.fixture
def session() -> Iterator[tf.Session]:
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(2.0, name="a")
        tf.constant([1, 2], name="b")
        tf.no_op(name="n")
    with tf.Session(graph=graph) as session:
        yield session


@pytest.fixture
def a(session: tf.Session) -> Any:
    return session.graph.get_tensor_by_name("a:0")


@pytest.fixture
def b(session: tf.Session) -> Any:
    return session.graph.get_tensor_by_name("b:0")


def test_a_tensor_of_rank_0_is_a_numpy_scalar(session: tf.Session, a: Any) -> None:
    value = session.run(a)
    assert type(value) is np.float32
    assert value == 2


def test_an_array_is_writable_and_nobody_elses(session: tf.Session, b: Any) -> None:
    value = session.run(b)
    value[:] = 7
    assert session.run(b).tolist() == [1, 2]
    assert b.op.attrs["value"].array.tolist() == [1, 2]


def test_names_are_fetches(session: tf.Session) -> None:
    assert session.run("a:0") == 2
    assert session.run(b"a:0") == 2
    assert session.run("a") is None  # the operation
    assert session.run(["a:0", "n"]) == [2, None]


def test_an_operation_gives_none(session: tf.Session, a: Any) -> None:
    assert session.run(a.op) is None
    assert session.run([a.op, a]) == [None, 2]


def test_structures_come_back_as_they_went(session: tf.Session, a: Any, b: Any) -> None:
    n = session.graph.get_operation_by_name("n")
    cases: list[tuple[Any, Any]] = [
        ([a], [2]),
        ((a,), (2,)),
        ([], []),
        ({}, {}),
        ((), ()),
        ([[], {}], [[], {}]),
        (Pair(a, a), Pair(2, 2)),
        ([Pair(a, [n, a])], [Pair(2, [None, 2])]),
        ({"x": a, "y": (a, a)}, {"x": 2, "y": (2, 2)}),
        (collections.OrderedDict([("y", a), ("x", n)]), collections.OrderedDict(y=2, x=None)),
        (Point(a, [a]), Point(2, [2])),
    ]
    for structure, expected in cases:
        for _ in range(2):  # planned, and from the cache
            found = session.run(structure)
            assert found == expected
            assert type(found) is type(expected)
    del b


def test_structures_that_are_equal_as_tuples_are_told_apart(session: tf.Session, a: Any) -> None:
    """A named tuple equals a tuple, and the plans of a session are looked up by fetches."""
    assert type(session.run([(a, a)])[0]) is tuple
    assert type(session.run([Pair(a, a)])[0]) is Pair
    assert type(session.run(((a, a),))[0]) is tuple
    assert session.run({"k": a}) == {"k": 2}
    assert session.run({"l": a}) == {"l": 2}


def test_a_defaultdict_keeps_its_factory(session: tf.Session, a: Any) -> None:
    found = session.run(collections.defaultdict(list, x=a))
    assert type(found) is collections.defaultdict
    assert found.default_factory is list
    found = session.run(collections.defaultdict(set, x=a))
    assert found.default_factory is set
    assert found["x"] == 2


def test_classes_of_attrs_are_structures(session: tf.Session, a: Any) -> None:
    found = session.run(Attrs(a, (a,)))
    assert type(found) is Attrs
    assert (found._a, found.b) == (2, (2,))


def test_a_tensor_twice_is_computed_once(session: tf.Session, b: Any) -> None:
    first, second = session.run([b, b])
    assert first is second


def test_views_of_one_result_are_separate_arrays(session: tf.Session) -> None:
    with session.graph.as_default():
        x = tf.placeholder(tf.float32, [4])
        y = x + 1.0
        z = tf.reshape(y, [2, 2])
    flat, square = session.run([y, z], {x: np.zeros(4)})
    square[:] = 5
    assert flat.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "fetch", [None, {1, 2}, 3, 2.5, np.ones(2), (x for x in ()), [None], object]
)
def test_an_invalid_fetch_is_a_type_error(session: tf.Session, fetch: Any) -> None:
    with pytest.raises(TypeError, match="invalid type"):
        session.run(fetch)


@pytest.mark.parametrize("name", ["zz:0", "zz", "a:1", "a:0:0", "a:b", ["zz:0"]])
def test_unknown_names_are_value_errors(session: tf.Session, name: Any) -> None:
    with pytest.raises(ValueError, match="cannot be interpreted as a Tensor"):
        session.run(name)


def test_a_tensor_of_another_graph_is_a_value_error(session: tf.Session) -> None:
    with tf.Graph().as_default():
        other = tf.constant(1)
    with pytest.raises(ValueError, match="not an element of this graph"):
        session.run(other)


def test_a_fetch_that_was_prevented_is_a_value_error(session: tf.Session, a: Any) -> None:
    assert session.run([a]) == [2]
    session.graph.prevent_fetching(a.op)
    with pytest.raises(ValueError, match="not fetchable"):
        session.run([a])


def test_other_kinds_of_fetches_can_be_registered(session: tf.Session, a: Any, b: Any) -> None:
    class Double:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    fetches.register(
        Double, lambda each: fetches.Parts((each.inner,), lambda values: values[0] * 2)
    )
    assert session.run(Double(a)) == 4
    assert session.run([Double(a), {"b": Double(b)}])[1]["b"].tolist() == [2, 4]


def test_strings_are_bytes_and_arrays_of_objects(session: tf.Session) -> None:
    with session.graph.as_default():
        one, two = tf.constant("ä"), tf.constant([b"x", b"yy"])
    assert session.run(one) == "ä".encode()
    value = session.run(two)
    assert value.dtype == object
    assert value.tolist() == [b"x", b"yy"]


@pytest.mark.parametrize("name", ["torch", "jax", "dlbridge", "tensorflow"])
def test_results_come_in_the_framework_asked_for(
    session: tf.Session, b: Any, name: str, framework: Any
) -> None:
    framework("torch")
    if name != "dlbridge":
        framework(name)
    import dlbridge

    for home in ("numpy", "torch"):
        with session.graph.as_default(), tf.framework(home):
            y = b + b
        value, same = session.run([y, b], to=name)
        assert dlbridge.convert(value, name) is value
        assert np.asarray(dlbridge.to_numpy(value)).tolist() == [2, 4]
        assert np.asarray(dlbridge.to_numpy(same)).tolist() == [1, 2]


def test_a_result_in_torch_can_be_written(session: tf.Session, b: Any, framework: Any) -> None:
    framework("torch")
    value = session.run(b, to="torch")
    value += 1
    assert session.run(b).tolist() == [1, 2]


def test_without_copies_results_are_read_only_views(session: tf.Session, b: Any) -> None:
    value = session.run(b, copy=False)
    assert np.shares_memory(value, b.op.attrs["value"].array)
    assert not value.flags.writeable


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def test_keys_of_dicts_that_are_equal_come_back_as_they_went(graph: tf.Graph) -> None:
    a = tf.constant(1.0)
    with tf.Session() as session:
        for key in (1, True, 1.0):
            (found,) = session.run({key: a})
            assert type(found) is type(key)
