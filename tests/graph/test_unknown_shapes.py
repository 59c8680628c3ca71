"""What only a run shows: shapes, dtypes of variables and strings behind placeholders of any shape.

TensorFlow's kernels check again what its static shapes could not; so do ours, in every framework.
`python -m tests.fuzz operations` found what is listed here: each gave a value before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from tests.fuzz import operations

FRAMEWORKS = ("numpy", "torch", "jax")


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


INTEGERS = np.zeros((2, 1), np.int32)
# An op type, its inputs, its attributes, and a part of the refusal.
REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("MatMul", [ones(2, 3, 3), ones(3, 3)], {}, "a must have 2 dimensions"),
    ("LRN", [ones(2)], {}, "input must have 4 dimensions"),
    ("InvertPermutation", [INTEGERS], {}, "x must have 1 dimension"),
    ("Unique", [INTEGERS], {}, "x must have 1 dimension"),
    ("UniqueWithCounts", [INTEGERS], {}, "x must have 1 dimension"),
    ("ListDiff", [INTEGERS, INTEGERS[0]], {}, "x must have 1 dimension"),
    ("UnravelIndex", [INTEGERS, INTEGERS[0] + 4], {}, "indices must have 1 dimension"),
    ("InTopK", [ones(2, 3, 1), INTEGERS[0]], {"k": 1}, "predictions must have 2 dimensions"),
    ("InTopK", [ones(2, 3), INTEGERS[0]], {"k": 1}, "First dimension of predictions 2"),
    ("InTopKV2", [ones(1, 3), INTEGERS[0], INTEGERS[0]], {}, "k must have 0 dimensions"),
    ("MatrixSetDiag", [ones(2, 2), ones(3, 2)], {}, r"diagonal must have shape \[2\]"),
    ("SoftmaxCrossEntropyWithLogits", [ones(), ones(1, 1, 1)], {}, "must have 2 dimensions"),
    ("Multinomial", [ones(1, 2, 2), INTEGERS[0, 0]], {}, "logits must have 2 dimensions"),
    ("OneHot", [INTEGERS[0], np.int32(2), ones(1, 1), ones()], {}, "on_value must have 0"),
    ("SpaceToBatch", [ones(1, 2, 2), np.zeros((2, 2), np.int32)], {"block_size": 2}, "4 dimen"),
    (
        "FusedBatchNormV3",
        [ones(1, 2, 2, 2), ones(1), ones(2), ones(2), ones(2)],
        {"is_training": False},
        r"scale must have shape \[2\]",
    ),
    (
        "BatchNormWithGlobalNormalization",
        [ones(1, 2, 2, 2), ones(2), ones(2), ones(1), ones(2)],
        {"variance_epsilon": 0.1, "scale_after_normalization": True},
        r"beta must have shape \[2\]",
    ),
    (
        "SparseReorder",
        [np.zeros((0, 2), np.int64), ones(3), np.array([1, 5])],
        {},
        r"values must have shape \[0\]",
    ),
    (
        "SparseReshape",
        [np.zeros((1, 2), np.int64), np.array([2**32, 2**32]), np.array([1])],
        {},
        r"must not be negative or have 2\*\*63 elements",
    ),
    (
        "SparseDenseCwiseMul",
        [np.zeros((1, 1), np.int64), ones(1, 1), np.array([4]), ones()],
        {},
        r"values must have shape \[1\]",
    ),
    ("Real", [ones(2, dtype=np.complex64)], {"Tout": tf.float64}, "the same precision"),
    ("Imag", [ones(2, dtype=np.complex128)], {"Tout": tf.float32}, "the same precision"),
    ("Angle", [ones(2, dtype=np.complex64)], {"Tout": tf.float64}, "the same precision"),
    ("ComplexAbs", [ones(2, dtype=np.complex128)], {"Tout": tf.float32}, "the same precision"),
    ("Complex", [ones(2), ones(2)], {"Tout": tf.complex128}, "the same precision"),
]


def run_fed(op_type: str, values: list[Any], attrs: dict[str, Any], framework: str) -> Any:
    with tf.Graph().as_default() as graph:
        inputs = [tf.placeholder(np.asarray(each).dtype) for each in values]
        op = graph.create_op(op_type, inputs, attrs=attrs)
        with tf.Session(framework=framework) as session:
            return session.run(op.outputs[0], dict(zip(inputs, values, strict=True)))


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row[0]}-{row[3][:12]}")
def test_a_fed_value_of_a_shape_that_the_operation_cannot_have_is_refused(
    row: Any, name: str, framework: Any
) -> None:
    framework(name)
    op_type, values, attrs, text = row
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run_fed(op_type, values, attrs, name)


# ---- strings -------------------------------------------------------------------------------------


SCALARS: dict[str, Callable[[Any], Any]] = {
    "item": lambda p: p[0],
    "gather": lambda p: tf.gather(p, 0),
    "gather_nd": lambda p: tf.gather_nd(p, [0]),
    "sum": lambda p: tf.add(p[0], tf.constant(b"")),
    "squeeze": lambda p: tf.squeeze(p[:1]),
    "select": lambda p: tf.where(True, p[0], p[1]),
    "unstack": lambda p: tf.unstack(p, 2)[0],
    "reshape": lambda p: tf.reshape(p[:1], []),
    "identity": lambda p: tf.identity(p[0]),
}


@pytest.mark.parametrize("make", SCALARS.values(), ids=SCALARS.keys())
def test_one_element_of_strings_is_bytes(make: Callable[[Any], Any]) -> None:
    """NumPy gives the element itself for an array of objects without dimensions."""
    with tf.Graph().as_default(), tf.Session() as session:
        p = tf.placeholder(tf.string, [2])
        y = make(p)
        found = session.run([y, tf.stack([y, y])], {p: [b"x", b"y"]})
    assert found[0] == b"x"
    assert found[1].tolist() == [b"x", b"x"]


# ---- variables -----------------------------------------------------------------------------------


def test_a_variable_is_not_read_as_another_dtype() -> None:
    with tf.Graph().as_default() as graph:
        handle = graph.create_op("VarHandleOp", [], attrs={"dtype": tf.int32, "shape": [2]})
        with pytest.raises(ValueError, match=r"wrong dtype\. Expected int32 got float32"):
            graph.create_op("ReadVariableOp", handle.outputs, attrs={"dtype": tf.float32})
        passed = graph.create_op("IdentityN", handle.outputs * 2)
        read = graph.create_op("ReadVariableOp", passed.outputs[:1], attrs={"dtype": tf.float32})
        write = graph.create_op("AssignVariableOp", [passed.outputs[1], tf.constant([1.0, 2.0])])
        with tf.Session() as session:
            for op in (write, read):
                with pytest.raises(tf.errors.InvalidArgumentError, match="Expected int32 got flo"):
                    session.run(op.outputs or op)


@pytest.mark.parametrize("op_type", ["Shape", "Rank", "Size", "Pack"])
def test_a_handle_of_a_variable_goes_only_where_handles_go(op_type: str) -> None:
    with tf.Graph().as_default() as graph:
        handle = graph.create_op("VarHandleOp", [], attrs={"dtype": tf.int32, "shape": [2]})
        op = graph.create_op(op_type, handle.outputs)
        with tf.Session() as session, pytest.raises(tf.errors.UnimplementedError, match="resource"):
            session.run(op.outputs[0])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_updates_of_a_variable_are_not_broadcast(name: str, framework: Any) -> None:
    framework(name)
    with tf.Graph().as_default():
        v = tf.get_variable("v", initializer=np.zeros((3, 2), np.float32), use_resource=False)
        updates = tf.placeholder(tf.float32)
        step = tf.scatter_update(v, [0, 2], updates)
        with tf.Session(framework=name) as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError, match="updates must be a scalar or"):
                session.run(step, {updates: np.ones((1, 2), np.float32)})
            assert session.run(v).tolist() == [[0, 0]] * 3
            assert session.run(step, {updates: 5.0}).tolist() == [[5, 5], [0, 0], [5, 5]]


def test_a_variant_cannot_be_fed() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        p = tf.placeholder(tf.variant)
        with pytest.raises(TypeError, match="variant, which cannot be fed"):
            session.run(tf.identity(p), {p: 1.0})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_depthwise_filter_without_elements_gives_zeros(name: str, framework: Any) -> None:
    framework(name)
    attrs = {"strides": [1, 1, 1, 1], "padding": b"VALID"}
    values = [ones(1, 3, 3, 2), ones(0, 2, 2, 1)]
    found = run_fed("DepthwiseConv2dNative", values, attrs, name)
    assert np.asarray(found).tolist() == np.zeros((1, 4, 2, 2)).tolist()


def test_a_window_without_elements_has_the_static_shape_of_its_result() -> None:
    attrs = {"strides": [1, 2, 2, 1], "padding": b"VALID"}
    with tf.Graph().as_default() as graph, tf.Session() as session:
        inputs = [tf.constant(ones(1, 4, 4, 2)), tf.constant(ones(0, 2, 2, 1))]
        y = graph.create_op("DepthwiseConv2dNative", inputs, attrs=attrs).outputs[0]
        assert y.shape.as_list() == [1, 3, 2, 2]  # as in TensorFlow
        assert session.run(y).shape == (1, 3, 2, 2)


# ---- every op type -------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("name", "count"), [("numpy", 20_000), ("torch", 8_000), ("jax", 300)])
def test_a_drawn_operation_ends_in_a_result_as_declared_or_in_an_error(
    name: str, count: int, framework: Any
) -> None:
    """Whatever the inputs and attributes; the shapes and dtypes are those known without a run."""
    framework(name)
    ran = 0
    with np.errstate(all="ignore"):
        for i in range(count):
            source = random.Random(i)
            op_type = source.choice(operations.OPS)
            data, feeds = operations.Drawn(source).graph(op_type)
            try:
                ran += operations.load_and_run(data, feeds, name).startswith("ran")
            except Exception as error:
                raise AssertionError(f"{op_type}, {i}") from error
    assert ran > count // 3
