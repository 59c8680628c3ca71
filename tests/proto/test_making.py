"""make_value: what Python's numbers become, as in tf.constant, and what is refused instead."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge.proto import TensorValue, make_value

MADE = [
    (3.0, None, "float32"), (3, None, "int32"), (True, None, "bool"), (1j, None, "complex128"),
    (2**31 - 1, None, "int32"), (2**31, None, "int64"), (-(2**31), None, "int32"),
    (2**63, None, "uint64"), ("text", None, "string"), (b"a\0", None, "string"),
    ([], None, "float32"), ([[]], None, "float32"), ([1, 2.5], None, "float32"),
    ([True, 1], None, "int32"), ([1, 2**40], None, "int64"), ((1, 2), None, "int32"),
    ([b"a\0", "ä"], None, "string"), (np.float64(3), None, "float64"),
    (np.arange(3), None, "int64"), (np.array(["ä"]), None, "string"),
    (np.array([b"a"], object), None, "string"), (np.bool_(True), None, "bool"),
    (1, "float32", "float32"), (1, "bfloat16", "bfloat16"), ([1.5, 2], "float16", "float16"),
    (1, "complex64", "complex64"), (True, "int32", "int32"), (True, "float32", "float32"),
    ([1, -2], "int4", "int4"), ([1.5, 2], "float4_e2m1fn", "float4_e2m1fn"),
    (255, "uint8", "uint8"),
    (1.5, "float8_e5m2", "float8_e5m2"), (1, "float32_ref", "float32"), ([(1,), (2,)], "qint8",
    "qint8"), (np.array([1.5]), "float32", "float32"), (1e300, "float32", "float32"),
    (np.array([1, 2], ">i4"), None, "int32"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("values", "dtype", "made"), MADE, ids=repr)
def test_values_become_what_tensorflow_makes_of_them(
    framework: Any, values: Any, dtype: str | None, made: str
) -> None:
    value = make_value(values, dtype)
    assert value.dtype.name == made
    tf = framework("tensorflow")
    given = (
        values.astype("i4") if isinstance(values, np.ndarray) and values.dtype == ">i4" else values
    )
    number = value.dtype.number if dtype else None
    expected = tf.make_ndarray(tf.make_tensor_proto(given, dtype=number))
    if expected.dtype.kind in "OSU":
        expected = expected.astype(object)
    assert value == TensorValue(value.dtype, expected)


@pytest.mark.parametrize(
    ("values", "dtype", "error", "text"),
    [
        (None, None, ValueError, "None values not supported."),
        ([None, 1], None, TypeError, "None is of type NoneType"),
        ([1, "a"], None, TypeError, "1 is of type int"),
        ([[1], [2, 3]], None, ValueError, "lists of equal lengths"),
        (2**64, None, TypeError, "is of type int"),
        ({1: 2}, None, TypeError, "of type dict"),
        pytest.param(object(), None, TypeError, "of type object", id="object"),
        (1.5, "int32", TypeError, "Expected int32, but got 1.5"),
        (np.array([1.5]), "int32", TypeError, "Expected int32"),
        (1, "bool", TypeError, "Expected bool, but got 1"),
        ("a", "float32", TypeError, "Expected float32, but got 'a'"),
        (1, "string", TypeError, "Expected string, but got 1"),
        (1j, "float32", TypeError, "Expected float32, but got 1j"),
        (True, "qint8", TypeError, "Expected qint8"),
        (1, "resource", TypeError, "no constants of dtype resource"),
        (np.datetime64("2020-01-01"), None, TypeError, "not a TensorFlow dtype"),
        (["a" * 100], "int32", TypeError, "\\.\\.\\."),
        (2**40, "int32", ValueError, "1099511627776 does not fit int32"),
        (300, "uint8", ValueError, "300 does not fit uint8, 0 to 255"),
        (-1, "uint8", ValueError, "-1 does not fit"),
        ([7, 8], "int4", ValueError, "8 does not fit int4, -8 to 7"),
        (np.array([-8], ml_dtypes.int4), "uint4", ValueError, "-8 does not fit uint4"),
        (200, "qint8", ValueError, "200 does not fit qint8, -128 to 127"),
        (np.array([2**40]), "int32", ValueError, "does not fit int32"),
    ],
    ids=repr,
)
def test_values_that_would_change_are_refused(
    values: Any, dtype: str | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make_value(values, dtype)


def test_a_value_has_memory_of_its_own() -> None:
    for size in (3, 5000):
        array = np.arange(size, dtype=np.float32)
        value = make_value(array)
        assert not np.shares_memory(value.array, array)
        array[0] = 7
        assert value.array[0] == 0
        assert not value.array.flags.writeable


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128", "bool", "int4", "qint32"])
def test_large_values_are_aligned(dtype: str) -> None:
    """JAX and TensorFlow share what is aligned to 64 bytes, and copy the rest."""
    value = make_value(np.ones((70, 81), np.bool_ if dtype == "bool" else np.int8).T, dtype)
    assert value.array.ctypes.data % 64 == 0
    assert value.array.flags.c_contiguous
    assert value.array.shape == (81, 70)


def test_one_value_is_repeated_without_memory() -> None:
    value = make_value(5, "float32", [2**20, 2**20])
    assert value.array.strides == (0, 0)
    assert make_value([[5]], shape=(2,)).array.tolist() == [5, 5]
    assert make_value("a", shape=(2,)).array.tolist() == [b"a", b"a"]
    assert make_value(5, shape=(0,)).array.shape == (0,)
    assert make_value([1, 2, 3, 4], shape=(2, 2)).array.tolist() == [[1, 2], [3, 4]]
    assert make_value([1, 2], shape=(2,), verify_shape=True).shape == (2,)


@pytest.mark.parametrize(
    ("values", "keywords", "error", "text"),
    [
        ([1, 2, 3], {"shape": (2, 3)}, ValueError, "takes 6 elements, got 3"),
        ([1, 2, 3], {"shape": (2,)}, ValueError, "at most 2, but got 3"),
        ([1, 2], {"shape": (2, None)}, ValueError, "fully defined"),
        ([1, 2], {"shape": (1, 2), "verify_shape": True}, TypeError, "but got \\(2,\\)"),
        (1, {"verify_shape": True, "allow_broadcast": True}, ValueError, "not both"),
    ],
    ids=repr,
)
def test_a_shape_that_does_not_fit_is_refused(
    values: Any, keywords: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make_value(values, **keywords)


NUMBERS = st.one_of(st.integers(-(2**40), 2**40), st.floats(width=32), st.booleans())


@given(st.recursive(NUMBERS, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8))
def test_numbers_become_what_tensorflow_makes_of_them_or_both_refuse(
    framework: Any, values: Any
) -> None:
    tf = framework("tensorflow")
    try:
        expected = tf.make_ndarray(tf.make_tensor_proto(values))
    except (TypeError, ValueError):
        with pytest.raises((TypeError, ValueError)):
            make_value(values)
    else:
        assert make_value(values) == TensorValue.of(expected)


def test_text_in_an_array_must_be_bytes() -> None:
    with pytest.raises(ValueError, match="text is bytes in an object array"):
        TensorValue.of(np.array(["a"]))
