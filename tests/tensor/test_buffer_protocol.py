"""The buffer protocol out: what a Tensor grants is what NumPy grants for the same layout."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError

_testbuffer = pytest.importorskip("_testbuffer", reason="CPython was built without _testbuffer")

LAYOUTS = {
    "row-major": np.arange(12, dtype="i4").reshape(3, 4),
    "column-major": np.arange(12, dtype="i4").reshape(3, 4).T,
    "strided": np.arange(12, dtype="i4").reshape(3, 4)[:, ::2],
    "reversed": np.arange(12, dtype="i4")[::-1],
    "vector": np.arange(5, dtype="i4"),
    "empty": np.zeros((0, 3), "i4"),
}
CONTIGUITY = ("ND", "STRIDES", "C_CONTIGUOUS", "F_CONTIGUOUS", "ANY_CONTIGUOUS")


def grants(x: object, request: int) -> tuple[object, ...] | None:
    try:
        view = _testbuffer.ndarray(x, getbuf=request)
    except (BufferError, ValueError):
        return None
    strides = view.strides if view.nbytes else None  # without elements they mean nothing
    return view.ndim, view.shape, strides, view.readonly, view.format, view.itemsize


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("contiguity", CONTIGUITY)
@pytest.mark.parametrize(("writable", "named"), [*itertools.product((False, True), repeat=2)])
def test_a_request_is_granted_exactly_where_numpy_grants_it(
    layout: str, contiguity: str, writable: bool, named: bool
) -> None:
    """A consumer that asked for Fortran order indexes by it: a wrong grant is wrong data."""
    request = getattr(_testbuffer, f"PyBUF_{contiguity}")
    request |= _testbuffer.PyBUF_WRITABLE if writable else 0
    request |= _testbuffer.PyBUF_FORMAT if named else 0
    array = LAYOUTS[layout]
    assert grants(dlbridge.from_dlpack(array), request) == grants(array, request)


def test_a_tensor_without_dimensions_has_neither_shape_nor_strides() -> None:
    """PEP 3118: both pointers are NULL for ndim 0."""
    memory = memoryview(dlbridge.from_dlpack(np.array(7, "i4")))
    assert (memory.ndim, memory.shape, memory.strides, memory.nbytes) == (0, (), (), 4)
    assert memory[()] == 7


def test_more_dimensions_than_a_buffer_may_have_are_refused() -> None:
    tensor = dlbridge.empty((1,) * 65, "int8")
    with pytest.raises(ExchangeError) as caught:
        memoryview(tensor)  # type: ignore[arg-type]
    assert caught.value.reason == "ndim"


def test_the_shape_outlives_the_memoryview_that_it_was_read_from():
    """The buffer of a class written in Python is held without the memoryview."""

    class Bytes(bytearray):
        pass

    sample = Bytes(range(24))
    views = [memoryview(sample).cast("B", shape=[2, 3, 4])[1:] for _ in range(50)]
    tensors = [dlbridge.from_dlpack(view) for view in views]
    tensors += [dlbridge.from_dlpack(sample) for _ in range(50)]
    del views
    assert {tensor.shape for tensor in tensors[:50]} == {(1, 3, 4)}
    assert {tensor.shape for tensor in tensors[50:]} == {(24,)}


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


@pytest.mark.parametrize("itemsize", [33, 256 + 1, 2**60 + 1])
def test_items_of_more_bytes_than_a_dtype_has_are_refused(itemsize: int) -> None:
    """33 bytes are 264 bits, of which a field of 8 bits keeps 8: another dtype."""
    memory = np.zeros(4, np.uint8)
    one = (ctypes.c_ssize_t * 1)(1)
    step = (ctypes.c_ssize_t * 1)(itemsize)
    buffer = _Buffer(memory.ctypes.data, None, itemsize, itemsize, 0, 1, b"B", one, step)
    make = ctypes.pythonapi["PyMemoryView_FromBuffer"]
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Buffer)]
    with pytest.raises(ExchangeError) as refused:
        native.take_buffer(make(buffer))
    assert refused.value.reason == "dtype"
