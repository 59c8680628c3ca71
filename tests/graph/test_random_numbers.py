"""Random numbers: their range and mean, and which seeds repeat them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graph.small_graphs import run

import dlbridge.graph as tf

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
