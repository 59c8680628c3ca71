"""A small model in TensorFlow, for the tests of `dlbridge.bridge`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from kernels.bridge_arrays import TREE, normal

tf = pytest.importorskip("tensorflow")


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """Collect the graphs of a test, which hold one another, in as many rounds as they take."""
    yield
    for _ in range(3):
        gc.collect()


def perceptron(params, x):
    hidden = tf.tanh(x @ params["lower"]["w"] + params["lower"]["b"])
    return hidden @ params["upper"][0]


class Perceptron(tf.Module):
    """The same as a module, decorated as most are."""

    def __init__(self):
        super().__init__()
        self.lower, self.upper = tf.Module(), [tf.Variable(TREE["upper"][0])]
        self.lower.w = tf.Variable(TREE["lower"]["w"])
        self.lower.b = tf.Variable(TREE["lower"]["b"])

    @tf.function(autograph=False)
    def __call__(self, x):
        return tf.tanh(x @ self.lower.w + self.lower.b) @ self.upper[0]


class Tied(tf.Module):
    """One variable by two paths."""

    def __init__(self):
        super().__init__()
        self.encoder = tf.Module()
        self.encoder.w = tf.Variable(normal(4, 4))
        self.layers = [self.encoder.w]

    def __call__(self, x):
        return tf.tanh(x @ self.encoder.w) @ self.layers[0]
