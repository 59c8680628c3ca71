"""Results that kernels compute from constants are kept, and never used for anything else."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.ops.kernels import cached

FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_array_fed_for_a_constant_counts_each_time(name: str, framework: object) -> None:
    """It is shared, so its owner may change it between runs; an answer kept would be wrong."""
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        x = tf.placeholder(tf.float32, None)
        wanted = tf.constant([2, 6])
        out = tf.reshape(x, wanted)
        value, fed = np.zeros(12, np.float32), np.array([3, 4], np.int32)
        assert session.run(out, {x: value}).shape == (2, 6)
        assert session.run(out, {x: value, wanted: fed}).shape == (3, 4)
        fed[:] = 4, 3
        assert session.run(out, {x: value, wanted: fed}).shape == (4, 3)
        assert session.run(out, {x: value}).shape == (2, 6)


def test_an_answer_is_kept_for_one_shape_and_the_constants_themselves() -> None:
    calls = []

    def compute(dims: tuple[int, ...], axes: object) -> int:
        calls.append(dims)
        return len(calls)

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, None)
        op = tf.transpose(x, [1, 0]).op
        loose = tf.transpose(x, tf.placeholder(tf.int32, [2])).op
    perm = op.inputs[1].op.attrs["value"].array
    recall = cached(op, (1,), compute)
    assert [recall((2, 3), perm), recall((2, 3), perm), recall((3, 3), perm)] == [1, 1, 2]
    assert [recall((3, 3), perm.copy()), recall((3, 3), perm)] == [3, 2]
    assert cached(loose, (1,), compute) is compute
