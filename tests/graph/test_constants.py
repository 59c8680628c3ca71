"""Constants: dtypes of Python's values, what is refused, what is shared; against TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge.graph as ours
from dlbridge.graph.core.values import ALIGNMENT
from dlbridge.proto import datatypes
from dlbridge.proto.tensors import read_tensor

ARRAY = np.arange(6.0).reshape(2, 3)


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    return framework("tensorflow").compat.v1


def outcome(tf: Any, value: Any, **keywords: Any) -> Any:
    """Return dtype, shape and value of a constant, or the kind of error."""
    try:
        with tf.Graph().as_default():
            tensor = tf.constant(value, **keywords)
            proto = tensor.op.get_attr("value")
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins").__name__
    return tensor.dtype.name, tuple(tensor.shape.as_list()), plain(proto)


def plain(proto: Any) -> Any:
    """Return the value of a TensorProto as nested lists, as text, in which NaN equals NaN."""
    return str(read_tensor(proto.SerializeToString()).array.tolist())


def value_of(tensor: Any) -> Any:
    return tensor.op.attrs["value"].array


VALUES: list[Any] = [
    True, [True, 1], [1, True], 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63, 1.5, [1, 2.5],
    [1, 2**40], [], [[], []], "a", b"a\xff",
    "ä", ["a", b"b"], [1, "a"], ["a", 1], 1j, [1, 1j], None,
    [None], [1, None], [[1], [1, 2]], np.float64(1.5), [np.float64(1.5)], [np.float32(1)],
    np.int64(3), [np.int64(3)], [np.int64(2**40)], np.array([1, 2]), np.array(["a", "bb"]),
    np.array([b"a", b"bb"]), np.array(["a", b"b"], object), np.array([1, 2], object), (1, 2), {1},
    object(), np.uint16(3), [np.uint16(3)], float("nan"), float("inf"), -0.0, np.bool_(True),
    [np.bool_(True)], np.float16(2), ARRAY, ARRAY.T, ARRAY[::-1, ::2], bytearray(b"ab"), [[[1.0]]],
    np.zeros((0, 3), np.int8), np.array(1.5, np.float32), ours.float32, np.datetime64("2020-01-01"),
]  # fmt: skip

DTYPES: list[tuple[Any, str]] = [
    (True, "float32"), (True, "int32"), (1, "bool"), (1.5, "int32"), (1.0, "int32"), (1, "float32"),
    ("a", "int32"), (1, "string"), (1j, "float32"), (1, "complex64"), ([1, 2.5], "int32"),
    (np.array([1.5]), "float32"), (np.int64(5), "float32"), ([np.float32(1.5)], "int32"),
    (1, "bfloat16"), (1.5, "bfloat16"), (1, "float16"), (1, "uint64"), (2**63, "uint64"),
    (np.array([True]), "float32"), (np.array([True]), "int32"), (1, "resource"), (b"a", "string"),
    (1.5, "complex64"), ([], "int32"), ([], "string"), (np.array([]), "int32"), ("1", "float32"),
    (2**53 + 1, "float32"), (np.array([1, 2], object), "int32"), (0.1, "float64"),
    ([[1, 2], [3, 4]], "int8"), (ARRAY, "float16"), (255, "uint8"), (-128, "int8"),
    (float("inf"), "float16"), (float("nan"), "bfloat16"), ([0.5, float("inf")], "float16"),
]  # fmt: skip

SHAPES: list[tuple[Any, Any]] = [
    (1, [2, 3]), ([1], [2, 3]), ([1, 2, 3, 4, 5, 6], [2, 3]), ([1, 2, 3, 4, 5, 6, 7], [2, 3]),
    ([], [0]), (1, []), ([1], []), (1, (2,)), ("a", [2]), (1, [-1]), ([[1, 2]], [2, 1]), (1, None),
    (0.5, [3]), (True, [2, 2]), (1.0, [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value).split(" at 0x")[0][:40])
def test_a_value_gets_the_dtype_that_it_gets_in_tensorflow(value: Any, tf1: Any) -> None:
    assert outcome(ours, value) == outcome(tf1, value)


@pytest.mark.parametrize(("value", "dtype"), DTYPES, ids=repr)
def test_a_dtype_is_accepted_as_in_tensorflow(value: Any, dtype: str, tf1: Any) -> None:
    assert outcome(ours, value, dtype=dtype) == outcome(tf1, value, dtype=dtype)


@pytest.mark.parametrize(("value", "shape"), SHAPES, ids=repr)
def test_a_shape_is_accepted_as_in_tensorflow(value: Any, shape: Any, tf1: Any) -> None:
    assert outcome(ours, value, shape=shape) == outcome(tf1, value, shape=shape)


NUMBERS = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=32)
    | st.complex_numbers(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(NUMBERS)
def test_any_lists_become_what_they_become_in_tensorflow(value: Any) -> None:
    tf1 = pytest.importorskip("tensorflow").compat.v1
    theirs = outcome(tf1, value)
    assert outcome(ours, value) == theirs


# ---- what TensorFlow does silently wrong -------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (2**40, "int32", "1099511627776 do not fit int32"),
        (300, "uint8", "do not fit uint8"),
        (-1, "uint8", "from -1 to -1 do not fit uint8"),
        (100, "int4", "do not fit int4"),
        (np.array([300]), "uint8", "do not fit uint8"),
        (1e300, "float32", "1e\\+300 is finite, but not as float32"),
        (1e300, None, "is finite"),
        (1e10, "float16", "is finite"),
        (1e30, "float8_e4m3fn", "is finite"),
        (np.array([1.0, 1e300]), "float32", "is finite"),
        ([1.0, 1e300], None, "is finite"),
        ([-1, 2**63], None, "no integer dtype holds all"),
    ],
    ids=repr,
)
def test_numbers_that_do_not_fit_are_refused(value: Any, dtype: Any, text: str) -> None:
    """TensorFlow wraps them around, or makes them infinite or NaN."""
    with ours.Graph().as_default(), pytest.raises(ValueError, match=text):
        ours.constant(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.array([1.5]), "int32"), (np.float64(1.5), "int32"), (np.array([1j]), "float32"),
     (np.array([1, 2]), "bool"), (np.array([1, 2.5], object), "int32")],
    ids=repr,
)  # fmt: skip
def test_arrays_are_cast_within_their_kind_only(value: Any, dtype: str) -> None:
    """TensorFlow cuts fractions and imaginary parts off."""
    with ours.Graph().as_default(), pytest.raises(TypeError, match=f"Expected {dtype}, but got"):
        ours.constant(value, dtype)


@pytest.mark.parametrize(("value", "shape"), [([1, 2, 3], [2, 3]), ([1, 2], [0]), ([], [2])])
def test_only_a_single_element_is_repeated(value: Any, shape: Any) -> None:
    """TensorFlow pads with the last element, and takes 0 for none."""
    with ours.Graph().as_default(), pytest.raises(ValueError, match="elements do not fill shape"):
        ours.constant(value, shape=shape)


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16", ">u2", ">f2"])
def test_the_other_byte_order_is_converted(dtype: str) -> None:
    """TensorFlow reads big-endian bytes as little-endian ones."""
    with ours.Graph().as_default():
        tensor = ours.constant(np.array([1, 2], dtype))
    assert value_of(tensor).tolist() == [1, 2]
    assert value_of(tensor).dtype.isnative


def test_verify_shape_refuses_another_shape() -> None:
    with ours.Graph().as_default(), pytest.raises(TypeError, match="Expected Tensor's shape"):
        ours.constant([1, 2], shape=[2, 1], verify_shape=True)


def test_masks_are_not_lost() -> None:
    with ours.Graph().as_default(), pytest.raises(TypeError, match="mask"):
        ours.constant(np.ma.masked_array([1, 2], [True, False]))


def test_quantised_constants_are_integers_in_range() -> None:
    with ours.Graph().as_default():
        assert ours.constant([1, -2], ours.qint8).dtype is datatypes.qint8
        with pytest.raises(ValueError, match="do not fit qint8"):
            ours.constant([200], ours.qint8)


# ---- memory ------------------------------------------------------------------------------------


def test_a_constant_shares_nothing_with_its_array() -> None:
    array = np.ones((40, 40), np.float32)
    with ours.Graph().as_default():
        value = value_of(ours.constant(array))
    array[:] = 0
    assert value.min() == 1
    assert not value.flags.writeable


@pytest.mark.parametrize("offset", range(0, 64, 4))
def test_large_constants_begin_where_other_frameworks_share(offset: int) -> None:
    room = np.arange(5000, dtype=np.uint8).repeat(4)
    array = room[offset : offset + 16000].view(np.float32)
    with ours.Graph().as_default():
        value = value_of(ours.constant(array))
    assert value.ctypes.data % ALIGNMENT == 0
    assert value.tobytes() == array.tobytes()


def test_a_repeated_element_is_stored_once() -> None:
    with ours.Graph().as_default():
        value = value_of(ours.constant(0.5, shape=[1 << 20, 1 << 10]))
    assert value.strides == (0, 0)
    assert value.base is None or value.base.nbytes <= 4


@pytest.mark.parametrize("name", ["torch", "jax.numpy", "dlbridge", "tensorflow"])
def test_tensors_of_any_framework_go_in(name: str, framework) -> None:
    module = framework(name)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    make = {"torch": "from_numpy", "jax.numpy": "asarray", "dlbridge": "as_tensor",
            "tensorflow": "constant"}[name]  # fmt: skip
    with ours.Graph().as_default():
        tensor = ours.constant(getattr(module, make)(array))
    assert (tensor.dtype.name, tensor.shape) == ("float32", (2, 3))
    assert value_of(tensor).tolist() == array.tolist()


# ---- conversion --------------------------------------------------------------------------------


def test_convert_to_tensor_takes_what_is_one_already() -> None:
    with ours.Graph().as_default():
        x = ours.constant(1.0)
        assert ours.convert_to_tensor(x) is x
        with pytest.raises(ValueError, match="requested dtype int32 for Tensor with dtype float32"):
            ours.convert_to_tensor(x, ours.int32)


def test_convert_to_tensor_prefers_a_dtype_if_it_can() -> None:
    with ours.Graph().as_default():
        found = [
            ours.convert_to_tensor(1, preferred_dtype=ours.float64).dtype.name,
            ours.convert_to_tensor(1.5, preferred_dtype=ours.int32).dtype.name,
            ours.convert_to_tensor([1], dtype_hint="int8").dtype.name,
        ]
    assert found == ["float64", "float32", "int8"]


def test_a_shape_is_a_value_where_it_is_known() -> None:
    with ours.Graph().as_default():
        assert value_of(ours.constant(ours.TensorShape([2, 3]))).tolist() == [2, 3]
        with pytest.raises(ValueError, match=r"not fully known has no value, got \(\?, 3\)"):
            ours.constant(ours.TensorShape([None, 3]))


def test_a_symbolic_tensor_is_no_value_of_a_constant() -> None:
    with ours.Graph().as_default():
        x = ours.constant(1.0)
        for value in (x, [x, x]):
            with pytest.raises(TypeError, match="symbolic"):
                ours.constant(value)


@pytest.fixture
def graph() -> Iterator[ours.Graph]:
    with ours.Graph().as_default() as graph:
        yield graph


def test_none_in_a_list_is_named(graph: ours.Graph) -> None:
    """The 1 before it is right, and not what to look for."""
    with pytest.raises(TypeError, match="None values not supported"):
        ours.constant([1, None])


def test_integers_of_any_size_are_numbers_or_an_error(graph: ours.Graph) -> None:
    assert ours.constant(2**80, ours.float32).dtype == ours.float32
    for value, dtype in (
        (2**80, ours.int64),
        ([2**80, 1], ours.int32),
        (2**80, None),
        (1 << 2000, ours.float64),
    ):
        with pytest.raises((ValueError, TypeError), match="bits does not fit"):
            ours.constant(value, dtype)


def test_text_and_bytes_make_one_constant(graph: ours.Graph) -> None:
    """NumPy would read bytes next to a str as ASCII."""
    with ours.Session() as session:
        found = session.run(ours.constant([["x", b"\xff"], ["é", b"c\0"]]))
    assert found.tolist() == [[b"x", b"\xff"], [b"\xc3\xa9", b"c\0"]]
