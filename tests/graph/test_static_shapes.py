"""Shapes that are known before a run: what is inferred, what is refused, how it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from graph.small_graphs import run
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

import dlbridge.graph as tf
from dlbridge.graph.ops import generate


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_errors_of_shapes_list_them_as_tensorflow_does() -> None:
    x, y = (tf.placeholder(tf.float32, [2, extent]) for extent in (3, 2))
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 2 for") as error:
        x + y
    assert str(error.value).endswith(" with input shapes: [2,3], [2,2].")


def test_errors_of_shapes_name_the_operation_and_the_shapes() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"3 and 2 .*'here'.*\[2,3\]"):
        tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]), name="here")


def test_set_shape_does_not_touch_the_attribute() -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    before = tf.identity(x)
    x.set_shape([2, None])
    assert (x.shape, before.shape) == ([2, 3], [None, 3])
    assert x.op.get_attr("shape").dim[0].size == -1


def test_known_extents_beyond_int32_are_refused_where_they_are_asked_for() -> None:
    x = tf.placeholder(tf.float32, [2**40, 2])
    for of in (tf.shape, tf.size):
        with pytest.raises(ValueError, match="do not fit int32"):
            of(x)
        assert of(x, out_type=tf.int64).dtype == tf.int64


SCALARS: dict[str, Callable[[Any], Any]] = {
    "ArgMax": lambda wrong: ((tf.zeros([2, 3]), wrong), {}),
    "Bincount": lambda wrong: ((tf.constant([1]), wrong, tf.constant([1.0])), {}),
    "Concat": lambda wrong: ((wrong, [tf.zeros([2]), tf.zeros([2])]), {}),
    "ConcatV2": lambda wrong: (([tf.zeros([2]), tf.zeros([2])], wrong), {}),
    "LinSpace": lambda wrong: ((0.0, 1.0, wrong), {}),
    "Multinomial": lambda wrong: ((tf.zeros([2, 2]), wrong), {}),
    "TopKV2": lambda wrong: ((tf.zeros([2, 2]), wrong), {}),
    "UnsortedSegmentSum": lambda wrong: ((tf.zeros([2]), tf.constant([0, 1]), wrong), {}),
}


@pytest.mark.parametrize("value", [[1], [1, 2], np.zeros((1, 0), np.int32)], ids=["1", "2", "0"])
@pytest.mark.parametrize("name", SCALARS)
def test_a_vector_where_a_number_is_needed_is_an_error_of_shapes(name: str, value: Any) -> None:
    """Found by random graphs: such a constant ended in an error of NumPy's."""
    from dlbridge.graph.core.default_graph import apply

    inputs, attrs = SCALARS[name](tf.constant(value, tf.int32))
    with pytest.raises(ValueError, match="Shape must be rank 0 but is rank"):
        apply(name, inputs, attrs, None)


def test_a_shape_is_a_vector() -> None:
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 2"):
        tf.fill([[1]], 1.0)
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 0"):
        tf.placeholder(tf.float32, [1, 4, 4, 1]).graph.create_op(
            "MaxPoolV2",
            [tf.zeros([1, 4, 4, 1]), tf.constant([1, 2, 2, 1]), tf.constant(1)],
            attrs={"padding": b"SAME"},
        )


BOMBS: dict[str, Callable[[], Any]] = {
    "transpose": lambda: tf.transpose(unknown(), many()),
    "pad": lambda: tf.pad(unknown(), many(2)),
    "slice": lambda: tf.slice(unknown(), many(), many()),
    "unstack": lambda: tf.unstack(many()),
    "ranks": lambda: tf.expand_dims(tf.placeholder(tf.float32, [1] * 254), 0),
    "dims": lambda: tf.fill([1] * 300, 1.0),
    "extents": lambda: tf.concat([tf.placeholder(tf.float32, [2**62])] * 2, 0),
    "elements": lambda: tf.placeholder(tf.float32, [2**40, 2**40]),
    "tiles": lambda: tf.tile(tf.placeholder(tf.float32, [2**62]), [4]),
}


def unknown() -> Any:
    return tf.placeholder(tf.float32)


def many(*more: int) -> Any:
    return tf.placeholder(tf.int32, [2**33, *more])


@pytest.mark.parametrize("name", BOMBS)
def test_a_result_that_no_tensor_can_be_is_refused_where_it_is_made(name: str) -> None:
    """Not when somebody looks at its shape, nor by 64 GiB of unknown extents."""
    with pytest.raises(ValueError, match=r"at most are|2\*\*63 - 1"):
        BOMBS[name]()


@hypothesis.given(mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), st.data())
def test_static_broadcasting_agrees_with_what_runs(shapes: Any, data: Any) -> None:
    """However much is known of the operands."""
    known = [
        [dim if data.draw(st.booleans()) else None for dim in shape]
        for shape in shapes.input_shapes
    ]
    with tf.Graph().as_default():
        x, y = (tf.placeholder(tf.float32, dims) for dims in known)
        total = x + y
        feeds = {
            place: np.ones(shape, np.float32)
            for place, shape in zip((x, y), shapes.input_shapes, strict=True)
        }
        value = run(total, feeds)
    assert np.shape(value) == shapes.result_shape
    assert total.shape.is_compatible_with(shapes.result_shape)
    if not any(None in dims for dims in known):
        assert total.shape == shapes.result_shape


@hypothesis.given(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), st.data())
def test_static_reductions_agree_with_what_runs(shape: Any, data: Any) -> None:
    rank = len(shape)
    axes = data.draw(st.sets(st.integers(0, rank - 1)) if rank else st.just(set()))
    given = [axis - rank * data.draw(st.booleans()) for axis in axes]
    keep = data.draw(st.booleans())
    known = [dim if data.draw(st.booleans()) else None for dim in shape]
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    with tf.Graph().as_default():
        place = tf.placeholder(tf.float32, known)
        total = tf.reduce_sum(place, given, keepdims=keep)
        value = run(total, {place: x})
    wanted = x.sum(axis=tuple(axes), keepdims=keep)
    np.testing.assert_allclose(value, wanted)
    assert total.shape.is_compatible_with(wanted.shape)
    assert len(total.shape) == wanted.ndim


@hypothesis.given(st.integers(-30, 30), st.integers(-30, 30), st.integers(-7, 7))
def test_ranges_are_pythons(start: int, limit: int, delta: int) -> None:
    away = delta == 0 or (delta > 0 and start > limit) or (delta < 0 and start < limit)
    numbers = [np.int32(value) for value in (start, limit, delta)]
    if away:
        with pytest.raises(ValueError, match="Requires"):
            generate.range_length(*numbers)
    else:
        assert generate.range_length(*numbers) == len(range(start, limit, delta))


INFERRED: list[tuple[str, list[Any], Any]] = [
    ("MatrixSetDiag", [None, [None]], [None, None]),
    ("MatrixSetDiag", [[None, 2, 3], [4, None]], [4, 2, 3]),
    ("MatrixDiagPart", [[4, None, 0]], [4, 0]),
    ("MatrixSolve", [None, [None, 1]], [None, 1]),
    ("MatrixSolve", [None, [4, 2, 1]], [4, 2, 1]),
    ("MatrixSolve", [[4, None, 2], None], [4, 2, None]),
    ("BatchMatMul", [None, [4, 2, 3]], [4, None, 3]),
    ("BatchMatMul", [[4, 2, 3], None], [4, 2, None]),
    ("BatchMatMulV2", [None, [4, 2, 3]], None),
    ("BiasAddV1", [[2, 5, 3], None], [2, 5, 3]),
    ("BiasAdd", [[2, 5, None], [3]], [2, 5, 3]),
    ("SoftmaxCrossEntropyWithLogits", [[2, None], None], [2]),
    ("SoftmaxCrossEntropyWithLogits", [[1, None], None], [None]),
    ("SoftmaxCrossEntropyWithLogits", [[None, 0], [3, None]], [3]),
    ("Tile", [[0, 2], [None]], [0, None]),
    ("Tile", [[None, 0], None], [None, 0]),
    ("StringJoin", [None, [1]], [1]),
    ("StringJoin", [[], [2, None], [None, 3]], [2, 3]),
    ("StringJoin", [[], []], []),
    ("StringJoin", [[], None], None),
]


@pytest.mark.parametrize(("op", "inputs", "wanted"), INFERRED)
def test_one_input_says_what_another_leaves_open(op: str, inputs: list[Any], wanted: Any) -> None:
    """As in TensorFlow, to the last extent."""
    kinds = [tf.float32] * len(inputs)
    if op == "Tile":
        kinds[1] = tf.int32
    if op == "StringJoin":
        found = tf.string_join([tf.placeholder(tf.string, each) for each in inputs]).shape
    else:
        tensors = [tf.placeholder(*each) for each in zip(kinds, inputs, strict=True)]
        found = tf.get_default_graph().create_op(op, tensors).outputs[0].shape
    assert (None if found.rank is None else found.as_list()) == wanted


def test_vectors_are_joined_along_the_only_axis_there_is() -> None:
    shape = tf.concat([tf.placeholder(tf.int32, [n]) for n in (1, 2)], tf.placeholder(tf.int32, []))
    assert shape.shape == [3]
    assert tf.random_uniform(shape).shape.rank == 3


def test_known_shapes_that_do_not_fit_are_unequal_in_a_scalar() -> None:
    x, y = (tf.placeholder(tf.float32, [extent]) for extent in (2, 3))
    attrs = {"incompatible_shape_error": False}
    graph = tf.get_default_graph()
    assert graph.create_op("Equal", [x, y], attrs=attrs).outputs[0].shape == []
    open_ = tf.placeholder(tf.float32, [None])
    assert graph.create_op("Equal", [open_, open_], attrs=attrs).outputs[0].shape.rank is None
