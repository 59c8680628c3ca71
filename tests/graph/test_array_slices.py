"""Strided slices of every kind, against NumPy and TensorFlow."""

from __future__ import annotations

import os
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import dlbridge.graph as tf
from dlbridge.graph.ops import slicing

BOUND = st.one_of(st.none(), st.integers(-5, 5))
STEP = st.one_of(st.none(), st.integers(-3, 3).filter(bool))
PART = st.one_of(
    st.builds(slice, BOUND, BOUND, STEP), st.integers(-4, 4), st.none(), st.just(Ellipsis)
)
INDEX = st.lists(PART, max_size=5).map(tuple)
DIMS = st.lists(st.integers(0, 4), max_size=4).map(tuple)
FRAMEWORKS = ("numpy", "torch", "jax")


def numbered(dims: tuple[int, ...]) -> Any:
    return np.arange(np.prod(dims, dtype=int), dtype=np.int32).reshape(dims)


def sliced(dims: tuple[int, ...], index: tuple[Any, ...], framework: str) -> Any:
    """Return the slice, sliced statically in part, or IndexError."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.int32, dims)
        loose = tf.placeholder(tf.int32, [None] * len(dims))
        try:
            known = x[index]
            unknown = loose[index]
        except ValueError:
            return IndexError
        with tf.Session(framework=framework) as session:
            value = session.run(known, {x: numbered(dims)})
            again = session.run(unknown, {loose: numbered(dims)})
    assert known.shape == np.shape(value)
    assert unknown.shape.is_compatible_with(np.shape(value))
    np.testing.assert_array_equal(value, again)
    return value


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_indices_in_brackets_mean_what_they_do_in_numpy(name: str, framework: Any) -> None:
    framework(name)
    count = 15 if name == "jax" else 60

    @settings(max_examples=count, deadline=None)
    @given(DIMS, INDEX)
    def check(dims: tuple[int, ...], index: tuple[Any, ...]) -> None:
        try:
            wanted = numbered(dims)[index]
        except IndexError:
            wanted = IndexError
        found = sliced(dims, index, name)
        if wanted is IndexError or found is IndexError:
            assert found is wanted
        else:
            np.testing.assert_array_equal(found, wanted)

    check()


MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@st.composite
def raw_slices(draw: Any) -> tuple[Any, ...]:
    """Return extents, known extents, three vectors and five masks of any kind."""
    dims = draw(st.lists(st.integers(0, 3), max_size=4).map(tuple))
    known = tuple([draw(st.sampled_from((dim, None))) for dim in dims])
    count = draw(st.integers(0, 4))
    vector = st.lists(st.integers(-4, 4), min_size=count, max_size=count)
    steps = st.lists(st.integers(-2, 2), min_size=count, max_size=count)
    mask = st.integers(0, 2**count - 1)
    masks = {name: draw(mask) for name in MASKS}
    masks["ellipsis_mask"] &= draw(st.sampled_from((0, 1, 2, 4, 8, 15)))
    return dims, known, draw(vector), draw(vector), draw(steps), masks


@pytest.fixture(scope="module")
def oracle() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


def outcome(library: Any, case: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the static shape and the value of a strided slice, or the class of the error."""
    dims, known, begin, end, strides, masks = case
    vectors = [np.array(each, np.int32) for each in (begin, end, strides)]
    with library.Graph().as_default(), library.Session() as session:
        x = library.placeholder(library.int32, known)
        try:
            out = library.strided_slice(x, *vectors, **masks)
        except ValueError:
            return ValueError, ValueError
        shape = None if out.shape.rank is None else out.shape.as_list()
        try:
            return shape, session.run(out, {x: numbered(dims)})
        except library.errors.InvalidArgumentError:
            return shape, ValueError


@given(case=raw_slices())
def test_masks_mean_what_they_do_in_tensorflow(case: tuple[Any, ...], oracle: Any) -> None:
    """Also where masks overlap: an ellipsis over a new axis over an index."""
    found, wanted = outcome(tf, case), outcome(oracle, case)
    assert found[0] == wanted[0]
    if wanted[1] is ValueError or found[1] is ValueError:
        assert found[1] is wanted[1]
    else:
        assert np.shape(found[1]) == np.shape(wanted[1])
        np.testing.assert_array_equal(found[1], wanted[1])


def test_bounds_that_are_not_known_leave_extents_open() -> None:
    masks = slicing.Masks(1, 0, 0, 0, 4)
    axes = slicing.read_index(masks, None, [2, 3, 0], [1, -1, 1], 4)
    dims = (5, 5, 5, None)
    found = [slicing.static_extent(axis, dim) for axis, dim in zip(axes, dims, strict=True)]
    assert found == [2, None, 1, None]


@pytest.mark.parametrize("begin", range(-9, 9))
@pytest.mark.parametrize("step", [-3, -1, 1, 2])
def test_bounds_outside_of_an_axis_are_cut_off(begin: int, step: int) -> None:
    """A walk backwards that begins before the first element has none."""
    x = np.arange(4)
    with tf.Graph().as_default(), tf.Session() as session:
        for part in (slice(begin, None, step), slice(None, begin, step)):
            out = tf.constant(x)[part]
            np.testing.assert_array_equal(session.run(out), x[part])
            assert out.shape == x[part].shape


def test_an_index_may_be_a_tensor_of_the_run() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(numbered((4, 3)))
        i = tf.placeholder(tf.int64, [])
        part = x[i:, i]
        assert part.shape == (None,)
        np.testing.assert_array_equal(session.run(part, {i: 1}), numbered((4, 3))[1:, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of bounds"):
            session.run(part, {i: 3})


def test_a_mask_in_brackets_chooses() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(numbered((3, 2)))
        mask = np.array([True, False, True])
        for given_mask in (mask, tf.constant(mask)):
            np.testing.assert_array_equal(session.run(x[given_mask]), numbered((3, 2))[mask])


@pytest.mark.parametrize("index", [1.5, "a", True, [[0]], np.array([0, 1])])
def test_an_invalid_index_is_a_type_error(index: Any) -> None:
    with tf.Graph().as_default():
        x = tf.constant(numbered((3, 2)))
        with pytest.raises(TypeError, match="Only integers, slices"):
            x[index]
