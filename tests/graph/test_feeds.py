"""Feeds of a session: keys, values, and the errors of others."""

from __future__ import annotations

from array import array as array_of_python
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge.errors import DLBridgeError


@pytest.fixture
def session() -> Iterator[tf.Session]:
    graph = tf.Graph()
    with graph.as_default():
        p = tf.placeholder(tf.float32, [None, 3], name="p")
        tf.identity(p, name="y")
        for kind in (tf.int32, tf.uint8, tf.bool, tf.float32, tf.float64, tf.complex64, tf.string):
            tf.identity(tf.placeholder(kind, name=kind.name), name=f"{kind.name}_out")
    with tf.Session(graph=graph) as session:
        yield session


def give(session: tf.Session, kind: str, value: Any) -> Any:
    return session.run(f"{kind}_out:0", {f"{kind}:0": value})


# ---- keys --------------------------------------------------------------------------------------


def test_keys_are_tensors_names_and_tuples(session: tf.Session) -> None:
    p = session.graph.get_tensor_by_name("p:0")
    i = session.graph.get_tensor_by_name("int32:0")
    rows = [[1, 2, 3]]
    assert session.run("y:0", {p: rows}).tolist() == rows
    assert session.run("y:0", {"p:0": rows}).tolist() == rows
    y, z = session.run(["y:0", "int32_out:0"], {(p, i): (rows, 4)})
    assert y.tolist() == rows
    assert z == 4
    y, z = session.run(["y:0", "int32_out:0"], {(p, (i,)): [rows, (4,)]})
    assert y.tolist() == rows
    assert z == 4


@pytest.mark.parametrize("key", ["q:0", "p", "zz", 3, None, 2.5])
def test_other_keys_are_type_errors(session: tf.Session, key: Any) -> None:
    with pytest.raises(TypeError, match="Cannot interpret feed_dict key as Tensor"):
        session.run("y:0", {key: 1})


def test_operations_and_tensors_of_other_graphs_are_no_keys(session: tf.Session) -> None:
    with tf.Graph().as_default():
        other = tf.constant(1)
    for key in (other, session.graph.get_operation_by_name("p")):
        with pytest.raises(TypeError, match="Cannot interpret feed_dict key as Tensor"):
            session.run("y:0", {key: 1})


def test_two_keys_for_one_tensor_are_refused(session: tf.Session) -> None:
    """TensorFlow takes the last one silently."""
    p = session.graph.get_tensor_by_name("p:0")
    with pytest.raises(ValueError, match="several keys"):
        session.run("y:0", {p: [[1, 2, 3]], "p:0": [[4, 5, 6]]})


def test_a_tuple_of_keys_takes_as_many_values(session: tf.Session) -> None:
    """TensorFlow pairs what there is, and forgets the rest."""
    p = session.graph.get_tensor_by_name("p:0")
    i = session.graph.get_tensor_by_name("int32:0")
    with pytest.raises(ValueError, match="takes 2 values, got 1"):
        session.run("y:0", {(p, i): ([[1, 2, 3]],)})
    with pytest.raises(TypeError, match="takes a tuple of values"):
        session.run("y:0", {(p, i): 3})


def test_a_feed_that_was_prevented_is_a_value_error(session: tf.Session) -> None:
    p = session.graph.get_tensor_by_name("p:0")
    session.graph.prevent_feeding(p)
    with pytest.raises(ValueError, match="may not be fed"):
        session.run("y:0", {p: [[1, 2, 3]]})


def test_any_tensor_can_be_fed_and_cuts_its_producer(session: tf.Session) -> None:
    with session.graph.as_default():
        c = tf.constant(2.0)
        d = tf.placeholder(tf.float32, []) + c
        e = d + c
    assert session.run(e, {d: 5}) == 7
    assert session.run(e, {d: 5, c: 1}) == 6
    assert session.run(d, {d: 5}) == 5
    assert session.run(c, {c: 9}) == 9
    assert session.run(c) == 2


def test_unused_feeds_are_checked_and_accepted(session: tf.Session) -> None:
    assert session.run("int32_out:0", {"int32:0": 1, "p:0": [[1, 2, 3]]}) == 1
    with pytest.raises(ValueError, match="Cannot feed value of shape"):
        session.run("int32_out:0", {"int32:0": 1, "p:0": [1]})


def test_a_fed_constant_overrides_what_was_inferred_from_it(session: tf.Session) -> None:
    with session.graph.as_default():
        shape = tf.constant([2, 3])
        y = tf.reshape(tf.constant([1.0] * 6), shape)
    assert y.shape.as_list() == [2, 3]
    assert session.run(y, {shape: [3, 2]}).shape == (3, 2)


def test_a_feed_stands_in_for_a_placeholder_others_wait_for(session: tf.Session) -> None:
    p = session.graph.get_tensor_by_name("p:0")
    with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value"):
        session.run(p.op, {p: [[1, 2, 3]]})
    with session.graph.as_default(), session.graph.control_dependencies([p.op]):
        after = tf.no_op()
    assert session.run(after, {p: [[1, 2, 3]]}) is None
    with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value"):
        session.run(after)


# ---- values ------------------------------------------------------------------------------------


def test_shapes_must_fit(session: tf.Session) -> None:
    text = r"Cannot feed value of shape \(1, 2\) for Tensor 'p:0', which has shape '\(\?, 3\)'"
    for value in ([[1, 2]], np.ones((1, 2), np.float32), np.ones((1, 2))):
        with pytest.raises(ValueError, match=text):
            session.run("y:0", {"p:0": value})
    with pytest.raises(ValueError, match="shape"):
        session.run("y:0", {"p:0": 1.0})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int32", 7, 7),
        ("int32", np.int64(7), 7),
        ("int32", True, 1),
        ("int32", np.uint8(200), 200),
        ("uint8", [1, 255], [1, 255]),
        ("uint8", np.array([1, 255]), [1, 255]),
        ("int32", 2.0, 2),
        ("int32", np.float32(1), 1),
        ("int32", [-0.0, -3.0], [0, -3]),
        ("int32", np.array([0.0, 1.0]), [0, 1]),
        ("uint8", [255.0], [255]),
        ("float32", 1, 1.0),
        ("float32", np.float64(0.5), 0.5),
        ("float32", np.arange(3), [0.0, 1.0, 2.0]),
        ("float32", np.array([1.0, 2.0], ">f4"), [1.0, 2.0]),
        ("float32", float("inf"), float("inf")),
        ("float64", np.float32(0.5), 0.5),
        ("complex64", 1.5, 1.5 + 0j),
        ("complex64", np.complex128(1j), 1j),
        ("bool", True, True),
        ("bool", [True, False], [True, False]),
        ("bool", 1, True),
        ("bool", [0, 1], [False, True]),
        ("bool", np.array([0, 1], np.uint8), [False, True]),
        ("bool", 0.0, False),
        ("bool", [-0.0, 1.0], [False, True]),
        ("string", "ä", "ä".encode()),
        ("string", [b"x", "y"], [b"x", b"y"]),
        ("string", np.array(["x", "yy"]), [b"x", b"yy"]),
        ("float32", [], []),
        ("float32", [[]], [[]]),
    ],
)
def test_values_are_converted_where_only_precision_is_lost(
    session: tf.Session, kind: str, value: Any, expected: Any
) -> None:
    found = give(session, kind, value)
    found = found if isinstance(found, bytes) else found.tolist()
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int32", 1.5),
        ("int32", np.float32(1.5)),
        ("int32", [0.0, 1.5]),
        ("int32", float("nan")),
        ("int32", float("-inf")),
        ("int32", 2.0**31),
        ("int32", 2.0**64),
        ("int32", -(2.0**63)),
        ("uint8", -1.0),
        ("uint8", [256.0]),
        ("int32", np.array([1 + 0j])),
        ("int32", 2**40),
        ("int32", np.int64(2**40)),
        ("int32", "1"),
        ("int32", 1j),
        ("uint8", -1),
        ("uint8", np.array([300])),
        ("float32", None),
        ("float32", "1.5"),
        ("float32", 1j),
        ("float32", 1e300),
        ("float32", np.float64(1e300)),
        ("float32", [1.0, None]),
        ("float32", [[1.0], [1.0, 2.0]]),
        ("float32", object()),
        ("bool", 2),
        ("bool", -1),
        ("bool", [0, 2]),
        ("bool", 0.5),
        ("bool", float("nan")),
        ("string", 3),
        ("string", [b"x", 3]),
    ],
)
def test_values_that_would_silently_be_others_are_refused(
    session: tf.Session, kind: str, value: Any
) -> None:
    """TensorFlow feeds what NumPy's casts make of them."""
    with pytest.raises((TypeError, ValueError)):
        give(session, kind, value)


def test_a_python_integer_that_does_not_fit_is_a_type_error(session: tf.Session) -> None:
    with pytest.raises(TypeError, match="fit int32"):
        give(session, "int32", 2**40)


def test_a_tensor_is_no_value(session: tf.Session) -> None:
    y = session.graph.get_tensor_by_name("y:0")
    with pytest.raises(TypeError, match="value of a feed cannot be a symbolic tensor"):
        session.run("y:0", {"p:0": y})


def test_a_fed_array_comes_back_as_another(session: tf.Session) -> None:
    """TensorFlow gives back the same object, so that writing to a result changes the input."""
    x = np.ones((2, 3), np.float32)
    y = session.run("y:0", {"p:0": x})
    z = session.run("p:0", {"p:0": x})
    y[:] = 2
    z[:] = 3
    assert (x == 1).all()


def test_a_fed_scalar_comes_back_as_a_numpy_scalar(session: tf.Session) -> None:
    value = session.run("float32:0", {"float32:0": np.array(2, np.float32)})
    assert type(value) is np.float32


@pytest.mark.parametrize("offset", [0, 4, 16])
def test_arrays_are_fed_without_a_copy_whatever_their_alignment(
    session: tf.Session, offset: int
) -> None:
    """TensorFlow copies all that does not begin at a multiple of 64."""
    memory = np.zeros(64 * 3 * 4 + 64 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    x = memory[start : start + 64 * 3 * 4].view(np.float32).reshape(64, 3)
    for fed in (x, x[::2], np.asfortranarray(x)):
        y = session.run("y:0", {"p:0": fed}, copy=False)
        assert np.shares_memory(y, fed)
        assert y.ctypes.data == fed.ctypes.data


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_tensors_of_frameworks_are_fed_without_a_copy(
    session: tf.Session, name: str, framework: Any
) -> None:
    framework(name)
    x = dlbridge.convert(np.ones((64, 3), np.float32), name)
    y = session.run("y:0", {"p:0": x}, copy=False)
    assert y.ctypes.data == dlbridge.from_dlpack(x).data_ptr
    assert session.run("float64_out:0", {"float64:0": x}).dtype == np.float64
    with pytest.raises(ValueError, match="Cannot feed value of shape"):
        session.run("y:0", {"p:0": x[:, :2]})


def test_a_tensor_stays_in_its_framework(session: tf.Session, framework: Any) -> None:
    torch = framework("torch")
    x = torch.ones(2, 3)
    with session.graph.as_default(), tf.framework("torch"):
        y = tf.call(lambda t: t, [session.graph.get_tensor_by_name("p:0")], tf.float32)
    log: list[Any] = []
    value = session.run(y, {"p:0": x}, to="torch", copy=False, receipts=log)
    assert value.data_ptr() == x.data_ptr()
    assert all(each.shared for each in log)


def test_a_dlbridge_tensor_is_fed(session: tf.Session) -> None:
    x = dlbridge.as_tensor(np.ones((2, 3), np.float32))
    assert session.run("y:0", {"p:0": x}).tolist() == [[1, 1, 1]] * 2


def test_set_shape_counts_for_feeds_from_then_on(session: tf.Session) -> None:
    with session.graph.as_default():
        p = tf.placeholder(tf.float32)
        y = tf.identity(p)
    x = np.ones(2, np.float32)
    assert session.run(y, {p: x}).tolist() == [1, 1]
    p.set_shape([3])
    with pytest.raises(ValueError, match="Cannot feed value of shape"):
        session.run(y, {p: x})


@pytest.mark.parametrize("value", [5.0, np.ones((2, 1), np.float32), {"values": [1.0]}])
def test_slices_take_a_tuple_of_their_parts(value: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        values, indices = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int32, [None])
        slices = tf.IndexedSlices(values, indices)
        fed = session.run(slices, {slices: ([1.0], [3])})
        assert (fed.values.tolist(), fed.indices.tolist()) == ([1.0], [3])
        with pytest.raises(TypeError, match=r"IndexedSlices take .* got "):
            session.run(slices, {slices: value})


class KnownToNumPy:
    """An object with `__array__` alone, as pandas, polars, xarray, h5py and zarr have them."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


@pytest.mark.parametrize(
    ("dtype", "array", "expected"),
    [
        ("float32", np.array([1, 2], "f4"), [1, 2]),
        ("float32", np.array([1, 2], "f8"), [1, 2]),
        ("int64", np.array([1.0, 2.0]), [1, 2]),
        ("string", np.array(["a", "b"], object), [b"a", b"b"]),
    ],
)
def test_objects_that_only_numpy_knows_are_fed_and_made_constant(
    dtype: str, array: np.ndarray, expected: list[Any]
) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(getattr(tf, dtype), [2])
        given = KnownToNumPy(array)
        assert session.run(tf.identity(x), {x: given}).tolist() == expected
        assert (
            session.run(tf.constant(given)).tolist()
            == array.astype("S" if dtype == "string" else array.dtype).tolist()
        )


FED: dict[str, Any] = {
    "numbers": lambda _: [1, 2],
    "a list of arrays": lambda _: [np.float32(1), np.array(2.0)],
    "an array": lambda _: np.array([1, 2], "f4"),
    "an array of another dtype": lambda _: np.array([1, 2], "i2"),
    "torch": lambda framework: framework("torch").tensor([1.0, 2.0]),
    "a list of torch tensors": lambda framework: [*framework("torch").tensor([1.0, 2.0])],
    "jax": lambda framework: framework("jax").numpy.array([1.0, 2.0]),
    "tensorflow": lambda framework: framework("tensorflow").constant([1.0, 2.0]),
    "pyarrow": lambda framework: framework("pyarrow").array([1.0, 2.0]),
    "dlbridge": lambda _: dlbridge.from_dlpack(np.array([1, 2], "f4")),
    "a capsule": lambda _: np.array([1, 2], "f4").__dlpack__(),
    "an array interface": lambda _: Interface(),
    "a buffer": lambda _: memoryview(np.array([1, 2], "f4")),
    "array.array": lambda _: array_of_python("f", [1, 2]),
    "an object with __array__": lambda _: KnownToNumPy(np.array([1, 2], "f4")),
}


class Interface:
    """An object with `__array_interface__` alone."""

    def __init__(self) -> None:
        self.array = np.array([1, 2], "f4")
        self.__array_interface__ = self.array.__array_interface__


@pytest.mark.parametrize("kind", FED)
def test_all_objects_that_the_page_lists_are_fed(kind: str, framework: Any) -> None:
    """docs/graph.md has the table."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2])
        assert session.run(x + 1.0, {x: FED[kind](framework)}).tolist() == [2, 3]
        assert session.run(tf.constant(FED[kind](framework), tf.float32)).tolist() == [1, 2]


def test_feeds_that_would_lose_something_are_refused(framework: Any) -> None:
    torch = framework("torch")
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2])
        for value, advice in (
            (np.ma.masked_array([1.0, 2.0], [0, 1]), "mask"),
            (torch.ones(2, requires_grad=True), "detach"),
            (torch.ones(2).to_sparse(), "to_dense"),
        ):
            with pytest.raises(DLBridgeError, match=advice):
                session.run(x, {x: value})
