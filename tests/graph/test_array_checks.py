"""Checks while a graph runs, what it prints, and composites of several operations."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf

FRAMEWORKS = ("numpy", "torch", "jax")
ASSERTIONS = [
    ("assert_equal", [1, 2], [1, 2], [1, 3]),
    ("assert_none_equal", [1, 2], [3, 4], [1, 4]),
    ("assert_less", [1, 2], [2, 3], [2, 2]),
    ("assert_less_equal", [1, 2], [1, 3], [0, 3]),
    ("assert_greater", [1, 2], [0, 1], [1, 1]),
    ("assert_greater_equal", [1, 2], [1, 1], [2, 1]),
    ("assert_positive", [1, 2], None, [0, 1]),
    ("assert_negative", [-1, -2], None, [0, -1]),
    ("assert_non_negative", [0, 2], None, [-1, 1]),
    ("assert_non_positive", [0, -2], None, [1, 0]),
]


@pytest.fixture(scope="module")
def oracle() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


def outcome(library: Any, name: str, good: Any, other: Any, bad: Any, shape: Any) -> list[str]:
    """Return how an assertion ends for values that it holds for, and for others."""
    found = []
    with library.Graph().as_default(), library.Session() as session:
        x = library.placeholder(library.int32, shape)
        if other is None:
            check, feeds = getattr(library, name)(x), ({x: good}, {x: bad})
        else:
            y = library.placeholder(library.int32, shape)
            check = getattr(library, name)(x, y, message="why")
            feeds = {x: good, y: other}, {x: good, y: bad}
        with library.control_dependencies([check]):
            out = library.identity(x)
        for each in feeds:
            try:
                found.append(str(session.run(out, each)))
            except library.errors.InvalidArgumentError:
                found.append("InvalidArgumentError")
    return found


@pytest.mark.parametrize("shape", [[2], [None], None], ids=str)
@pytest.mark.parametrize("row", ASSERTIONS, ids=lambda row: row[0])
def test_an_assertion_fails_when_tensorflows_does(row: Any, shape: Any, oracle: Any) -> None:
    found = outcome(tf, *row, shape)
    assert found == outcome(oracle, *row, shape)
    assert found[1] == "InvalidArgumentError"


@pytest.mark.parametrize("row", ASSERTIONS, ids=lambda row: row[0])
def test_an_assertion_known_to_fail_fails_at_once(row: Any) -> None:
    name, good, other, bad = row
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError):
        getattr(tf, name)(*([bad] if other is None else [good, bad]))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_assert_shows_its_data(name: str, framework: Any) -> None:
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        x = tf.placeholder(tf.int32, [None])
        check = tf.Assert(tf.reduce_all(x > 0), ["x is", x, 1.5], summarize=2)
        session.run(check, {x: [1]})
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"\[x is\] \[0 1\.\.\.\] \[1\.5\]"
        ):
            session.run(check, {x: [0, 1, 2]})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "[3]"),
        (True, "[1]"),
        ([], "[]"),
        ([1, 2], "[1 2]"),
        ([1, 2, 3, 4], "[1 2 3...]"),
        ([[1, 2], [3, 4]], "[[1 2][3...]...]"),
        ([[1, 2, 3], [4, 5, 6]], "[[1 2 3]...]"),
        (np.zeros((2, 0), np.int32), "[]"),
        (np.zeros((2, 2, 2), np.int32), "[[[0 0][0...]]...]"),
        ([["a"], ["b"]], "[[a][b]]"),
    ],
    ids=str,
)
def test_assert_counts_elements_as_tensorflow(value: Any, shown: str) -> None:
    """`summarize` limits the elements of the whole tensor, and scalars have brackets."""
    with tf.Graph().as_default(), tf.Session() as session:
        check = tf.Assert(tf.constant(False), [tf.constant(value)])
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(check)
    assert f"assertion failed: {shown}\n" in str(raised.value)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_check_numerics_names_what_it_found(name: str, framework: Any) -> None:
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        x = tf.placeholder(tf.float32, [None])
        checked = tf.check_numerics(x, "weights")
        np.testing.assert_array_equal(session.run(checked, {x: [1, 2]}), [1, 2])
        for values, words in (
            ([np.nan], "NaN"),
            ([np.inf, 1], "Inf"),
            ([np.inf, np.nan], "Inf and NaN"),
        ):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=f"weights : Tensor had {words}"
            ):
                session.run(checked, {x: values})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_print_writes_to_standard_error_so_many_times(
    name: str, framework: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        x = tf.placeholder(tf.float32, [None])
        shown = tf.Print(x, [x, tf.shape(x)], "x: ", first_n=2)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(shown, {x: [1, 2.5, 3, 4]}), [1, 2.5, 3, 4])
    assert capfd.readouterr().err.count("x: [1 2.5 3...][4]\n") == 2


def test_ranks_and_types_are_checked_at_once_where_they_are_known() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([[1]])
        assert tf.assert_rank(x, 2).type == "NoOp"
        assert tf.assert_rank_at_least(x, 1).type == "NoOp"
        for call in (lambda: tf.assert_rank(x, 1), lambda: tf.assert_rank_at_least(x, 3)):
            with pytest.raises(ValueError, match="must have rank"):
                call()
        assert tf.assert_type(x, tf.int32).type == "NoOp"
        with pytest.raises(TypeError, match="must be of type float32"):
            tf.assert_type(x, tf.float32)
        loose = tf.placeholder(tf.int32)
        check = tf.assert_rank(loose, 1)
        session.run(check, {loose: [1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank"):
            session.run(check, {loose: 1})


# ---- composites --------------------------------------------------------------------------------

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
MASK = np.array([[True, False, True], [False, False, True]])
COMPOSITES = {
    "boolean_mask": (lambda tf, x, m: tf.boolean_mask(x, m), (X, MASK)),
    "boolean_mask_row": (lambda tf, x, m: tf.boolean_mask(x, m), (X, MASK[:, 0])),
    "boolean_mask_axis": (lambda tf, x, m: tf.boolean_mask(x, m, axis=1), (X, MASK[0])),
    "boolean_mask_name": (lambda tf, x, m: tf.boolean_mask(x, m, "b"), (X[0, :, 0], MASK[0])),
    "sequence_mask": (lambda tf, n: tf.sequence_mask(n, 4), (np.array([1, 3, 0], "int32"),)),
    "sequence_mask_longest": (lambda tf, n: tf.sequence_mask(n), (np.array([[1, 3]], "int32"),)),
    "sequence_mask_float": (
        lambda tf, n: tf.sequence_mask(n, 2, tf.float32, "s"),
        (np.array([1, 3], "int64"),),
    ),
    "meshgrid": (lambda tf, a, b: tf.meshgrid(a, b), (X[0, 0], X[1, :, 0])),
    "meshgrid_ij": (
        lambda tf, a, b: tf.meshgrid(a, b, a, indexing="ij"),
        (X[0, 0], X[1, :, 0]),
    ),
    "meshgrid_three": (lambda tf, a, b: tf.meshgrid(a, b, b), (X[0, 0], X[1, :, 0])),
    "meshgrid_one": (lambda tf, a: tf.meshgrid(a), (X[0, 0],)),
    "gather_nd_batch": (
        lambda tf, x, i: tf.gather_nd(x, i, batch_dims=1),
        (X, np.array([[[0, 1]], [[2, 3]]], "int32")),
    ),
    "batch_gather": (
        lambda tf, x, i: tf.batch_gather(x, i),
        (X, np.array([[0, 1], [2, 0]], "int32")),
    ),
}


def run(library: Any, name: str, how: str, **arguments: Any) -> tuple[Any, Any]:
    build, inputs = COMPOSITES[name]
    with library.Graph().as_default(), library.Session(**arguments) as session:
        holders = [
            library.placeholder(x.dtype, x.shape if how == "known" else (None,) * x.ndim)
            for x in inputs
        ]
        out = build(library, *holders)
        results = out if isinstance(out, list) else [out]
        rows = [(each.dtype.name, each.shape.rank and each.shape.as_list()) for each in results]
        return rows, session.run(results, dict(zip(holders, inputs, strict=True)))


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("case", COMPOSITES)
def test_composites_are_tensorflows(case: str, name: str, framework: Any, oracle: Any) -> None:
    framework(name)
    for how in ("known", "extents"):
        rows, values = run(tf, case, how, framework=name)
        wanted_rows, wanted = run(oracle, case, how)
        if case != "gather_nd_batch":  # TensorFlow forgets the shape there
            assert rows == wanted_rows, how
        for value, want in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(value, want)
            assert value.dtype == want.dtype


def test_masks_that_cannot_be_are_refused() -> None:
    with tf.Graph().as_default():
        x = tf.constant(X)
        with pytest.raises(ValueError, match="mask cannot be scalar"):
            tf.boolean_mask(x, tf.constant(True))
        with pytest.raises(ValueError, match="Number of mask dimensions"):
            tf.boolean_mask(x, tf.placeholder(tf.bool))
        with pytest.raises(ValueError, match="incompatible"):
            tf.boolean_mask(x, [True, False, True])
        with pytest.raises(ValueError, match="must be scalar"):
            tf.sequence_mask([1, 2], [3])
        with pytest.raises(ValueError, match="'xy' or 'ij'"):
            tf.meshgrid([1], indexing="yx")


@pytest.mark.parametrize("name", ["jax"])
def test_jax_gives_zeros_for_indices_out_of_range(name: str, framework: Any) -> None:
    """JAX does not look at values: what TensorFlow does on a GPU, which does not either."""
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        i = tf.placeholder(tf.int32, [None])
        x = tf.constant([[1.0, 2], [3, 4]])
        np.testing.assert_array_equal(
            session.run(tf.gather(x, i), {i: [1, -1, 2]}), [[3, 4], [0, 0], [0, 0]]
        )
        np.testing.assert_array_equal(
            session.run(tf.gather_nd(x, tf.stack([i, i], 1)), {i: [1, -1, 2]}), [4, 0, 0]
        )
        scattered = tf.scatter_nd(tf.expand_dims(i, 1), tf.ones_like(i), [3])
        np.testing.assert_array_equal(session.run(scattered, {i: [1, -1, 3, 1]}), [0, 2, 0])


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_indices_out_of_range_are_refused(name: str, framework: Any) -> None:
    framework(name)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        i = tf.placeholder(tf.int32, [None])
        x = tf.constant([[1.0, 2], [3, 4]])
        column = tf.expand_dims(i, 1)
        for out, text in (
            (tf.gather(x, i), r"indices\[1\] = -1 is not in \[0, 2\)"),
            (tf.gather_nd(x, column), r"indices\[1\] = \[-1\] does not index into shape \[2,2\]"),
            (tf.scatter_nd(column, tf.ones_like(i), [2]), r"indices\[1\] = \[-1\] does not index"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                session.run(out, {i: [1, -1, 2]})
