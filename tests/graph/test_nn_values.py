"""Results of tf.nn that TensorFlow cannot show on a CPU, against formulas and other layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from graph.nn_samples import DEPTHWISE, FRAMEWORKS, IMAGES, SCALE, TRANSPOSED, WEIGHTS

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def run(name: str, build: Callable[[], Any]) -> Any:
    """Build a graph and return the values of what is built."""
    graph = tf.Graph()
    with graph.as_default():
        fetched = build()
    with tf.Session(graph=graph, framework=name) as session:
        return session.run(fetched)


VARIANCE = SCALE**2 + 0.1
BOTH_WAYS: dict[str, Callable[[Any, str], Any]] = {
    "conv2d": lambda x, f: tf.nn.conv2d(x, WEIGHTS, 2, "SAME", data_format=f),
    "conv2d explicit": lambda x, f: tf.nn.conv2d(
        x,
        WEIGHTS,
        1,
        [[0, 0], [0, 0], [1, 0], [2, 1]] if f == "NCHW" else [[0, 0], [1, 0], [2, 1], [0, 0]],
        data_format=f,
    ),
    "depthwise": lambda x, f: tf.nn.depthwise_conv2d_native(
        x, DEPTHWISE, [1, 1, 2, 2] if f == "NCHW" else [1, 2, 2, 1], "VALID", f
    ),
    "transpose": lambda x, f: tf.nn.conv2d_transpose(
        x, TRANSPOSED, [2, 5, 12, 13] if f == "NCHW" else [2, 12, 13, 5], 2, data_format=f
    ),
    "max_pool": lambda x, f: tf.nn.max_pool(x, 3, 2, "SAME", f),
    "avg_pool": lambda x, f: tf.nn.avg_pool(x, 2, 2, "SAME", f),
    "bias_add": lambda x, f: tf.nn.bias_add(x, SCALE, f),
    "inference": lambda x, f: tf.nn.fused_batch_norm(
        x, SCALE, SCALE, SCALE, VARIANCE, data_format=f, is_training=False
    )[0],
    "training": lambda x, f: tf.nn.fused_batch_norm(x, SCALE, SCALE, data_format=f)[0],
}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("operation", BOTH_WAYS)
def test_channels_first_gives_what_channels_last_gives(
    operation: str, name: str, framework: Any
) -> None:
    """TensorFlow has no kernels for channels first on a CPU."""
    framework(name)
    build = BOTH_WAYS[operation]
    last = run(name, lambda: build(tf.constant(IMAGES), "NHWC"))
    first = run(name, lambda: build(tf.constant(IMAGES.transpose(0, 3, 1, 2)), "NCHW"))
    assert first.shape == last.transpose(0, 3, 1, 2).shape
    np.testing.assert_allclose(first, last.transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_accumulated_in_float32(kind: Any, name: str, framework: Any) -> None:
    """In 16 bits a sum of 4,000 ones stops at 2,048, or at 256."""
    framework(name)
    ones = np.ones((1, 1, 1, 4000), kind)
    out = run(name, lambda: tf.nn.conv2d(ones, np.full((1, 1, 4000, 1), 0.25, kind), 1, "VALID"))
    assert out.dtype == kind
    assert float(out.reshape(())) == 1000.0
    rows = run(name, lambda: tf.nn.softmax(np.zeros((1, 4096), kind)))
    assert rows.dtype == kind
    assert float(rows[0, 0]) == 2.0**-12


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_dilated_depthwise_convolution_is_that_of_a_filter_with_gaps(
    name: str, framework: Any
) -> None:
    """TensorFlow has no such kernel on a CPU."""
    framework(name)
    gaps = np.zeros((5, 3, 4, 2), "float32")
    gaps[::2, ::2] = DEPTHWISE
    dilated = run(
        name, lambda: tf.nn.depthwise_conv2d(IMAGES, DEPTHWISE, [1, 1, 1, 1], "SAME", rate=[2, 2])
    )
    plain = run(name, lambda: tf.nn.depthwise_conv2d(IMAGES, gaps, [1, 1, 1, 1], "SAME"))
    np.testing.assert_allclose(dilated, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_max_pool_v2_takes_windows_that_are_computed(name: str, framework: Any) -> None:
    framework(name)

    def build() -> Any:
        windows = tf.constant([1, 2, 2, 1]) + tf.constant([0, 1, 0, 0])
        attrs = {"padding": b"SAME"}
        return apply("MaxPoolV2", (tf.constant(IMAGES), windows, [1, 2, 2, 1]), attrs).outputs[0]

    wanted = run("numpy", lambda: tf.nn.max_pool(IMAGES, [1, 3, 2, 1], 2, "SAME"))
    np.testing.assert_array_equal(run(name, build), wanted)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_gelu_keeps_its_digits_far_below_zero(name: str, framework: Any) -> None:
    framework(name)
    x = np.array([-5.0, -1.0, 0.0, 0.5, 3.0], "float32")
    exact = [value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()]
    np.testing.assert_allclose(run(name, lambda: tf.nn.gelu(x)), exact, rtol=2e-5)
    rough = run(name, lambda: tf.nn.gelu(x, approximate=True))
    np.testing.assert_allclose(rough, exact, atol=2e-3)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_silu_is_x_times_its_sigmoid(name: str, framework: Any) -> None:
    framework(name)
    x = np.linspace(-4, 4, 9, dtype="float32")
    np.testing.assert_allclose(
        run(name, lambda: tf.nn.silu(x, 2.0)), x / (1 + np.exp(-2 * x)), rtol=1e-5
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_dropout_keeps_the_mean(name: str, framework: Any) -> None:
    framework(name)
    out = run(name, lambda: tf.nn.dropout(np.ones(10000, "float32"), rate=0.75, seed=3))
    assert set(out.tolist()) == {0.0, 4.0}
    assert 0.9 < float(out.mean()) < 1.1


def test_dropout_of_nothing_is_the_tensor_itself() -> None:
    with tf.Graph().as_default():
        x = tf.constant([1.0])
        assert tf.nn.dropout(x, rate=0.0) is x
        with pytest.raises(ValueError, match="rate"):
            tf.nn.dropout(x)
        with pytest.raises(ValueError, match="range"):
            tf.nn.dropout(x, rate=1.0)
        with pytest.raises(ValueError, match="floating"):
            tf.nn.dropout(tf.constant([1]), rate=0.5)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_share_of_zeros_is_counted(name: str, framework: Any) -> None:
    framework(name)
    assert run(name, lambda: tf.nn.zero_fraction([[0.0, 1.0], [0.0, 0.0]])) == 0.75


@pytest.mark.parametrize("op", ["LeakyRelu", "Selu", "Elu", "Softplus", "Softsign", "Relu6"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_activations_keep_bfloat16(graph: tf.Graph, framework: Any, name: str, op: str) -> None:
    framework(name)
    x = tf.placeholder(tf.bfloat16, [3])
    with tf.Session(framework=name) as session:
        result = session.run(apply(op, [x], {}, None).outputs[0], {x: [-1, 0, 1]})
    assert result.dtype == tf.bfloat16.as_numpy_dtype


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize(
    "name", ["relu", "relu6", "softsign", "l2_loss", "elu", "selu", "softplus"]
)
def test_scalars_keep_their_dtype(name: str, kind: str) -> None:
    """Before NumPy 2, a number of Python beside an array of rank 0 decides about the dtype."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(kind, [])
        assert session.run(getattr(tf.nn, name)(x), {x: np.asarray(2, kind)}).dtype == kind


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cross_entropy_is_that_of_its_axis(axis: int) -> None:
    logits, labels = np.float32([[1, 2], [3, 5]]), np.float32([[0.25, 0.5], [0.75, 0.5]])
    logarithms = logits - np.log(np.exp(logits).sum(axis, keepdims=True))
    with tf.Graph().as_default(), tf.Session() as session:
        cost = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits, axis=axis)
        found = session.run(cost)
    np.testing.assert_allclose(found, -(labels * logarithms).sum(axis), 1e-5)
