"""ONNX Runtime: OrtValues in and out in the same memory, and what they cannot hold."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import from_dlpack, to_numpy, to_onnxruntime
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.frameworks.onnxruntime import ELEMENT_TYPES
from peers.checks import receipt_of, refused
from peers.readers import filled

ort = pytest.importorskip("onnxruntime")


if not hasattr(ort.OrtValue, "from_dlpack"):
    pytest.skip("onnxruntime before 1.31 imports no DLPack", allow_module_level=True)


def known(triple: tuple[int, int, int]) -> bool:
    """Return whether the installed runtime has a dtype."""
    try:
        to_onnxruntime(native.allocate((2,), triple))
    except ExchangeError as error:
        return error.reason != "dtype"
    return True


@pytest.mark.parametrize("number", ELEMENT_TYPES)
def test_each_element_type_crosses_both_ways_in_the_same_memory(number: int) -> None:
    triple = ELEMENT_TYPES[number]
    if not known(triple):
        pytest.skip("this version has no such type")
    x = native.allocate((2, 3), triple)
    value = to_onnxruntime(x)
    assert value.element_type() == number
    assert (value.data_ptr(), value.shape()) == (x.data_ptr, [2, 3])
    assert value.tensor_size_in_bytes() == x.nbytes
    back = from_dlpack(value)
    assert (back.data_ptr, back.shape, back._dtype_triple) == (x.data_ptr, (2, 3), triple)


@pytest.mark.parametrize("readonly", [None, "share"])
def test_bool_is_no_uint8(readonly: str | None) -> None:
    policies: Any = {} if readonly is None else {"readonly": readonly}
    x = np.array([True, False])
    x.flags.writeable = readonly is None
    assert to_onnxruntime(x, **policies).data_type() == "tensor(bool)"
    assert to_onnxruntime(x.view(np.uint8), **policies).data_type() == "tensor(uint8)"
    assert to_numpy(ort.OrtValue.ortvalue_from_numpy(x)).tolist() == [True, False]


def test_writes_are_seen_on_both_sides() -> None:
    x = filled((4, 6), "float32")
    value = to_onnxruntime(x)
    x[1, 2] = 77
    assert value.numpy()[1, 2] == 77
    array = to_numpy(value)
    array[0, 0] = -5
    assert x[0, 0] == -5
    receipt = receipt_of(x, "onnxruntime")
    assert (receipt.shared, receipt.copied_by) == (True, None)
    assert receipt.route.endswith("-> onnxruntime.OrtValue.from_dlpack")
    assert receipt_of(value, "numpy").shared


@pytest.mark.fact(30)
def test_other_layouts_than_row_major_are_copied() -> None:
    x = filled((4, 6), "float32")
    for view in (x.T, x[::2], x[:, ::-1], np.broadcast_to(x[:1], (4, 6))):
        value = to_onnxruntime(view, readonly="share")
        assert value.numpy().tolist() == view.tolist()
        receipt = receipt_of(view, "onnxruntime", readonly="share")
        assert (receipt.copied_by, receipt.why) == ("dlbridge", "strides")
        refused("strides", to_onnxruntime, view, copy=False, readonly="share")
    for view in (x[1:], x[:, :1][:1], x[:0].T, x[::-1][:1], x[0, :1].reshape(())):
        assert receipt_of(view, "onnxruntime").shared
        assert to_onnxruntime(view).numpy().tolist() == view.tolist()


@pytest.mark.fact(20)
def test_read_only_memory_is_refused_copied_or_shared_on_request() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_onnxruntime, x)
    assert to_onnxruntime(x, readonly="copy").data_ptr() != x.ctypes.data
    assert to_onnxruntime(x, readonly="share").data_ptr() == x.ctypes.data


@pytest.mark.fact(47)
def test_a_view_keeps_the_array_behind_an_ort_value() -> None:
    array = filled((1000,), "float64")
    alive = weakref.ref(array)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    expected = array.tolist()
    view = to_numpy(from_dlpack(value)[10:])
    del array, value
    gc.collect()
    assert alive() is not None
    assert view.tolist() == expected[10:]
    del view
    gc.collect()
    assert alive() is None


def test_an_ort_value_keeps_what_it_was_made_of() -> None:
    array = filled((1000,), "float64")
    alive = weakref.ref(array)
    value = to_onnxruntime(array)
    del array
    gc.collect()
    assert alive() is not None
    del value
    gc.collect()
    assert alive() is None


def test_an_ort_value_is_returned_as_it_is() -> None:
    value = to_onnxruntime(np.ones(3, "f4"))
    assert to_onnxruntime(value) is value
    assert dlbridge.convert(value, "ort") is value
    copied = to_onnxruntime(value, copy=True)
    assert copied.data_ptr() != value.data_ptr()


def test_values_of_the_extension_module_are_taken() -> None:
    inner = to_onnxruntime(np.arange(3))._ortvalue
    assert to_numpy(inner).tolist() == [0, 1, 2]
    assert dlbridge.to_onnxruntime(inner).data_ptr() == inner.data_ptr()


def test_complex_numbers_are_refused() -> None:
    refused("dtype", to_onnxruntime, np.ones(3, "complex64"))


def test_a_sparse_value_is_refused() -> None:
    device = ort.OrtDevice.make("cpu", 0)
    sparse = ort.SparseTensor.sparse_coo_from_numpy(
        np.array([3, 3], np.int64), np.ones(2, "f4"), np.array([0, 4], np.int64), device
    )
    value = ort.OrtValue.ort_value_from_sparse_tensor(sparse)
    assert "as_sparse_tensor" in refused("sparse", from_dlpack, value)
