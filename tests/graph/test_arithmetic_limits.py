"""Arithmetic at the limits of a dtype: division by zero, powers, infinities, failed factors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graph.small_graphs import run

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply

FRAMEWORKS = ["numpy", "torch", "jax"]


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


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


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_integers_are_raised_to_any_power(
    graph: tf.Graph, framework: Any, name: str, dtype: str
) -> None:
    """`jax.numpy.power` takes six bits of an exponent."""
    framework(name)
    x, y = np.meshgrid(np.array([-3, -1, 0, 1, 2, 3], dtype), np.array([0, 1, 63, 64, 127], dtype))
    width = np.dtype(dtype).itemsize * 8
    exact = [int(a) ** int(b) for a, b in zip(x.ravel(), y.ravel(), strict=True)]
    wrapped = [(n + (1 << width - 1)) % (1 << width) - (1 << width - 1) for n in exact]
    with tf.Session(framework=name) as session:
        assert session.run(tf.pow(x, y)).ravel().tolist() == wrapped


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_quotient_of_integers_that_is_no_integer_is_refused(
    graph: tf.Graph, framework: Any, name: str
) -> None:
    """TensorFlow declares RealDiv for integers, and has no kernel for them."""
    framework(name)
    x = tf.constant([1, 2])
    quotient = apply("RealDiv", [x, x], {}, None)
    half = apply("RealDiv", [tf.constant([1.0]), tf.constant([2.0])], {}, None).outputs[0]
    with tf.Session(framework=name) as session:
        with pytest.raises(tf.errors.UnimplementedError, match="truediv"):
            session.run(quotient)
        assert session.run(half).tolist() == [0.5]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_bits_are_counted(graph: tf.Graph, framework: Any, name: str) -> None:
    framework(name)
    x = tf.constant([0, 1, -1, 127, -128], tf.int8)
    with tf.Session(framework=name) as session:
        (counts,) = session.run(apply("PopulationCount", [x], {}, None).outputs)
    assert counts.tolist() == [0, 1, 8, 7, 1]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_special_functions_have_limits(graph: tf.Graph, framework: Any, name: str) -> None:
    framework(name)
    x = tf.constant([np.inf, -np.inf, -1, np.nan], tf.float64)
    with tf.Session(framework=name) as session:
        result = session.run(tf.digamma(x))
        np.testing.assert_array_equal(result, [np.inf, np.nan, np.nan, np.nan])
        assert session.run(tf.lgamma(x))[:3].tolist() == [np.inf] * 3
