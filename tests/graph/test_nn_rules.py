"""Rules of tf.nn that TensorFlow cannot show on a CPU, or only by its errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply

FRAMEWORKS = ("numpy", "torch", "jax")
RANDOM = np.random.default_rng(7)
IMAGES = RANDOM.standard_normal((2, 6, 7, 4)).astype("float32")


def run(name: str, build: Callable[[], Any]) -> Any:
    """Build a graph and return the values of what is built."""
    graph = tf.Graph()
    with graph.as_default():
        fetched = build()
    with tf.Session(graph=graph, framework=name) as session:
        return session.run(fetched)


def filters(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


WEIGHTS, DEPTHWISE, SCALE = filters(3, 3, 4, 6), filters(3, 2, 4, 2), filters(4)
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
        x, filters_of_transpose, [2, 5, 12, 13] if f == "NCHW" else [2, 12, 13, 5], 2, data_format=f
    ),
    "max_pool": lambda x, f: tf.nn.max_pool(x, 3, 2, "SAME", f),
    "avg_pool": lambda x, f: tf.nn.avg_pool(x, 2, 2, "SAME", f),
    "bias_add": lambda x, f: tf.nn.bias_add(x, SCALE, f),
    "inference": lambda x, f: tf.nn.fused_batch_norm(
        x, SCALE, SCALE, SCALE, VARIANCE, data_format=f, is_training=False
    )[0],
    "training": lambda x, f: tf.nn.fused_batch_norm(x, SCALE, SCALE, data_format=f)[0],
}
filters_of_transpose = filters(3, 3, 5, 4)


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
def test_16_bit_floats_are_added_up_in_32(kind: Any, name: str, framework: Any) -> None:
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


WRONG: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "too small": (
        ValueError,
        "Negative dimension size",
        lambda: tf.nn.conv2d(filters(2, 2, 6, 4), WEIGHTS, 1, "VALID"),
    ),
    "depth": (
        ValueError,
        "not a multiple of input depth",
        lambda: tf.nn.conv2d(IMAGES, filters(3, 3, 3, 6), 1, "VALID"),
    ),
    "groups": (
        ValueError,
        "not a multiple of the number of groups",
        lambda: tf.nn.conv2d(IMAGES, filters(3, 3, 2, 5), 1, "VALID"),
    ),
    "strides": (
        ValueError,
        "length 1, 2 or 4",
        lambda: tf.nn.conv2d(IMAGES, WEIGHTS, [1, 1, 1], "VALID"),
    ),
    "no stride": (
        ValueError,
        "positive",
        lambda: tf.nn.conv2d(IMAGES, WEIGHTS, 0, "VALID"),
    ),
    "rank": (
        ValueError,
        "must be rank 4",
        lambda: tf.nn.conv2d(IMAGES[0], WEIGHTS, 1, "VALID"),
    ),
    "padding": (ValueError, "padding", lambda: tf.nn.conv2d(IMAGES, WEIGHTS, 1, "valid")),
    "pairs": (ValueError, "four", lambda: tf.nn.conv2d(IMAGES, WEIGHTS, 1, [[0, 0], [1, 1]])),
    "negative padding": (
        ValueError,
        "negative",
        lambda: tf.nn.conv2d(IMAGES, WEIGHTS, 1, [[0, 0], [-1, 1], [0, 0], [0, 0]]),
    ),
    "both names": (
        ValueError,
        "filter or filters",
        lambda: tf.nn.conv2d(IMAGES, WEIGHTS, 1, "SAME", filters=WEIGHTS),
    ),
    "bias": (ValueError, "must be equal", lambda: tf.nn.bias_add(IMAGES, filters(3))),
    "bias format": (ValueError, "N...C", lambda: tf.nn.bias_add(IMAGES, SCALE, "XX")),
    "bias of a vector": (ValueError, "at least rank 2", lambda: tf.nn.bias_add(SCALE, SCALE)),
    "scalar rows": (ValueError, "at least rank 1", lambda: tf.nn.softmax(np.float32(3))),
    "axis": (
        tf.errors.InvalidArgumentError,
        "axis",
        lambda: tf.nn.softmax(filters(2, 3), axis=5),
    ),
    "text": (TypeError, "string", lambda: tf.nn.relu(["a"])),
    "integers": (TypeError, "int32", lambda: tf.nn.elu([1])),
    "labels of floats": (
        TypeError,
        "float32",
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=[1.0, 2.0], logits=filters(2, 3)
        ),
    ),
    "labels": (
        ValueError,
        "except for the last",
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[1, 2], logits=filters(3, 3)),
    ),
    "by name": (ValueError, "by name", lambda: tf.nn.softmax_cross_entropy_with_logits(filters(2))),
    "blocks": (ValueError, "divisible by 2", lambda: tf.nn.space_to_depth(filters(2, 5, 4, 6), 2)),
    "tables": (
        ValueError,
        "one table",
        lambda: tf.nn.embedding_lookup([filters(2, 2)] * 2, [0]),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_when_it_is_built(wrong: str) -> None:
    kind, text, build = WRONG[wrong]
    with tf.Graph().as_default(), pytest.raises(kind, match=text):
        build()


def fed(build: Callable[[Any], Any], *values: Any) -> Callable[[str], Any]:
    """Return what runs an operation on tensors of which nothing is known while it is built."""

    def execute(name: str) -> Any:
        graph = tf.Graph()
        with graph.as_default():
            holders = [tf.placeholder(value.dtype) for value in values]
            out = build(*holders)
        with tf.Session(graph=graph, framework=name) as session:
            return session.run(out, dict(zip(holders, values, strict=True)))

    return execute


INVALID = tf.errors.InvalidArgumentError
LATE: dict[str, tuple[type[Exception], str, Callable[[str], Any]]] = {
    "depth": (
        INVALID,
        "evenly divisible by filter depth",
        fed(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGES, filters(3, 3, 3, 6)),
    ),
    "size": (
        INVALID,
        "negative",
        fed(lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"), filters(2, 1, 6, 4), WEIGHTS),
    ),
    "stride of batches": (
        INVALID,
        "batch and depth",
        fed(lambda x, w: tf.nn.conv2d(x, w, [2, 1, 1, 1], "SAME"), IMAGES, WEIGHTS),
    ),
    "gradient": (
        INVALID,
        "out_backprop",
        fed(
            lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 9, 13, 5], 2),
            IMAGES,
            filters_of_transpose,
        ),
    ),
    "pool": (INVALID, "negative", fed(lambda x: tf.nn.max_pool(x, 9, 1, "VALID"), IMAGES)),
    "bias": (INVALID, "biases", fed(lambda x, b: tf.nn.bias_add(x, b), IMAGES, filters(1))),
    "size of nothing": (
        INVALID,
        "positive",
        fed(lambda x: tf.image.resize_bilinear(x, [0, 3]), IMAGES),
    ),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("wrong", LATE)
def test_what_does_not_fit_is_refused_when_it_runs(wrong: str, name: str, framework: Any) -> None:
    framework(name)
    kind, text, execute = LATE[wrong]
    with pytest.raises(kind, match=text):
        execute(name)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_label_that_is_no_class_is_refused_or_nan(name: str, framework: Any) -> None:
    """A compiled run of JAX cannot raise an error that depends on a value."""
    framework(name)
    execute = fed(
        lambda labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits
        ),
        np.array([1, 5], "int32"),
        filters(2, 3),
    )
    if name == "jax":
        assert np.isnan(execute(name)).tolist() == [False, True]
        return
    with pytest.raises(INVALID, match=r"label value of 5 .*\[0, 3\)"):
        execute(name)
