"""Python's operators on tensors: names, types, operands of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


OPERATORS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("add", "AddV2", lambda x: x + x),
    ("sub", "Sub", lambda x: x - x),
    ("mul", "Mul", lambda x: x * x),
    ("truediv", "RealDiv", lambda x: x / x),
    ("floordiv", "FloorDiv", lambda x: x // x),
    ("mod", "FloorMod", lambda x: x % x),
    ("pow", "Pow", lambda x: x**x),
    ("and", "LogicalAnd", lambda x: (x < x) & (x < x)),
    ("or", "LogicalOr", lambda x: (x < x) | (x < x)),
    ("matmul", "MatMul", lambda x: x @ x),
    ("strided_slice", "StridedSlice", lambda x: x[0]),
    ("Neg", "Neg", lambda x: -x),
    ("Abs", "Abs", abs),
    ("Less", "Less", lambda x: x < x),
]


@pytest.mark.parametrize(
    ("name", "kind", "of"), OPERATORS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_an_operator_gives_its_operation_this_name(name: str, kind: str, of: Any) -> None:
    result = of(tf.constant([[1.0]]))
    assert (result.op.name, result.op.type) == (name, kind)


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
