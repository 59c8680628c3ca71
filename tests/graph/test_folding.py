"""Values that are known before the graph runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.core.inference import constant_dims, constant_value, partial_value


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def batch() -> Any:
    return tf.placeholder(tf.float32, [None, 3, 4])


CHAINS = {
    "shape": (lambda x: tf.shape(x), [None, 3, 4]),
    "item": (lambda x: tf.shape(x)[1], 3),
    "unknown item": (lambda x: tf.shape(x)[0], None),
    "slice": (lambda x: tf.shape(x)[1:], [3, 4]),
    "backwards": (lambda x: tf.shape(x)[::-1], [4, 3, None]),
    "stack": (lambda x: tf.stack([tf.shape(x)[0], 12, -1]), [None, 12, -1]),
    "concat": (lambda x: tf.concat([tf.shape(x)[:2], [7]], 0), [None, 3, 7]),
    "cast": (lambda x: tf.cast(tf.shape(x), tf.int64), [None, 3, 4]),
    "gather": (lambda x: tf.gather(tf.shape(x), [2, 0]), [4, None]),
    "split": (lambda x: tf.split(tf.shape(x), 3)[1], [3]),
    "unstack": (lambda x: tf.stack(tf.unstack(tf.shape(x))[::-1]), [4, 3, None]),
    "reshape": (lambda x: tf.reshape(tf.shape(x), [3, 1])[:, 0], [None, 3, 4]),
    "identity": (lambda x: tf.identity(tf.squeeze(tf.expand_dims(tf.shape(x), 0))), [None, 3, 4]),
    "rank": (lambda x: tf.rank(x), 3),
    "size": (lambda x: tf.size(x), None),
    "size known": (lambda x: tf.size(x[0]), 12),
    "arithmetic": (lambda x: tf.shape(x)[1] * 2 + 1, 7),
    "range": (lambda x: tf.range(tf.shape(x)[1]), [0, 1, 2]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_values_that_follow_from_shapes_are_known(name: str) -> None:
    build, wanted = CHAINS[name]
    found = partial_value(build(batch()))
    assert (None if found is None else found.tolist()) == wanted


def test_known_values_have_their_dtype() -> None:
    value = constant_value(tf.cast(tf.shape(batch())[1:], tf.int64))
    assert value.dtype == np.int64
    assert constant_value(tf.shape(batch())) is None


def test_minus_one_and_what_is_unknown_are_unknown_extents() -> None:
    assert constant_dims(tf.constant([-1, 5])) == (None, 5)
    assert constant_dims(tf.stack([tf.shape(batch())[0], 5])) == (None, 5)
    assert constant_dims(tf.placeholder(tf.int32, [2])) == (None, None)
    assert constant_dims(tf.placeholder(tf.int32, [None])) is None


def test_a_shape_made_of_a_shape_keeps_what_is_known() -> None:
    x = batch()
    assert tf.reshape(x, tf.stack([tf.shape(x)[0], 12])).shape == (None, 12)
    assert tf.zeros(tf.shape(x)).shape == (None, 3, 4)
    assert tf.reshape(x, tf.shape(x)[::-1]).shape == (4, 3, None)


def test_a_value_that_can_be_fed_is_not_known() -> None:
    default = tf.placeholder_with_default(tf.constant([1, 2]), [2])
    assert partial_value(default).tolist() == [None, None]
    assert partial_value(tf.placeholder(tf.float32, [2])) is None


def test_random_numbers_and_large_values_are_not_computed() -> None:
    assert constant_value(tf.fill([2000, 2000], 1)) is None
    assert constant_value(tf.random_uniform([2])) is None


def test_a_value_that_cannot_be_computed_is_not_known() -> None:
    assert constant_value(tf.constant(1) // tf.constant(0)) is None


def test_a_long_chain_is_given_up() -> None:
    """Asking must stay cheap, however deep a graph is."""
    x = tf.shape(batch())
    for _ in range(2000):
        x = x + x
    assert partial_value(x).tolist() == [None] * 3
