"""Functions of tf.nn on every framework, against TensorFlow: names, static shapes, values."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from answers import Answers
from graph.graph_oracle import families

import dlbridge.graph as tf

FRAMEWORKS = ("numpy", "torch", "jax")
RANDOM = np.random.default_rng(4)


def floats(*shape: int, dtype: Any = "float32") -> Any:
    return (RANDOM.standard_normal(shape) * 3).astype(dtype)


def numbers(*shape: int, dtype: Any = "int32", high: int = 9) -> Any:
    return RANDOM.integers(0 if np.dtype(dtype).kind == "u" else -high, high, shape).astype(dtype)


class Case(NamedTuple):
    """A graph, built by functions of `tf` on placeholders, and the values fed to these."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[Any, ...]
    tolerance: float = 1e-5


def unary(name: str, *inputs: Any) -> list[Case]:
    return [
        Case(f"{name}-{x.dtype}-{x.shape}", lambda tf, x: getattr(tf.nn, name)(x), (x,), 1e-5)
        for x in inputs
    ]


EXTREMES = np.array([-np.inf, -1e30, -100.0, -20.5, -1e-4, -0.0, 0.0, 1e-4, 20.5, 100.0, np.inf])
CURVES = (floats(3, 4), floats(0, 2), floats(), EXTREMES.astype("float32"), floats(2, 3, 4, 5))
ROWS = (floats(3, 4), floats(0, 2), floats(2, 0), floats(7), floats(2, 3, 4), floats(2, 3) * 300)
INTEGERS = tuple(
    numbers(2, 3, dtype=kind) for kind in ("int8", "uint8", "int16", "uint16", "int32", "int64")
)

IMAGES = floats(2, 7, 8, 4)
FILTER = floats(3, 3, 4, 6)
ACTIVATIONS = [
    *unary("relu", *CURVES, *INTEGERS),
    *unary("relu6", *CURVES, *INTEGERS),
    *(
        case
        for name in ("elu", "selu", "softplus", "softsign", "leaky_relu")
        for case in unary(name, *CURVES)
    ),
    *unary("leaky_relu", numbers(3)),
    Case("leaky_relu-alpha", lambda tf, x: tf.nn.leaky_relu(x, 0.01, name="n"), (floats(5),)),
    *unary("softmax", *ROWS),
    *unary("log_softmax", *ROWS),
    *unary("l2_loss", *CURVES[:3], floats(5, 5)),
]
CONVOLUTIONS = [
    Case(
        f"conv2d-{padding}-{strides}-{dilations}-{window}",
        lambda tf, x, w, padding=padding, strides=strides, dilations=dilations: tf.nn.conv2d(
            x, w, strides, padding, dilations=dilations
        ),
        (IMAGES, floats(*window, 4, 6)),
    )
    for padding in ("SAME", "VALID", [[0, 0], [1, 0], [2, 3], [0, 0]])
    for strides, dilations, window in (
        (1, 1, (1, 1)),
        (2, 1, (1, 1)),
        (1, 1, (3, 3)),
        ([1, 2, 3, 1], 1, (3, 2)),
        (1, 2, (3, 3)),
        (1, [1, 2, 3, 1], (2, 1)),
        ([2], 1, (5, 5)),
    )
]


def conv(*shapes: Any, **arguments: Any) -> Case:
    x, w = shapes if not isinstance(shapes[0], tuple) else (floats(*s) for s in shapes)
    arguments = {"strides": 1, "padding": "SAME", **arguments}
    label = "-".join(map(str, (x.dtype, x.shape, w.shape, *arguments.values())))
    return Case(f"conv2d-{label}", lambda tf, x, w: tf.nn.conv2d(x, w, **arguments), (x, w))


CONVOLUTIONS += [
    conv((2, 5, 6, 4), (3, 3, 2, 6)),  # two groups
    conv((2, 5, 6, 4), (2, 3, 1, 8), strides=2, padding="VALID"),  # four groups
    conv((0, 5, 6, 4), (3, 3, 4, 6)),
    conv((2, 5, 6, 4), (3, 3, 4, 6), name="given"),
    conv(floats(1, 4, 4, 2, dtype="float64"), floats(2, 2, 2, 3, dtype="float64")),
    conv(numbers(1, 4, 4, 2), numbers(2, 2, 2, 3)),
    Case(
        "conv1d",
        lambda tf, x, w: tf.nn.conv1d(x, w, 2, "SAME"),
        (floats(2, 9, 3), floats(3, 3, 5)),
    ),
    Case(
        "conv3d",
        lambda tf, x, w: tf.nn.conv3d(x, w, [1, 2, 1, 2, 1], "SAME"),
        (floats(2, 4, 5, 6, 2), floats(2, 3, 3, 2, 4)),
    ),
    *(
        Case(
            f"depthwise-{padding}-{stride}-{rate}-{multiplier}",
            lambda tf, x, w, padding=padding, stride=stride, rate=rate: (
                tf.nn.depthwise_conv2d_native(
                    x, w, [1, stride, stride, 1], padding, dilations=[1, rate, rate, 1]
                )
            ),
            (IMAGES, floats(3, 3, 4, multiplier)),
        )
        for padding in ("SAME", "VALID", [[0, 0], [1, 0], [2, 3], [0, 0]])
        for stride, rate, multiplier in ((1, 1, 1), (2, 1, 1), (2, 1, 3))
    ),
    Case(
        "depthwise_conv2d",
        lambda tf, x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        (IMAGES, floats(3, 3, 4, 2)),
    ),
    Case(
        "separable_conv2d",
        lambda tf, x, w, v: tf.nn.separable_conv2d(x, w, v, [1, 2, 2, 1], "SAME"),
        (IMAGES, floats(3, 3, 4, 2), floats(1, 1, 8, 5)),
    ),
    *(
        Case(
            f"transpose-{padding}-{stride}-{size}-{groups}",
            lambda tf, x, w, padding=padding, stride=stride, size=size: tf.nn.conv2d_transpose(
                x, w, [2, *size, 4], stride, padding
            ),
            (floats(2, *given, 6), floats(3, 3, 4, 6)),
        )
        for padding, stride, size, given, groups in (
            ("SAME", 1, (5, 6), (5, 6), 1),
            ("SAME", 2, (9, 12), (5, 6), 1),
            ("SAME", 2, (10, 11), (5, 6), 1),
            ("VALID", 1, (7, 8), (5, 6), 1),
            ("VALID", 2, (12, 13), (5, 6), 1),
            ("VALID", 3, (17, 18), (5, 6), 1),
            ([[0, 0], [1, 0], [1, 2], [0, 0]], 2, (10, 10), (5, 6), 1),
        )
    ),
]


def pool(name: str, x: Any, ksize: Any, strides: Any, padding: Any) -> Case:
    label = f"{name}-{x.dtype}-{x.shape}-{ksize}-{strides}-{padding}"
    return Case(label, lambda tf, x: getattr(tf.nn, name)(x, ksize, strides, padding), (x,))


POOLS = [
    *(
        pool(name, IMAGES, ksize, strides, padding)
        for name in ("max_pool", "avg_pool")
        for padding in ("SAME", "VALID")
        for ksize, strides in ((2, 2), (3, 2), (3, 1), ([1, 2, 5, 1], [1, 1, 3, 1]), (1, 2))
    ),
    pool("max_pool", IMAGES, [1, 1, 1, 2], [1, 1, 1, 2], "VALID"),
    pool("max_pool", IMAGES, 3, 2, [[0, 0], [1, 0], [1, 1], [0, 0]]),
    pool("max_pool", numbers(1, 4, 4, 2), 3, 2, "SAME"),
    pool("max_pool", numbers(1, 4, 4, 2, dtype="uint8"), 3, 2, "SAME"),
    pool("max_pool", floats(0, 4, 4, 2), 3, 2, "SAME"),
    Case(
        "max_pool_with_argmax",
        lambda tf, x: tf.nn.max_pool_with_argmax(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
        (IMAGES,),
    ),
    Case(
        "max_pool_with_argmax-ties",
        lambda tf, x: tf.nn.max_pool_with_argmax(
            x, [1, 2, 3, 1], [1, 1, 2, 1], "VALID", include_batch_in_index=True, name="n"
        ),
        (numbers(2, 4, 5, 3, dtype="float32", high=2),),
    ),
    pool("max_pool3d", floats(2, 4, 5, 6, 2), 2, 2, "SAME"),
    pool("avg_pool3d", floats(2, 4, 5, 6, 2), 3, 2, "SAME"),
]
OTHERS = [
    Case("bias_add", lambda tf, x, b: tf.nn.bias_add(x, b), (IMAGES, floats(4))),
    Case("bias_add-2", lambda tf, x, b: tf.nn.bias_add(x, b, name="n"), (floats(3, 2), floats(2))),
    Case(
        "bias_add-NCHW",
        lambda tf, x, b: tf.nn.bias_add(x, b, "NCHW"),
        (floats(2, 3, 4, 5), floats(3)),
    ),
    Case("bias_add-int", lambda tf, x, b: tf.nn.bias_add(x, b), (numbers(3, 2), numbers(2))),
    Case("lrn", lambda tf, x: tf.nn.lrn(x), (IMAGES,)),
    Case(
        "lrn-arguments",
        lambda tf, x: tf.nn.local_response_normalization(x, 2, 0.5, 1e-2, 0.75),
        (IMAGES,),
    ),
    Case("space_to_depth", lambda tf, x: tf.nn.space_to_depth(x, 2), (floats(2, 4, 6, 3),)),
    Case("depth_to_space", lambda tf, x: tf.nn.depth_to_space(x, 2), (floats(2, 4, 6, 8),)),
    Case(
        "in_top_k",
        lambda tf, p, t: tf.nn.in_top_k(p, t, 2),
        (floats(6, 4), np.array([0, 1, 2, 3, -1, 7], "int32")),
    ),
]
NORMALISATIONS = [
    Case(
        "batch_normalization",
        lambda tf, *x: tf.nn.batch_normalization(*x, 1e-3),
        (IMAGES, floats(4), floats(4) ** 2, floats(4), floats(4)),
    ),
    Case(
        "batch_normalization-bare",
        lambda tf, *x: tf.nn.batch_normalization(*x, None, None, 1e-3),
        (IMAGES, floats(4), floats(4) ** 2),
    ),
    *(
        Case(
            f"moments-{axes}-{keep}",
            lambda tf, x, axes=axes, keep=keep: tf.nn.moments(x, axes, keep_dims=keep),
            (IMAGES,),
        )
        for axes in ([0, 1, 2], [1], [-1])
        for keep in (False, True)
    ),
    *(
        Case(
            f"l2_normalize-{axis}",
            lambda tf, x, axis=axis: tf.nn.l2_normalize(x, axis),
            (floats(3, 4, 5),),
        )
        for axis in (1, [0, 2], -1)
    ),
    Case(
        "fused_batch_norm",
        lambda tf, *x: tf.nn.fused_batch_norm(*x, is_training=False),
        (IMAGES, floats(4), floats(4), floats(4), floats(4) ** 2),
    ),
    Case(
        "fused_batch_norm-training",
        lambda tf, *x: tf.nn.fused_batch_norm(*x),
        (IMAGES, floats(4), floats(4)),
        1e-4,
    ),
    Case(
        "fused_batch_norm-average",
        lambda tf, *x: tf.nn.fused_batch_norm(*x, exponential_avg_factor=0.3),
        (IMAGES, floats(4), floats(4), floats(4), floats(4) ** 2),
        1e-4,
    ),
    Case(
        "fused_batch_norm-volumes",
        lambda tf, *x: tf.nn.fused_batch_norm(*x, data_format="NDHWC"),
        (floats(2, 3, 4, 5, 4), floats(4), floats(4)),
        1e-4,
    ),
]
LOSSES = [
    Case(
        f"{name}-{shape}",
        lambda tf, labels, logits, name=name: getattr(tf.nn, name)(labels=labels, logits=logits),
        (np.abs(floats(*shape)), floats(*shape)),
    )
    for name in (
        "softmax_cross_entropy_with_logits",
        "softmax_cross_entropy_with_logits_v2",
        "sigmoid_cross_entropy_with_logits",
    )
    for shape in ((3, 4), (2, 3, 4), (0, 4), (2, 3, 2, 2))
] + [
    Case(
        "softmax_cross_entropy_with_logits_v2-axis",
        lambda tf, labels, logits: tf.nn.softmax_cross_entropy_with_logits_v2(labels, logits, 1),
        (np.abs(floats(2, 3, 4)), floats(2, 3, 4)),
    ),
    Case(
        "sparse_softmax_cross_entropy_with_logits",
        lambda tf, labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits
        ),
        (np.array([2, 0, 3], "int32"), floats(3, 4)),
    ),
    Case(
        "sparse_softmax_cross_entropy_with_logits-3",
        lambda tf, labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits, name="n"
        ),
        (np.array([[2, 0, 3], [1, 1, 1]], "int64"), floats(2, 3, 4)),
    ),
    Case(
        "weighted_cross_entropy_with_logits",
        lambda tf, labels, logits: tf.nn.weighted_cross_entropy_with_logits(labels, logits, 2.0),
        (np.abs(floats(3, 4)), floats(3, 4)),
    ),
]
COMPOSITES = [
    Case("xw_plus_b", lambda tf, *x: tf.nn.xw_plus_b(*x), (floats(2, 3), floats(3, 4), floats(4))),
    Case(
        "relu_layer",
        lambda tf, *x: tf.nn.relu_layer(*x, name="n"),
        (floats(2, 3), floats(3, 4), floats(4)),
    ),
    Case("crelu", lambda tf, x: tf.nn.crelu(x), (floats(2, 3),)),
    Case("log_sigmoid", lambda tf, x: tf.log_sigmoid(x), (CURVES[3],)),
    Case("sigmoid", lambda tf, x: tf.nn.sigmoid(x), (CURVES[3],)),
    Case("tanh", lambda tf, x: tf.nn.tanh(x), (CURVES[3],)),
    *(
        Case(
            f"softmax-axis-{axis}",
            lambda tf, x, axis=axis: tf.nn.softmax(x, axis),
            (floats(2, 3, 4),),
        )
        for axis in (0, 1, 2, -1)
    ),
    Case("top_k", lambda tf, x: tf.nn.top_k(x, 2), (floats(3, 5),)),
    Case(
        "embedding_lookup",
        lambda tf, table, ids: tf.nn.embedding_lookup(table, ids),
        (floats(5, 3), np.array([[1, 4], [0, 0]], "int32")),
    ),
    Case(
        "embedding_lookup-max_norm",
        lambda tf, table, ids: tf.nn.embedding_lookup(table, ids, max_norm=2.0),
        (floats(5, 3), np.array([[1, 4], [0, 0]], "int32")),
    ),
    *(
        Case(
            f"embedding_lookup-{'max_norm' if norm else 'tables'}-{strategy}",
            lambda tf, *x, strategy=strategy, norm=norm: tf.nn.embedding_lookup(
                [*x[:-1]], x[-1], strategy, max_norm=norm
            ),
            (floats(3, 2), floats(2, 2), floats(2, 2), np.array([[6, 4, 0], [2, 5, 3]], "int64")),
        )
        for strategy in ("mod", "div")
        for norm in (None, 1.0)
    ),
    Case(
        "convolution",
        lambda tf, x, w: tf.nn.convolution(x, w, "SAME", name="n"),
        (floats(1, 5, 6, 3), floats(2, 2, 3, 4)),
    ),
]


def resized(method: str, images: Any, *size: int, **flags: bool) -> Case:
    label = "-".join(map(str, (method, images.dtype, images.shape, size, *flags)))
    return Case(
        label, lambda tf, x: getattr(tf.image, f"resize_{method}")(x, size, **flags), (images,)
    )


RESIZES = [
    resized(method, images, *size, **flags)
    for method in ("bilinear", "nearest_neighbor")
    for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    for images, size in (
        (floats(2, 4, 5, 3), (8, 10)),
        (floats(2, 7, 5, 3), (3, 11)),
        (floats(1, 6, 6, 1), (1, 1)),
        (numbers(1, 3, 4, 2, dtype="uint8", high=200), (7, 4)),
    )
]
BOXES = np.array(
    [
        [0, 0, 1, 1],
        [0.1, 0.2, 0.7, 0.9],
        [-0.2, 0.1, 1.3, 0.5],
        [0.8, 0.8, 0.2, 0.15],
        [0.3, 0.3, 0.3, 0.3],
    ],
    "float32",
)
CROPS = [
    Case(
        f"crop_and_resize-{images.dtype}-{method}-{size}",
        lambda tf, images, boxes, owners, method=method, size=size: tf.image.crop_and_resize(
            images, boxes, owners, size, method, 9.0
        ),
        (images, BOXES, np.array([0, 1, 1, 0, 0], "int32")),
    )
    for method in ("bilinear", "nearest")
    for images, size in (
        (floats(2, 5, 6, 2), (3, 4)),
        (floats(2, 5, 6, 2), (1, 2)),
        (numbers(2, 5, 6, 2, dtype="uint8", high=200), (4, 1)),
    )
]
CASES = [
    *NORMALISATIONS, *LOSSES, *COMPOSITES, *RESIZES, *ACTIVATIONS, *CONVOLUTIONS, *POOLS, *OTHERS,
    *CROPS,
]  # fmt: skip
# TensorFlow's oneDNN operations, which it takes by itself on processors with AVX-512, give an empty
# batch the shape of the input. The recorded answers are made without them.
ONEDNN_IS_WRONG = ("conv2d-float32-(0, 5, 6, 4)",)
# Of an axis of an unknown rank: TensorFlow fails in its own way, or makes the shape as it runs.
NEEDS_RANK = ("softmax-axis-", "softmax_cross_entropy_with_logits_v2-axis", "embedding_lookup-max")


def tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


def loosened(case: Case, how: str) -> list[Any]:
    """Return the static shapes of the placeholders: all known, extents unknown, rank unknown."""
    shapes = {
        "known": lambda x: x.shape,
        "batch": lambda x: (None, *x.shape[1:]) if x.ndim else (),
        "extents": lambda x: (None,) * x.ndim,
        "rank": lambda x: None,
    }
    return [shapes[how](x) for x in case.inputs]


def built(tf: Any, case: Case, how: str) -> tuple[Any, list[Any], list[Any]]:
    """Return the graph, the placeholders and the results of a case."""
    graph = tf.Graph()
    with graph.as_default():
        return graph, *placed(tf, case, how)


def placed(tf: Any, case: Case, how: str) -> tuple[list[Any], list[Any]]:
    """Return placeholders and results of a case in the current graph."""
    holders = [
        tf.placeholder(x.dtype, shape)
        for x, shape in zip(case.inputs, loosened(case, how), strict=True)
    ]
    out = case.build(tf, *holders)
    return holders, list(out) if isinstance(out, list | tuple) else [out]


def summary(tf: Any, case: Case, how: str) -> Any:
    """Return names, dtypes and static shapes of a case's results, or the class of its error."""
    try:
        _, _, results = built(tf, case, how)
    except (TypeError, ValueError) as error:
        return [base for base in (TypeError, ValueError) if isinstance(error, base)]
    shapes = [None if each.shape.rank is None else each.shape.as_list() for each in results]
    return [
        (each.name, each.dtype.name, shape) for each, shape in zip(results, shapes, strict=True)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_dtypes_and_static_shapes_are_tensorflows(case: Case, answers: Answers) -> None:
    for how in ("known", "batch", "extents", "rank"):
        ours = summary(tf, case, how)
        if how == "rank" and case.name.startswith(NEEDS_RANK) and case.name != "softmax-axis--1":
            assert ours == [ValueError]
            continue
        question = f"summary {case.name} {how}"
        for wanted in answers(question, partial(ask_summary, case, how), *case.inputs):
            assert ours == wanted, f"shapes of inputs: {how}"


def ask_summary(case: Case, how: str) -> Any:
    """Return TensorFlow's names, dtypes and static shapes."""
    return summary(tensorflow(), case, how)


def ask_values(case: Case) -> list[Any]:
    """Return TensorFlow's values."""
    v1 = tensorflow()
    graph, holders, results = built(v1, case, "known")
    with v1.Session(graph=graph) as session:
        values: list[Any] = session.run(results, dict(zip(holders, case.inputs, strict=True)))
    return values


FAMILIES = families(CASES)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_tensorflows(family: str, name: str, framework: Any, answers: Answers) -> None:
    """In one graph for the cases of a function."""
    framework(name)
    fetches, feeds = [], {}
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        for case in FAMILIES[family]:
            holders, results = placed(tf, case, "extents")
            fetches.append(results)
            feeds.update(zip(holders, case.inputs, strict=True))
        found = session.run(fetches, feeds)
    for case, values in zip(FAMILIES[family], found, strict=True):
        live = not case.name.startswith(ONEDNN_IS_WRONG)
        question = f"values {case.name}"
        for wanted in answers(question, partial(ask_values, case), *case.inputs, live=live):
            for value, want in zip(values, wanted, strict=True):
                assert value.shape == want.shape, case.name
                assert value.dtype == want.dtype, case.name
                scale = max(float(np.max(np.abs(want[np.isfinite(want)]), initial=0)), 1e-3)
                np.testing.assert_allclose(
                    value, want, case.tolerance, case.tolerance * scale, err_msg=case.name
                )
