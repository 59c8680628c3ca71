"""TensorValue: shared and read-only, lazy, equal bit by bit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from dlbridge.proto import datatypes
from dlbridge.proto.values import TensorValue


def test_a_value_shares_memory_and_protects_it() -> None:
    array = np.arange(6.0).reshape(2, 3)
    value = TensorValue("float64", array)
    assert np.shares_memory(value.array, array)
    assert not value.array.flags.writeable
    assert array.flags.writeable
    assert (value.shape, value.size, value.nbytes) == ((2, 3), 6, 48)


def test_the_other_byte_order_is_converted() -> None:
    assert TensorValue("int32", np.arange(3, dtype=">i4")).array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("dtype", "array"),
    [("int32", np.zeros(3)), ("string", np.array(["a"])), ("resource", np.zeros(3))],
    ids=str,
)
def test_an_array_of_another_dtype_is_refused(dtype: str, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=f"{dtype} needs an array"):
        TensorValue(dtype, array)


def test_a_lazy_value_is_decoded_once() -> None:
    calls = []

    def decode() -> np.ndarray:
        calls.append(1)
        return np.zeros(2, np.float32)

    value = TensorValue.lazy(datatypes.float32, (2,), decode)
    assert value.nbytes == 8
    assert not calls
    assert value.array is value.array
    assert calls == [1]
    with pytest.raises(AttributeError):
        value.other


def test_values_are_equal_bit_by_bit() -> None:
    """An attribute with NaN must equal itself after a trip over the wire."""
    nan = TensorValue("float32", np.array([np.nan, 1], np.float32))
    assert nan == TensorValue("float32", np.array([np.nan, 1], np.float32))
    assert TensorValue("float64", np.array(0.0)) != TensorValue("float64", np.array(-0.0))
    assert TensorValue("int32", np.zeros(1, "i4")) != TensorValue("int32", np.zeros((), "i4"))
    assert TensorValue("int32", np.zeros(1, "i4")) != TensorValue("float32", np.zeros(1, "f4"))
    assert nan != 3
    one = TensorValue("complex128", np.array([1j, np.nan]))
    assert one == TensorValue("complex128", np.array([1j, 5, np.nan])[::2])
    assert hash(nan) == hash(TensorValue("float32", nan.array.copy()))


def test_repeated_elements_are_compared_without_memory_for_each() -> None:
    one = np.broadcast_to(np.float32(1), (2**20, 2**20))
    assert TensorValue("float32", one) == TensorValue("float32", np.broadcast_to(one[0], one.shape))


def test_strings_and_quantised_types_are_values() -> None:
    strings = TensorValue("string", np.array([b"a", b"bcd"], object))
    assert strings.nbytes == 4
    assert strings == TensorValue("string", np.array([b"a", b"bcd"], object))
    quantised = np.array([(1,), (2,)], datatypes.qint8.as_numpy_dtype)
    assert TensorValue("qint8", quantised) == TensorValue("qint8", quantised.copy())
    assert TensorValue("qint8", quantised) != TensorValue("qint8", quantised[::-1])


def test_a_value_pickles_and_does_not_change() -> None:
    value = TensorValue("float32", np.ones(3, np.float32))
    assert pickle.loads(pickle.dumps(value)) == value
    assert repr(value) == "TensorValue(tf.float32, shape=(3,))"
    with pytest.raises(AttributeError, match="immutable"):
        value.dtype = datatypes.int32
    with pytest.raises(AttributeError, match="immutable"):
        del value.array


def test_a_value_of_what_is_no_array_is_refused() -> None:
    for wrong in (None, 3, "wrogn", [1.0], object()):
        with pytest.raises(TypeError, match=r"^TensorValue: array must be a NumPy array, got "):
            TensorValue("float32", wrong)  # type: ignore[arg-type]
