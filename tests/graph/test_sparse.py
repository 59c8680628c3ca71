"""Sparse tensors and slices: the same programs here and in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge.graph as ours

FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def sparse(
    tf: Any, indices: Any = ((0, 1), (1, 2)), values: Any = (1.0, 2.0), shape: Any = (2, 3)
) -> Any:
    return tf.SparseTensor(np.reshape(np.array(indices, np.int64), (-1, len(shape))), values, shape)


def slices(tf: Any) -> Any:
    parts = tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), tf.constant([3, 1])
    return tf.IndexedSlices(*parts)


# ---- what is built -----------------------------------------------------------------------------

BUILT: dict[str, Callable[[Any], Any]] = {
    "tensor": sparse,
    "placeholder": lambda tf: tf.sparse_placeholder(tf.float32, name="sp"),
    "placeholder without a name": lambda tf: tf.sparse_placeholder(tf.float32),
    "placeholder of a shape": lambda tf: tf.sparse_placeholder(tf.float32, [2, 3], "sp"),
    "placeholder of half a shape": lambda tf: tf.sparse.placeholder(tf.float32, [None, 3], "sp"),
    "placeholder of a shape that is a tensor": lambda tf: tf.sparse_placeholder(
        tf.float32, tf.constant([2, 3], tf.int64), "sp"
    ),
    "placeholder of a shape that is fed": lambda tf: tf.sparse_placeholder(
        tf.float32, tf.placeholder(tf.int64, [2]), "sp"
    ),
    "to_dense": lambda tf: tf.sparse.to_dense(sparse(tf)),
    "to_dense with a default": lambda tf: tf.sparse_tensor_to_dense(sparse(tf), 7.0),
    "to_dense of a value": lambda tf: tf.sparse.to_dense(
        tf.SparseTensorValue([[0, 1]], [1.0], [2, 3])
    ),
    "to_dense of a placeholder": lambda tf: tf.sparse.to_dense(
        tf.sparse_placeholder(tf.float32, [None, 3])
    ),
    "sparse_to_dense": lambda tf: tf.sparse_to_dense([[0, 1]], [2, 3], [1.0]),
    "reorder": lambda tf: tf.sparse.reorder(sparse(tf)),
    "reorder of a placeholder": lambda tf: tf.sparse.reorder(tf.sparse_placeholder(tf.float32)),
    "reshape": lambda tf: tf.sparse.reshape(sparse(tf), [3, -1]),
    "add": lambda tf: tf.sparse.add(sparse(tf), sparse(tf)),
    "add dense": lambda tf: tf.sparse.add(sparse(tf), tf.zeros([2, 3])),
    "matmul": lambda tf: tf.sparse.sparse_dense_matmul(sparse(tf), tf.ones([3, 2])),
    "matmul, adjoint": lambda tf: tf.sparse_tensor_dense_matmul(
        sparse(tf), tf.ones([2, 2]), adjoint_a=True, name="m"
    ),
    "cast": lambda tf: tf.cast(sparse(tf), tf.int32),
    "cast to its dtype": lambda tf: tf.cast(sparse(tf), tf.float32),
    "shape": lambda tf: tf.shape(sparse(tf)),
    "shape in int64": lambda tf: tf.shape(sparse(tf), out_type=tf.int64, name="s"),
    "size": lambda tf: tf.size(sparse(tf)),
    "rank": lambda tf: tf.rank(tf.sparse_placeholder(tf.float32), "r"),
    "times a number": lambda tf: sparse(tf) * 2.0,
    "times a tensor": lambda tf: sparse(tf) * tf.constant([[1.0], [10.0]]),
    "a tensor times it": lambda tf: tf.constant([1.0, 2.0, 3.0]) * sparse(tf),
    "divided": lambda tf: sparse(tf) / 2.0,
    "divided, of integers": lambda tf: sparse(tf, values=(3, 4)) / 2,
    "slices": lambda tf: tf.convert_to_tensor(slices(tf)),
    "slices, negative": lambda tf: -slices(tf),
    "slices, cast": lambda tf: tf.cast(slices(tf), tf.int32),
    "norm of slices": lambda tf: tf.global_norm([slices(tf), None]),
    "slices between bounds": lambda tf: tf.clip_by_value(slices(tf), 0.0, 1.5),
    "control": lambda tf: controlled(tf),
}


def controlled(tf: Any) -> None:
    with tf.control_dependencies([slices(tf)]):
        tf.no_op()


@pytest.mark.parametrize("name", BUILT)
def test_the_operations_are_those_of_tensorflow(tf1, name) -> None:
    def built(tf: Any) -> Any:
        with tf.Graph().as_default() as graph:
            made = BUILT[name](tf)
            shape = getattr(made, "shape", None)
            return shape and shape.rank and shape.as_list(), [
                (
                    op.type,
                    op.name,
                    [each.name for each in op.inputs],
                    [each.name for each in op.control_inputs],
                    [each.shape.rank and each.shape.as_list() for each in op.outputs],
                )
                for op in graph.get_operations()
            ]

    assert built(ours) == built(tf1)


def test_a_sparse_tensor_tells_what_tensorflow_tells(tf1) -> None:
    def told(tf: Any) -> Any:
        with tf.Graph().as_default() as graph:
            made = sparse(tf)
            consumed = tf.identity(made.values)
            return (
                str(made), made.op.name, made.dtype.name, made.shape.as_list(),
                made.get_shape().as_list(), made.graph is graph,
                [each.name for each in made.consumers()] == [consumed.op.name],
            )  # fmt: skip

    assert told(ours) == told(tf1)


# ---- values ------------------------------------------------------------------------------------

UNORDERED = ((1, 2), (0, 1), (1, 0))

VALUES: dict[str, Callable[[Any], Any]] = {
    "to_dense": lambda tf: tf.sparse.to_dense(sparse(tf)),
    "default": lambda tf: tf.sparse.to_dense(sparse(tf), default_value=7.0),
    "empty": lambda tf: tf.sparse.to_dense(sparse(tf, (), np.zeros(0, np.float32))),
    "no elements at all": lambda tf: tf.sparse.to_dense(
        sparse(tf, (), np.zeros(0, np.float32), (0, 3))
    ),
    "three dimensions": lambda tf: tf.sparse.to_dense(
        sparse(tf, ((0, 1, 0), (1, 0, 1)), (1, 2), (2, 2, 2))
    ),
    "strings": lambda tf: tf.sparse.to_dense(sparse(tf, ((0,),), ("a",), (2,))),
    "booleans": lambda tf: tf.sparse.to_dense(sparse(tf, ((0,),), (True,), (2,))),
    "scalar index": lambda tf: tf.sparse_to_dense(1, [3], 5),
    "vector of indices": lambda tf: tf.sparse_to_dense([0, 2], [3], 5),
    "one value each": lambda tf: tf.sparse_to_dense([0, 2], [3], [5, 6], -1),
    "not validated": lambda tf: tf.sparse.to_dense(
        sparse(tf, UNORDERED, (1.0, 2.0, 3.0)), validate_indices=False
    ),
    "reorder": lambda tf: tf.sparse.reorder(sparse(tf, UNORDERED, (1.0, 2.0, 3.0))),
    "reorder keeps equals": lambda tf: tf.sparse.reorder(
        sparse(tf, ((1, 2), (0, 1), (0, 1)), (1.0, 2.0, 3.0))
    ),
    "reshape": lambda tf: tf.sparse.reshape(sparse(tf), [3, -1]),
    "reshape to a vector": lambda tf: tf.sparse.reshape(sparse(tf), [-1]),
    "add": lambda tf: tf.sparse.add(sparse(tf), sparse(tf, ((0, 0), (0, 1)), (5.0, -1.0))),
    "add above": lambda tf: tf.sparse.add(
        sparse(tf), sparse(tf, ((0, 1),), (-0.75,)), threshold=0.5
    ),
    "add dense": lambda tf: tf.sparse.add(sparse(tf), tf.ones([2, 3])),
    "add to dense": lambda tf: tf.sparse.add(tf.ones([2, 3]), sparse(tf)),
    "matmul": lambda tf: tf.sparse.sparse_dense_matmul(
        sparse(tf), tf.reshape(tf.range(6.0), [3, 2])
    ),
    "matmul, adjoints": lambda tf: tf.sparse.sparse_dense_matmul(
        sparse(tf, values=(1 + 2j, 3 - 1j)),
        np.arange(4).reshape(2, 2) * (1 + 1j),
        adjoint_a=True,
        adjoint_b=True,
    ),
    "matmul of equals": lambda tf: tf.sparse.sparse_dense_matmul(
        sparse(tf, ((0, 1), (0, 1)), (1.0, 2.0)), tf.ones([3, 2])
    ),
    "times a matrix": lambda tf: sparse(tf) * tf.reshape(tf.range(6.0), [2, 3]),
    "times a column": lambda tf: sparse(tf) * tf.constant([[1.0], [10.0]]),
    "times a row": lambda tf: tf.constant([1.0, 2.0, 3.0]) * sparse(tf),
    "times a number": lambda tf: sparse(tf) * 2.0,
    "nothing times a matrix": lambda tf: sparse(tf, (), np.zeros(0, np.float32)) * tf.ones([2, 3]),
    "divided": lambda tf: sparse(tf) / tf.constant([1.0, 2.0, 4.0]),
    "integers divided": lambda tf: sparse(tf, values=(3, 4)) / 2,
    "cast": lambda tf: tf.cast(sparse(tf, values=(1.5, -2.5)), tf.int32),
    "shape": lambda tf: [tf.shape(sparse(tf)), tf.size(sparse(tf)), tf.rank(sparse(tf))],
    "functions that keep zero": lambda tf: [
        getattr(tf, name)(sparse(tf, values=(0.0, 0.25)))
        for name in ("abs", "negative", "sign", "square", "sqrt")
    ],
    "slices, clipped": lambda tf: [
        tf.clip_by_norm(slices(tf), 1.0, axes=[1]),
        tf.clip_by_value(slices(tf), 0.0, 1.5),
        *tf.clip_by_global_norm([slices(tf), tf.constant([2.0])], 1.5)[0],
    ],
    "slices, negative": lambda tf: -slices(tf),
    "slices, cast": lambda tf: tf.cast(slices(tf), tf.int32),
    "slices without a shape, negative": lambda tf: (
        -tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
    ),
    "norm of slices": lambda tf: tf.global_norm([slices(tf), None]),
    "tensor": sparse,
    "slices": slices,
    "slices, converted": lambda tf: tf.convert_to_tensor(slices(tf)),
    "slices without a shape": lambda tf: tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])),
    "structure": lambda tf: {"a": [sparse(tf), sparse(tf).values], "b": (slices(tf),)},
}


def plain(value: Any) -> Any:
    """Return a structure of values with type names and lists in it."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [plain(each) for each in value]
    if value is None:
        return None
    return value.dtype.name, value.shape, value.tolist()


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_tensorflow(framework, tf1, name, place) -> None:
    framework(place)
    got = []
    for tf, arguments in ((ours, {"framework": place}), (tf1, {})):
        with tf.Graph().as_default(), tf.Session(**arguments) as session:
            got.append(plain(session.run(VALUES[name](tf))))
    assert got[0] == got[1]


def test_sums_of_unordered_elements_are_sums() -> None:
    """TensorFlow takes the order for granted and gives elements twice."""
    with ours.Graph().as_default(), ours.Session() as session:
        total = ours.sparse.add(sparse(ours), sparse(ours, ((1, 1), (0, 1)), (-1.0, 5.0)))
        assert session.run(ours.sparse.to_dense(total)).tolist() == [
            [0.0, 6.0, 0.0],
            [0.0, -1.0, 2.0],
        ]


@given(st.data())
def test_any_sparse_tensor_becomes_what_numpy_makes_of_it(data) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dense = np.zeros(shape, np.int32)
    places = data.draw(st.sets(st.tuples(*[st.integers(0, extent - 1) for extent in shape])))
    for number, place in enumerate(sorted(places), 1):
        dense[place] = number
    other = data.draw(st.permutations(shape))
    with ours.Graph().as_default(), ours.Session() as session:
        given_ = ours.sparse_placeholder(ours.int32)
        value = np.argwhere(dense), dense[dense > 0], shape
        reshaped = ours.sparse.to_dense(ours.sparse.reshape(given_, other))
        got = session.run([ours.sparse.to_dense(given_), reshaped], {given_: value})
    assert got[0].tolist() == dense.tolist()
    assert got[1].tolist() == dense.reshape(other).tolist()


# ---- errors ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "rank of indices": (lambda tf: tf.SparseTensor([0, 1], [1.0, 2.0], [2, 3]), ValueError),
    "number of values": (lambda tf: tf.SparseTensor([[0, 1]], [1.0, 2.0], [2, 3]), ValueError),
    "rank": (lambda tf: tf.SparseTensor([[0, 1]], [1.0], [2, 3, 4]), ValueError),
    "dtype": (lambda tf: tf.SparseTensor(tf.constant([[0, 1]]), [1.0], [2, 3]), ValueError),
    "floating indices": (lambda tf: tf.SparseTensor([[0.0, 1.0]], [1.0], [2, 3]), TypeError),
    "dense": (lambda tf: tf.sparse.to_dense(tf.ones([2])), TypeError),
    "conversion": (lambda tf: tf.convert_to_tensor(sparse(tf)), TypeError),
    "control": (lambda tf: tf.control_dependencies([sparse(tf)]).__enter__(), TypeError),
    "operator": (lambda tf: sparse(tf) + 1, TypeError),
    "a number times it": (lambda tf: 2.0 * sparse(tf), TypeError),
    "whole quotient": (lambda tf: sparse(tf) // 2.0, TypeError),
    "function that makes zero one": (lambda tf: tf.cos(sparse(tf)), TypeError),
    "multiply": (lambda tf: tf.multiply(sparse(tf), 2.0), TypeError),
    "other dtype": (lambda tf: sparse(tf) * tf.constant(2), (TypeError, ValueError)),
    "elements": (lambda tf: tf.sparse.reshape(sparse(tf), [5, -1]), ValueError),
    "shapes": (lambda tf: tf.sparse.add(sparse(tf), sparse(tf, shape=(2, 4))), ValueError),
    "extents": (
        lambda tf: tf.sparse.sparse_dense_matmul(sparse(tf), tf.ones([2, 2])), ValueError
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_class_of_tensorflows(tf1, name) -> None:
    program, kind = REFUSED[name]
    for tf in (tf1, ours):
        with tf.Graph().as_default(), pytest.raises(kind):
            program(tf)


FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "product of other extents": (
        lambda tf: sparse(tf) * tf.constant([1.0, 2.0]), "broadcasts dense to sparse only"
    ),
    "product of a higher rank": (
        lambda tf: sparse(tf) * tf.ones([1, 2, 3]), "broadcasts dense to sparse only"
    ),
    "unordered": (
        lambda tf: tf.sparse.to_dense(sparse(tf, ((1, 2), (0, 1)))), r"\[1\].*out of order"
    ),
    "repeated": (lambda tf: tf.sparse.to_dense(sparse(tf, ((0, 1), (0, 1)))), "repeated"),
    "too large": (lambda tf: tf.sparse.to_dense(sparse(tf, ((0, 1), (0, 3)))), "out of bounds"),
    "negative": (lambda tf: tf.sparse.to_dense(sparse(tf, ((0, 1), (0, -1)))), "out of bounds"),
    "too large, not validated": (
        lambda tf: tf.sparse.to_dense(sparse(tf, ((0, 1), (0, 5))), validate_indices=False),
        "out of bounds",
    ),
    "numbers": (lambda tf: tf.sparse_to_dense([0, 2], [3], [5, 6, 7]), ""),
}  # fmt: skip


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("name", FAILING)
def test_indices_that_to_dense_cannot_take_are_invalid_arguments(
    framework, tf1, name, place
) -> None:
    framework(place)
    program, text = FAILING[name]
    for tf, arguments in ((tf1, {}), (ours, {"framework": place})):
        with (
            tf.Graph().as_default(),
            tf.Session(**arguments) as session,
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            session.run(program(tf))
    assert caught.match(text)


# ---- feeds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize(
    "value",
    [
        ours.SparseTensorValue([[0, 1]], [1.0], [2, 3]),
        ([[0, 1]], [1.0], [2, 3]),
        [np.array([[0, 1]]), np.array([1.0], np.float32), np.array([2, 3])],
    ],
    ids=["value", "tuple", "list"],
)
def test_a_sparse_tensor_is_fed_by_its_three_parts(framework, value, place) -> None:
    framework(place)
    with ours.Graph().as_default(), ours.Session(framework=place) as session:
        given_ = ours.sparse_placeholder(ours.float32)
        got, dense = session.run([given_, ours.sparse.to_dense(given_)], {given_: value})
    assert isinstance(got, ours.SparseTensorValue)
    assert [each.dtype.name for each in got] == ["int64", "float32", "int64"]
    assert dense.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_value_of_tensorflow_is_a_feed(tf1) -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        given_ = ours.sparse_placeholder(ours.float32)
        value = tf1.SparseTensorValue([[0, 1]], [1.0], [2, 3])
        assert session.run(ours.sparse.to_dense(given_), {given_: value}).tolist()[0][1] == 1.0


@pytest.mark.parametrize("shape", [[2, 3], "tensor"])
def test_a_constant_shape_may_be_left_out_of_a_feed(tf1, shape) -> None:
    def program(tf: Any) -> Any:
        with tf.Graph().as_default(), tf.Session() as session:
            known = tf.constant([2, 3], tf.int64) if shape == "tensor" else shape
            given_ = tf.sparse_placeholder(tf.float32, known)
            dense = tf.sparse.to_dense(given_)
            indices = np.array([[0, 1]])
            return [
                session.run(dense, {given_: value}).tolist()
                for value in [(indices, [5.0]), [indices, [6.0]], (indices, [7.0], [1, 2])]
            ]

    assert program(ours) == program(tf1)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (([[0, 1]], [1.0]), None),
        (([[0, 1]], [1.0]), [None, 3]),
        ([1.0], [2, 3]),
        (np.zeros((2, 3)), [2, 3]),
        (1.0, [2, 3]),
    ],
)
def test_anything_but_three_parts_is_refused(value, shape) -> None:
    """TensorFlow feeds the first two parts without a word about the third."""
    with ours.Graph().as_default(), ours.Session() as session:
        given_ = ours.sparse_placeholder(ours.float32, shape)
        with pytest.raises(TypeError, match="SparseTensorValue"):
            session.run(ours.sparse.to_dense(given_), {given_: value})


def test_a_known_shape_need_not_be_fed() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        given_ = ours.sparse_placeholder(ours.float32, [2, 3])
        feeds = {given_.indices: [[1, 1]], given_.values: [4.0]}
        assert session.run(ours.sparse.to_dense(given_), feeds).tolist()[1][1] == 4.0


def test_any_sparse_tensor_and_slices_may_be_fed() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        made, part = sparse(ours), slices(ours)
        feeds = {
            made: ([[0, 0], [0, 1]], [9.0, 8.0], [1, 2]),
            part: ([[5.0], [6.0]], [2, 0], [3, 1]),
        }
        dense, whole = ours.sparse.to_dense(made), ours.convert_to_tensor(part)
        got = session.run([dense, whole], feeds)
        assert [each.tolist() for each in got] == [[[9.0, 8.0]], [[6.0], [0.0], [5.0]]]
        assert made.eval(session=session).values.tolist() == [1.0, 2.0]


def test_slices_without_a_shape_are_no_tensor() -> None:
    with ours.Graph().as_default():
        part = ours.IndexedSlices(ours.constant([1.0]), ours.constant([0]))
        with pytest.raises(ValueError, match="without dense_shape"):
            ours.convert_to_tensor(part)
