"""Small programs as people write them for TensorFlow 1.x: the same values here and there."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours

RANDOM = np.random.default_rng(0)
X = RANDOM.random((20, 3), dtype=np.float32)
Y = RANDOM.random((20, 1), dtype=np.float32)
LABELS = RANDOM.integers(0, 5, 20)
IMAGES = RANDOM.random((4, 8, 8, 1), dtype=np.float32)


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    return framework("tensorflow").compat.v1


def regression(tf: Any, session: Any) -> Any:
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    w, b = tf.Variable(tf.zeros([3, 1]), name="w"), tf.Variable(0.0, name="b")
    error = tf.add(tf.matmul(x, w), b) - y
    loss = tf.reduce_mean(tf.square(error))
    count = tf.cast(tf.shape(x)[0], tf.float32)
    slope = 2 * tf.matmul(x, error, transpose_a=True) / count
    train = tf.group(tf.assign_sub(w, 0.1 * slope), b.assign_sub(0.2 * tf.reduce_mean(error)))
    session.run(tf.global_variables_initializer())
    losses = [session.run([loss, train], {x: X, y: Y})[0] for _ in range(10)]
    return losses, session.run([w, b]), train.name


def perceptron(tf: Any, session: Any) -> Any:
    def dense(x: Any, size: int, name: str) -> Any:
        with tf.variable_scope(name):
            shape = [int(x.get_shape()[1]), size]
            start = np.linspace(-1, 1, shape[0] * size).reshape(shape)
            w = tf.get_variable("w", shape, initializer=tf.constant_initializer(start))
            b = tf.get_variable("b", [size], initializer=tf.zeros_initializer())
        return tf.nn.xw_plus_b(x, w, b), w, b

    x = tf.placeholder(tf.float32, [None, 3])
    target = tf.one_hot(tf.placeholder(tf.int32, [None], name="labels"), 5)
    z, w1, b1 = dense(x, 4, "hidden")
    h = tf.nn.tanh(z)
    logits, w2, b2 = dense(h, 5, "out")
    loss = tf.nn.softmax_cross_entropy_with_logits_v2(labels=target, logits=logits)
    down = tf.nn.softmax(logits) - target
    back = tf.matmul(down, w2, transpose_b=True) * (1 - h * h)
    with tf.control_dependencies([down, back]):
        step = [
            w2.assign_add(-0.1 * tf.matmul(tf.transpose(h), down)),
            b2.assign_add(-0.1 * tf.reduce_sum(down, 0)),
            w1.assign_add(-0.1 * tf.matmul(tf.transpose(x), back)),
            b1.assign_add(-0.1 * tf.reduce_sum(back, axis=0)),
        ]
    session.run(tf.global_variables_initializer())
    feeds = {x: X, "labels:0": LABELS}
    for _ in range(5):
        session.run(step, feeds)
    names = [each.name for each in tf.trainable_variables()]
    return session.run([loss, tf.nn.in_top_k(logits, tf.constant(LABELS), 2)], feeds), names


def unrolled_rnn(tf: Any, session: Any) -> Any:
    x = tf.placeholder(tf.float32, [2, 5, 3])
    w, u = tf.constant(np.eye(3, 4, dtype="f4")), tf.constant(np.full((4, 4), 0.1, "f4"))
    h, states = tf.zeros([2, 4]), []
    for step in tf.unstack(x, axis=1):
        h = tf.tanh(tf.matmul(step, w) + tf.matmul(h, u))
        states.append(h)
    out = tf.stack(states, 1)
    ragged = tf.reverse_sequence(out, [2, 3], seq_axis=1, batch_axis=0)
    return session.run([out, h, ragged], {x: X[:10].reshape(2, 5, 3)}), out.name


def lstm_step(tf: Any, session: Any) -> Any:
    c = h = tf.zeros([20, 2])
    kernel = tf.get_variable("kernel", [5, 8], initializer=tf.constant_initializer(0.2))
    gates = tf.matmul(tf.concat([tf.constant(X), h], 1), kernel)
    i, j, f, o = tf.split(value=gates, num_or_size_splits=4, axis=1)
    c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    h = tf.tanh(c) * tf.sigmoid(o)
    session.run(tf.global_variables_initializer())
    return session.run((c, h)), [each.name for each in (i, j, f, o, c, h)]


def embeddings(tf: Any, session: Any) -> Any:
    table = tf.Variable(np.arange(20, dtype="f4").reshape(10, 2), name="table")
    center, context = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None, 1])
    one = tf.nn.embedding_lookup(table, center)
    other = tf.nn.embedding_lookup(table, tf.reshape(context, [-1]))
    score = tf.reduce_sum(one * other, 1) / 100
    unit = table / tf.sqrt(tf.reduce_sum(tf.square(table), 1, keep_dims=True))
    near = tf.matmul(tf.nn.embedding_lookup(unit, [1, 2]), unit, transpose_b=True)
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.ones_like(score), logits=score)
    session.run(tf.global_variables_initializer())
    return session.run([score, near, loss], {center: [1, 2], context: [[3], [4]]})


def k_means(tf: Any, session: Any) -> Any:
    points = tf.constant(X)
    centers = tf.Variable(tf.slice(points, [0, 0], [3, -1]))
    apart = tf.square(tf.expand_dims(points, 0) - tf.expand_dims(centers, 1))
    nearest = tf.argmin(tf.reduce_sum(apart, 2), 0)
    mine = [tf.reshape(tf.where(tf.equal(nearest, i)), [1, -1]) for i in range(3)]
    means = tf.concat([tf.reduce_mean(tf.gather(points, each), axis=[1]) for each in mine], 0)
    update = tf.assign(centers, means)
    session.run(tf.global_variables_initializer())
    for _ in range(4):
        session.run(update)
    return session.run([centers, nearest])


def convolutions(tf: Any, session: Any) -> Any:
    images = tf.placeholder(tf.float32, [None, 8, 8, 1])
    start = tf.constant_initializer(np.linspace(-1, 1, 36).reshape(3, 3, 1, 4))
    filters = tf.get_variable("filters", [3, 3, 1, 4], initializer=start)
    maps = tf.nn.relu(tf.nn.conv2d(images, filters, strides=[1, 1, 1, 1], padding="SAME"))
    mean, variance = tf.nn.moments(maps, [0, 1, 2])
    normed = tf.nn.batch_normalization(maps, mean, variance, None, None, 1e-3)
    pooled = tf.nn.max_pool(normed, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    flat = tf.nn.dropout(tf.reshape(pooled, [-1, 64]), 1.0)
    session.run(tf.global_variables_initializer())
    return session.run([flat, mean, variance], {images: IMAGES}), flat.shape.as_list()


def segments(tf: Any, session: Any) -> Any:
    labels = tf.constant(LABELS)
    totals = tf.unsorted_segment_sum(tf.constant(X), labels, 5)
    counts = tf.bincount(tf.cast(labels, tf.int32))
    ordered = tf.segment_mean(tf.constant(X), tf.constant(np.sort(LABELS)))
    return session.run([totals, counts, ordered])


def names_and_scopes(tf: Any, session: Any) -> Any:
    with tf.name_scope("a") as scope:
        made = [tf.constant(1, name="c"), tf.add(1, 1)]
    for again in ("a", scope):
        with tf.name_scope(again):
            made.append(tf.constant(1, name="c"))
    with tf.variable_scope("v") as outer:
        first = tf.get_variable("w", [1])
        with tf.variable_scope("u"):
            made += [tf.get_variable("w", [1]), tf.get_variable("x", [1]) + 1]
    with tf.variable_scope(outer, reuse=True):
        second = tf.get_variable("w", [1])
    with tf.variable_scope("v", reuse=tf.AUTO_REUSE):
        made.append(tf.get_variable("new", [2]))
    return [each.name for each in made], first is second, scope


def counter(tf: Any, session: Any) -> Any:
    count = tf.Variable(0, name="counter")
    update = tf.assign(count, tf.add(count, tf.constant(1)))
    with tf.control_dependencies([update]):
        after = tf.identity(count)
    session.run(tf.initialize_all_variables())
    return [session.run(update) for _ in range(3)], session.run(after), session.run(count)


def regularizers_and_collections(tf: Any, session: Any) -> Any:
    for value in (1.0, 2.0):
        tf.add_to_collection("losses", tf.constant(value, name="loss"))
    with tf.variable_scope("m", regularizer=lambda w: tf.reduce_sum(w * w)):
        tf.get_variable("w", [2], initializer=tf.ones_initializer())
    session.run(tf.global_variables_initializer())
    penalty = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    total = tf.add_n(tf.get_collection("losses") + penalty)
    return session.run(total), [each.name for each in penalty]


def structures(tf: Any, session: Any) -> Any:
    pair = collections.namedtuple("pair", "a b")  # noqa: PYI024  as programs have it
    a, b = tf.constant(1), tf.constant([2.0])
    found = session.run(pair(a, [b, (a,)]))
    named = session.run({"x": a, "y": {"z": b}, "op": a.op})
    lists = session.run([[], (), "Const:0", [a, a], tf.no_op()])
    return found.a, found.b, named["x"], named["y"]["z"], named["op"], lists


def python_functions(tf: Any, session: Any) -> Any:
    def load(path: bytes, count: Any) -> Any:
        text = path.decode()
        return np.full(count, len(text), np.float32), text.upper()

    path = tf.placeholder(tf.string, [])
    values, text = tf.py_func(load, [path, tf.constant(3)], [tf.float32, tf.string])
    values.set_shape([3])
    return session.run([values * 2, text], {path: "name"}), values.shape.as_list()


def feeds_of_all_kinds(tf: Any, session: Any) -> Any:
    x = tf.placeholder(tf.float32)
    default = tf.placeholder_with_default(tf.constant([1, 2]), [None])
    inner = tf.constant(3.0) * 2
    flag = tf.placeholder(tf.bool, [])
    sparse = tf.sparse_placeholder(tf.float32, [2, 3])
    wanted = [
        x + 1,
        default * 2,
        inner + 1,
        tf.logical_not(flag),
        tf.sparse_tensor_to_dense(sparse),
    ]
    value = tf.SparseTensorValue([[0, 1]], [5.0], [2, 3])
    common = {flag: 1, sparse: value}
    return [
        session.run(wanted, {x: [[1, 2], [3, 4]], **common}),
        session.run(wanted, {"Placeholder:0": np.float64(2), inner: 10, default: [7], **common}),
    ]


PROGRAMS: tuple[Callable[[Any, Any], Any], ...] = (
    regression, perceptron, unrolled_rnn, lstm_step, embeddings, k_means, convolutions, segments,
    names_and_scopes, counter, regularizers_and_collections, structures, python_functions,
    feeds_of_all_kinds,
)  # fmt: skip


def run(tf: Any, program: Callable[[Any, Any], Any]) -> Any:
    with tf.Graph().as_default(), tf.Session() as session, tf.variable_scope("", use_resource=True):
        return program(tf, session)


def check(found: Any, wanted: Any) -> None:
    """Check that two structures have the same types, shapes, dtypes and, nearly, numbers."""
    assert type(found) is type(wanted)
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            check(one, other)
    elif isinstance(wanted, np.ndarray | np.generic) and wanted.dtype.kind == "f":
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())
    else:
        assert found == wanted


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_program_gives_what_it_gives_in_tensorflow(program: Any, tf1: Any) -> None:
    check(run(ours, program), run(tf1, program))
