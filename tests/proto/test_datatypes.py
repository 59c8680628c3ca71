"""DataType against TensorFlow's DType: numbers, names, predicates, limits, what it reads."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlbridge
from dlbridge.proto import datatypes
from dlbridge.proto.datatypes import DATA_TYPES, DataType, as_dtype

PROPERTIES = (
    "name", "as_datatype_enum", "is_floating", "is_integer", "is_complex", "is_bool", "is_unsigned",
    "is_quantized", "is_numpy_compatible", "_is_ref_dtype", "size",
)  # fmt: skip


@pytest.fixture(scope="module")
def tf(framework: Any) -> Any:
    return framework("tensorflow")


@pytest.mark.parametrize("number", DATA_TYPES)
def test_a_data_type_is_what_tensorflows_is(tf: Any, number: int) -> None:
    ours, theirs = DATA_TYPES[number], tf.as_dtype(number)
    for name in PROPERTIES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (repr(ours), str(ours)) == (repr(theirs), str(theirs))
    assert ours.base_dtype.number == theirs.base_dtype.as_datatype_enum
    assert ours.real_dtype.number == theirs.real_dtype.as_datatype_enum
    if ours.is_numpy_compatible:
        assert np.dtype(ours.as_numpy_dtype) == np.dtype(theirs.as_numpy_dtype) == ours.numpy
    assert as_dtype(theirs) is ours
    assert ours == theirs


@pytest.mark.parametrize("number", DATA_TYPES)
def test_extremes_and_limits_are_tensorflows_or_refused_as_there(tf: Any, number: int) -> None:
    ours, theirs = DATA_TYPES[number], tf.as_dtype(number)
    for name in ("min", "max"):
        try:
            expected = getattr(theirs, name)
        except TypeError:
            with pytest.raises(TypeError):
                getattr(ours, name)
        else:
            assert float(getattr(ours, name)) == pytest.approx(float(expected), rel=1e-5)
    try:
        limits = theirs.limits
    except (ValueError, KeyError):
        with pytest.raises(ValueError, match="limits"):
            ours.limits
    else:
        assert ours.limits == limits


@pytest.mark.parametrize("dtype", DATA_TYPES.values(), ids=str)
def test_there_is_one_object_for_each_type(dtype: DataType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert as_dtype(dtype.number) is as_dtype(dtype.name) is as_dtype(dtype.wire_name) is dtype
    assert DataType(dtype.name) is dtype
    assert dtype.as_ref.is_ref
    assert dtype.as_ref.base_dtype is dtype.base_dtype
    assert getattr(datatypes, {"bool": "bool_"}.get(dtype.name, dtype.name)) is dtype


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (float, "float32"), (int, "int32"), (bool, "bool"), (complex, "complex128"),
        (str, "string"), (bytes, "string"), (object, "string"), (np.str_, "string"),
        (np.dtype("S3"), "string"), (np.dtype(">f4"), "float32"), (np.longlong, "int64"),
        (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(ml_dtypes.int4), "int4"), (101, "float32_ref"),
        (np.dtype([("quint16", np.uint16)]), "quint16"), (dlbridge.DType("float8_e5m2"),
         "float8_e5m2"), ("half", "float16"), ("double", "float64"), ("float_ref", "float32_ref"),
    ],
    ids=str,
)  # fmt: skip
def test_as_dtype_reads(given: object, name: str) -> None:
    assert as_dtype(given).name == name
    is_unequal = any(given is each for each in (int, str, bytes, complex))  # as in TensorFlow
    assert (as_dtype(name) == given) is not is_unequal


@pytest.mark.parametrize(
    "given",
    [None, "foo", "f", "<f4", 0, 34, 134, 100, [], list, np.datetime64, np.dtype("m8"), 1.0,
     np.dtype([("qint8", np.int16)]), np.dtype([("x", np.int8)]),
     dlbridge.DType("float32x4")],
    ids=repr,
)  # fmt: skip
def test_dtypes_that_tensorflow_lacks_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match="not a TensorFlow dtype"):
        as_dtype(given)
    assert datatypes.float32 != given


def test_every_dlpack_type_of_tensorflow_goes_both_ways() -> None:
    for dtype in DATA_TYPES.values():
        if dtype.dlpack is not None:
            assert as_dtype(dtype.dlpack) is dtype.base_dtype
            assert dtype.dlpack == dtype.base_dtype
            assert dlbridge.DType(dtype.base_dtype) is dtype.dlpack
            assert dtype.dlpack.tensorflow_number == dtype.base_dtype.number


def test_dtypes_of_torch_are_read(framework: Any) -> None:
    torch = framework("torch")
    assert as_dtype(torch.bfloat16) is datatypes.bfloat16
    assert datatypes.int64 == torch.int64


def test_a_data_type_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        datatypes.float32.name = "float64"
    with pytest.raises(AttributeError, match="immutable"):
        del datatypes.bfloat16.numpy


def test_compatibility_looks_through_references() -> None:
    assert datatypes.float32_ref.is_compatible_with(datatypes.float32)
    assert not datatypes.float32.is_compatible_with(datatypes.float32_ref)


def test_handles_have_no_numpy_type() -> None:
    assert datatypes.resource.numpy is None
    with pytest.raises(AttributeError, match="no NumPy type"):
        datatypes.resource.as_numpy_dtype
    with pytest.raises(AttributeError, match="no attribute 'foo_ref'"):
        datatypes.foo_ref


@pytest.mark.parametrize("number", sorted(DATA_TYPES))
@pytest.mark.parametrize(
    "other",
    [int, str, bytes, complex, float, bool, object, np.number, np.bytes_, np.str_, "string", None,
     np.ones(2, "i4"), np.ones(2), np.array(["int32"]), np.array([None]), np.array(1.5, ">f4")],
    ids=str,
)  # fmt: skip
def test_equality_is_tensorflows(tf: Any, number: int, other: object) -> None:
    """Some types are converted by `as_dtype` alone, and equal to no dtype."""
    theirs = tf.dtypes.as_dtype(number)
    assert (DATA_TYPES[number] == other) is (theirs == other)
    assert (DATA_TYPES[number] != other) is (theirs != other)


def test_arrays_of_frameworks_are_equal_as_in_tensorflow(tf: Any, framework: Any) -> None:
    ours, theirs = datatypes.int32, tf.int32
    arrays = (framework("jax").numpy.ones(2, "int32"), framework("torch").ones(2), tf.ones(2))
    for array in arrays:
        assert (ours == array) is (theirs == array)
        assert (ours != array) is (theirs != array)
