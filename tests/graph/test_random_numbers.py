"""What holds of arithmetic beyond single cases: operators, random numbers, shapes, errors."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

import dlbridge.graph as tf
from dlbridge.execution import einsum, ranges


def run(tensors: Any, feeds: Any = None, **session: Any) -> Any:
    first = tensors[0] if isinstance(tensors, list) else tensors
    with tf.Session(graph=first.graph, **session) as running:
        return running.run(tensors, feeds)


# ---- operators -----------------------------------------------------------------------------------


def test_equality_of_tensors_is_identity() -> None:
    """So that they can be keys and members, as in TensorFlow 1.x."""
    with tf.Graph().as_default():
        a, b = tf.constant(1.0), tf.constant(1.0)
        assert (a == b) is False
        assert (a != b) is True
        assert len({a, b, a}) == 2


def test_an_array_on_the_left_leaves_the_operation_to_the_tensor() -> None:
    with tf.Graph().as_default():
        x = tf.constant([1.0, 2.0])
        total = np.array([1.0, 1.0], np.float32) + x
        assert isinstance(total, tf.Tensor)
        assert (total.op.name, total.op.inputs[0].op.name) == ("add", "add/x")
        assert isinstance(np.float32(2) * x, tf.Tensor)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + tf.constant([1, 2]),
        lambda x: x / tf.constant([1, 2]),
        lambda x: x @ "text",
        lambda x: ~x,
        lambda x: x & x,
    ],
)
def test_operands_of_other_dtypes_are_refused(operation: Any) -> None:
    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError)):
        operation(tf.constant([1.0, 2.0]))


def test_bool_has_no_true_division() -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match="__truediv__"):
        tf.constant(True) / tf.constant(False)


@pytest.mark.parametrize("name", ["floordiv", "floormod", "truncatediv", "truncatemod", "div"])
@pytest.mark.parametrize("framework_name", ["numpy", "torch"])
def test_integers_are_not_divided_by_zero(framework: Any, framework_name: str, name: str) -> None:
    framework(framework_name)
    with tf.Graph().as_default():
        quotient = getattr(tf, name)(tf.constant([1, 2]), tf.placeholder_with_default([1, 0], [2]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero") as caught:
            run(quotient, framework=framework_name)
    assert caught.value.op is quotient.op


def test_integers_have_no_negative_powers() -> None:
    with tf.Graph().as_default():
        power = tf.pow(tf.constant([2, 3]), tf.placeholder_with_default([1, -1], [2]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="negative integer powers"):
            run(power)


def test_errors_of_shapes_name_the_operation_and_the_shapes() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"3 and 2 .*'here'.*\[2,3\]"):
        tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]), name="here")


@pytest.mark.parametrize("framework_name", ["numpy", "torch", "jax"])
def test_a_matrix_that_is_not_positive_definite_has_no_factor(
    framework: Any, framework_name: str
) -> None:
    """TensorFlow raises nothing either, and leaves the upper triangle as it was."""
    framework(framework_name)
    matrices = np.stack([np.eye(2), -np.eye(2)])
    with tf.Graph().as_default():
        good, bad = run(tf.cholesky(tf.constant(matrices)), framework=framework_name)
    np.testing.assert_array_equal(good, np.eye(2))
    assert np.isnan(bad[np.tril_indices(2)]).all()
    assert bad[0, 1] == 0


# ---- random numbers ------------------------------------------------------------------------------

DRAWS: dict[str, Any] = {
    "uniform": lambda seed: tf.random_uniform([4000], seed=seed),
    "range": lambda seed: tf.random_uniform([4000], -2.0, 5.0, seed=seed),
    "integers": lambda seed: tf.random_uniform([4000], -3, 4, tf.int32, seed=seed),
    "normal": lambda seed: tf.random_normal([4000], 1.0, 2.0, seed=seed),
    "double": lambda seed: tf.random.normal([4000], dtype=tf.float64, seed=seed),
    "half": lambda seed: tf.random_uniform([4000], dtype=tf.float16, seed=seed),
    "bfloat16": lambda seed: tf.random_uniform([4000], dtype=tf.bfloat16, seed=seed),
    "truncated": lambda seed: tf.truncated_normal([4000], seed=seed),
    "shuffled": lambda seed: tf.random_shuffle(np.arange(4000), seed=seed),
    "classes": lambda seed: tf.multinomial([[0.0, math.log(3.0)]], 4000, seed=seed),
}
# Least, greatest, mean (within 0.15).
EXPECTED = {
    "uniform": (0, 1, 0.5), "range": (-2, 5, 1.5), "integers": (-3, 3, 0), "normal": (-11, 13, 1),
    "double": (-6, 6, 0), "half": (0, 0.9996, 0.5), "bfloat16": (0, 0.9962, 0.5),
    "truncated": (-2, 2, 0), "shuffled": (0, 3999, 1999.5), "classes": (0, 1, 0.75),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_spread_as_asked(name: str) -> None:
    least, greatest, mean = EXPECTED[name]
    with tf.Graph().as_default():
        numbers = np.asarray(run(DRAWS[name](7))).astype(np.float64)
    assert least <= numbers.min()
    assert numbers.max() <= greatest
    assert abs(numbers.mean() - mean) < 0.15
    assert len(np.unique(numbers)) > 1


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_the_numbers_in_each_session_and_goes_on_within_one(name: str) -> None:
    def draw(seed: int | None) -> tuple[Any, Any]:
        with tf.Graph().as_default(), tf.Session() as session:
            numbers = DRAWS[name](seed)
            return session.run(numbers), session.run(numbers)

    (first, second), (again, _), (other, _) = draw(3), draw(3), draw(4)
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    assert (first != other).any()


@pytest.mark.parametrize("framework_name", ["torch", "jax"])
def test_random_numbers_are_the_same_on_every_framework(
    framework: Any, framework_name: str
) -> None:
    framework(framework_name)
    with tf.Graph().as_default():
        numbers = tf.random_uniform([5], seed=1)
        np.testing.assert_array_equal(run(numbers), run(numbers, framework=framework_name))


def test_without_a_seed_sessions_differ() -> None:
    with tf.Graph().as_default():
        numbers = tf.random_uniform([8])
        assert (run(numbers) != run(numbers)).any()


def test_the_graphs_seed_is_that_of_operations_without_one() -> None:
    def draw(seed: int) -> Any:
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            return run([tf.random_uniform([4]), tf.random_uniform([4])])

    (a, b), (c, d), (e, _) = draw(1), draw(1), draw(2)
    np.testing.assert_array_equal([a, b], [c, d])
    assert (a != b).any()
    assert (a != e).any()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([2], 0, None, tf.int32), ValueError),
        (([2], 0, 1, tf.bool), ValueError),
        (([-2],), ValueError),
    ],
)
def test_random_uniform_refuses(arguments: Any, error: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        tf.random_uniform(*arguments)


def test_an_empty_range_of_random_integers_is_refused() -> None:
    with tf.Graph().as_default():
        numbers = tf.random_uniform([2], 5, 5, tf.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="minval < maxval"):
            run(numbers)


# ---- shapes --------------------------------------------------------------------------------------


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
            ranges.count(*numbers)
    else:
        assert ranges.count(*numbers) == len(range(start, limit, delta))


@pytest.mark.parametrize(
    ("text", "shapes", "result"),
    [
        ("ij,jk->ik", [(2, 3), (3, None)], (2, None)),
        ("ij,jk", [(2, 3), (3, 4)], (2, 4)),
        ("b a -> a b", [(2, 3)], (3, 2)),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (7, 3, 4)], (5, 7, 2, 4)),
        ("...i->...", [None], None),
        ("i...->i", [None], None),
        ("ij->j", [None], (None,)),
    ],
)
def test_einsum_shapes(text: str, shapes: Any, result: Any) -> None:
    if text == "i...->i":
        with pytest.raises(ValueError, match="ellipsis"):
            einsum.parse(text, len(shapes))
        return
    assert einsum.contract(einsum.parse(text, len(shapes)), shapes) == result


@pytest.mark.parametrize(
    ("text", "count"),
    [("ij,jk->ik", 1), ("i1->i", 1), ("ij->ii", 1), ("ij->k", 1), ("i....j->i", 1), ("", 2)],
)
def test_wrong_equations_are_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match="einsum"):
        einsum.parse(text, count)


def test_namespaces_hold_the_same_functions() -> None:
    assert tf.math.add is tf.add
    assert tf.linalg.inv is tf.matrix_inverse
    assert tf.random.uniform is tf.random_uniform
    assert tf.math.reduce_sum is tf.reduce_sum
    for module in (tf.math, tf.linalg, tf.random, tf.bitwise):
        for name in vars(module):
            function = getattr(module, name)
            assert name.startswith("_") or not callable(function) or function.__doc__, name
