"""Errors of tf.nn: when an operation is built, and when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph.nn_samples import FRAMEWORKS, IMAGES, SCALE, TRANSPOSED, WEIGHTS, filters

import dlbridge.graph as tf
from dlbridge.graph.ops.windows import read_layout

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
    "stride of sequences": (
        ValueError,
        "must be positive",
        lambda: tf.nn.conv1d(IMAGES[0], WEIGHTS[0], 0, "VALID"),
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
        lambda: tf.nn.embedding_lookup([], [0]),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_when_the_graph_is_built(wrong: str) -> None:
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
            TRANSPOSED,
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
def test_wrong_values_are_refused_when_the_graph_runs(
    wrong: str, name: str, framework: Any
) -> None:
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


def test_an_unknown_data_format_is_quoted() -> None:
    """It may come from a file, with bytes that are no text or that move a terminal's cursor."""
    with pytest.raises(ValueError, match=r"got b'\\x1b\[2J\\xff!'"):
        read_layout({"data_format": b"\x1b[2J\xff!"}, [1])
