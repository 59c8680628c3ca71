"""MXNet's own rules. MXNet 1.9.1 ends at NumPy 1.23, which is an old peer in its own right."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from dlpack_peers import CUDA, ModernProducer, describe

import dlbridge
from dlbridge import from_dlpack, to_mxnet, to_numpy
from dlbridge._core import native
from peers.checks import receipt_of, refused
from peers.readers import filled

mx = pytest.importorskip("mxnet", exc_type=(ImportError, AttributeError))


def pointer(x: Any) -> int:
    """Return an array's address, as MXNet's C interface gives it."""
    import ctypes

    from mxnet.base import _LIB, check_call

    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(x.handle, ctypes.byref(address)))
    return address.value or 0


# ---- out ---------------------------------------------------------------------------------------


@pytest.mark.fact(29)
def test_arrays_go_out_shared_with_strides_filled_in() -> None:
    """MXNet exports NULL strides, and has no `__dlpack__`."""
    x = mx.nd.arange(24).reshape((4, 6))
    for view in (x, x[1:], x.T, x.reshape((2, 12))):
        tensor = from_dlpack(view)
        assert tensor.tolist() == view.asnumpy().tolist()
        assert tensor.is_contiguous
        assert tensor.data_ptr == pointer(view)
    assert not hasattr(x, "__dlpack__")


def test_queued_work_is_waited_for() -> None:
    x = mx.nd.ones((300, 300))
    for _ in range(5):
        x = mx.nd.dot(x, x) / 300
    assert np.allclose(to_numpy(x), 1)


@pytest.mark.fact(28)
def test_the_capsule_is_consumed_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Its destructor fails on Python 3.11, with a message on stderr and a leak."""
    before = native.live()
    tensor = from_dlpack(mx.nd.ones((3,)))
    gc.collect()
    assert tensor.tolist() == [1, 1, 1]
    del tensor
    gc.collect()
    assert native.live() == before
    assert capfd.readouterr().err == ""


@pytest.mark.fact(28)
def test_bool_is_translated_both_ways() -> None:
    """MXNet exports it as unsigned integers of 1 bit, and stores a byte for each."""
    x = mx.nd.array(np.array([True, False, True]), dtype="bool")
    tensor = from_dlpack(x)
    assert (tensor.dtype, tensor.tolist()) == ("bool", [True, False, True])
    back = to_mxnet(tensor)
    assert back.dtype == np.bool_
    assert back.asnumpy().tolist() == [True, False, True]
    assert pointer(back) == tensor.data_ptr


@pytest.mark.fact(16)
def test_sparse_arrays_are_refused() -> None:
    """MXNet exports their values alone, as if they were the array."""
    x = mx.nd.array([[0, 1], [2, 0]])
    for kind in ("csr", "row_sparse"):
        for call in (from_dlpack, to_numpy):
            refused("sparse", call, x.tostype(kind))


def test_a_gradient_is_not_lost_in_silence() -> None:
    x = mx.nd.ones((3,))
    x.attach_grad()
    refused("requires_grad", from_dlpack, x)
    assert to_numpy(x, grad="detach").ctypes.data == pointer(x)


def test_arrays_of_the_numpy_kind() -> None:
    x = mx.np.arange(6).reshape(2, 3)
    assert from_dlpack(x).tolist() == x.tolist()


# ---- in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
def test_every_dtype_goes_round(name: str) -> None:
    x = filled((2, 3), name)
    y = to_mxnet(x)
    assert y.dtype == x.dtype.type
    assert y.asnumpy().tobytes() == x.tobytes()
    assert pointer(y) == x.ctypes.data
    back = from_dlpack(y)
    assert (back.dtype, back.data_ptr) == (name, x.ctypes.data)


@pytest.mark.fact(28)
def test_bfloat16_goes_round() -> None:
    """MXNet takes it and gives it, though the NumPy beside it cannot."""
    tensor = native.allocate((4,), (4, 16, 1), 64, True)
    assert from_dlpack(to_mxnet(tensor)).dtype.triple == (4, 16, 1)


@pytest.mark.parametrize(
    "triple", [(0, 16, 1), (1, 16, 1), (1, 32, 1), (1, 64, 1), (5, 64, 1), (10, 8, 1), (1, 1, 1)]
)
def test_dtypes_that_mxnet_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_mxnet, native.allocate((8,), triple))


@pytest.mark.fact(30)
def test_other_layouts_than_row_major_are_copied() -> None:
    """MXNet refuses them."""
    x = filled((4, 6), "float32", offset=4)
    for view, why in ((x, None), (x[1:], None), (x.T, "strides"), (x[:, ::-1], "strides")):
        assert receipt_of(view, "mxnet").why == why
        y = to_mxnet(view)
        assert np.array_equal(y.asnumpy(), view)
        assert (pointer(y) == view.ctypes.data) == (why is None)
        if why:
            refused(why, to_mxnet, view, copy=False)


@pytest.mark.fact(30)
def test_strides_of_single_elements_are_normalised() -> None:
    """MXNet checks even the strides of dimensions of size 1."""
    x = filled((6,), "float32")
    odd = ModernProducer(describe(x, shape=(1, 6, 1), strides=(77, 1, -3)))
    y = to_mxnet(odd, copy=False)
    assert y.shape == (1, 6, 1)
    assert pointer(y) == x.ctypes.data


@pytest.mark.fact(9)
def test_the_byte_offset_is_folded_into_the_pointer() -> None:
    """MXNet ignores it and would read other memory."""
    x = filled((64,), "float32")
    producer = ModernProducer(describe(x, byte_offset=64, shape=(16,)))
    assert to_mxnet(producer).asnumpy().tolist() == x[16:32].tolist()


@pytest.mark.fact(20)
def test_read_only_memory_is_refused() -> None:
    """MXNet has no read-only arrays, and would write into it."""
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_mxnet, x)
    assert pointer(to_mxnet(x, readonly="copy")) != x.ctypes.data
    assert pointer(to_mxnet(x, readonly="share")) == x.ctypes.data


@pytest.mark.fact(33)
def test_memory_of_a_gpu_is_refused() -> None:
    """MXNet takes CUDA memory without a GPU."""
    producer = ModernProducer(describe(filled((3,), "float32"), device=(CUDA, 0)))
    refused("device", to_mxnet, producer)


def test_shapes_that_the_old_semantics_cannot_say() -> None:
    for x in (np.zeros((0, 3), "float32"), np.float32(2.5)):
        assert "set_np" in refused("shape", to_mxnet, x)
    with mx.util.np_shape(True):
        assert to_mxnet(np.zeros((0, 3), "float32")).shape == (0, 3)
        assert to_mxnet(np.float32(2.5)).shape == ()
        assert from_dlpack(mx.np.ones(())).shape == ()
        assert to_mxnet(filled((3, 0), "float32")).shape == (3, 0)


def test_rank() -> None:
    assert to_mxnet(np.zeros((1,) * 32, "float32")).ndim == 32
    refused("ndim", to_mxnet, native.allocate((1,) * 33, (2, 32, 1)))


def test_copy() -> None:
    x = filled((4,), "float32")
    assert pointer(to_mxnet(x, copy=True)) != x.ctypes.data
    own = mx.nd.ones((3,))
    assert to_mxnet(own) is own
    assert pointer(to_mxnet(own, copy=True)) != pointer(own)


# ---- NumPy 1.23 --------------------------------------------------------------------------------


@pytest.mark.fact(26)
def test_an_old_numpy_is_asked_without_the_newer_keywords() -> None:
    """NumPy 1.23 knows `stream` alone."""
    x = filled((4, 6), "float32")
    capsule = x.__dlpack__()
    assert dlbridge.as_tensor(capsule).data_ptr == x.ctypes.data
    assert from_dlpack(x).data_ptr == x.ctypes.data


def test_an_old_numpy_takes_what_ours_exports() -> None:
    tensor = from_dlpack(filled((4, 6), "float32"))
    y = np.from_dlpack(tensor)
    assert y.ctypes.data == tensor.data_ptr
    ours = to_numpy(ModernProducer(filled((4, 6), "float32")))
    assert ours.flags.writeable


def test_read_only_arrays_leave_an_old_numpy_too() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    with pytest.raises((TypeError, BufferError)):
        x.__dlpack__()
    assert from_dlpack(x).readonly


@pytest.mark.fact(30)
def test_numpy_takes_32_dimensions_before_version_2_and_64_since() -> None:
    """More are refused before NumPy is entered."""
    most = 32 if int(np.__version__.partition(".")[0]) < 2 else 64
    assert to_numpy(native.allocate((1,) * most, (2, 32, 1))).ndim == most
    refused("ndim", to_numpy, native.allocate((1,) * (most + 1), (2, 32, 1)))
