"""dpnp's own rules: a real device that is not the CPU's, even where it is the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_peers import BareProducer, Consumer, ModernProducer, describe

import dlbridge
from dlbridge import from_dlpack, to_dpnp, to_numpy
from dlbridge._core import native
from peers.checks import receipt_of, refused
from peers.readers import filled

dpnp = pytest.importorskip("dpnp", exc_type=ImportError)

try:
    dpnp.zeros(1)
except Exception as error:
    pytest.skip(f"dpnp finds no SYCL device: {error}", allow_module_level=True)

ONEAPI = 14


def address(x: Any) -> int:
    """Return where an array's first element is."""
    usm = x.get_array() if hasattr(x, "get_array") else x
    return int(usm._pointer)


# ---- out: device memory ------------------------------------------------------------------------


def test_device_memory_is_taken_as_it_is() -> None:
    x = dpnp.arange(24, dtype="float32").reshape(4, 6)
    for view in (x, x[1:], x.T, x[:, ::-1], x[::2, 1::2]):
        tensor = from_dlpack(view)
        assert tensor.__dlpack_device__() == (ONEAPI, 0)
        assert tensor.shape == view.shape
        assert tensor.data_ptr == address(view)
        assert tensor.strides == tuple(step // 4 for step in view.strides)


def test_device_memory_is_read_by_nobody_on_the_host() -> None:
    x = dpnp.ones(3)
    text = refused("device", to_numpy, x)
    assert "copy it" in text
    refused("device", to_numpy, x, copy=True)
    refused("device", from_dlpack, x, copy=True)
    with pytest.raises((BufferError, ValueError, TypeError)):
        from_dlpack(x).tolist()


@pytest.mark.fact(17)
def test_the_host_gets_a_copy_on_request() -> None:
    """dpnp ignores `dl_device` unless a versioned capsule is asked for."""
    x = dpnp.arange(24, dtype="float32").reshape(4, 6)
    legacy = Consumer(x.__dlpack__(dl_device=(1, 0)))
    assert legacy.device == (ONEAPI, 0), "dpnp has changed"
    legacy.release()
    for view in (x, x[1:], x[:, ::-1], x.T, x[2, 3]):
        y = to_numpy(view, device="cpu")
        assert np.array_equal(y, dpnp.asnumpy(view))
        assert y.ctypes.data != address(view)
        tensor = from_dlpack(view, device="cpu")
        assert tensor.device == "cpu"
    receipt = receipt_of(x, "numpy", device="cpu")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "dpnp", "device")
    refused("device", to_numpy, x, device="cpu", copy=False)
    refused("device", from_dlpack, x, device="cpu", copy=False)


@pytest.mark.fact(17)
def test_a_producer_that_delivers_to_another_device_is_refused() -> None:
    """The device of the capsule counts, not the one that was asked for."""

    class Deaf(ModernProducer):
        def __dlpack__(self, **keywords: object) -> object:
            self.calls.append(keywords)
            return self.capsule()

    x = filled((3,), "float32")
    producer = Deaf(describe(x, device=(ONEAPI, 0)))
    refused("device", from_dlpack, producer, device="cpu")
    assert producer.calls[0]["dl_device"] == (1, 0)


@pytest.mark.fact(16)
def test_read_only_is_kept() -> None:
    """dpnp marks its versioned capsules only."""
    x = dpnp.arange(6.0)
    x.flags.writable = False
    assert from_dlpack(x).readonly
    assert not to_dpnp(from_dlpack(x)).flags.writable


def test_the_tensors_below_dpnp_are_taken_too() -> None:
    x = dpnp.ones(3)
    assert from_dlpack(x.get_array()).data_ptr == address(x)
    assert to_numpy(x.get_array(), device="cpu").tolist() == [1, 1, 1]


# ---- in ----------------------------------------------------------------------------------------


def test_device_memory_is_shared() -> None:
    x = dpnp.arange(24, dtype="float32").reshape(4, 6)
    for view in (x, x[1:], x.T, x[::2]):
        tensor = from_dlpack(view)
        y = to_dpnp(tensor)
        assert isinstance(y, dpnp.ndarray)
        assert address(y) == address(view)
        assert dpnp.asnumpy(y).tolist() == dpnp.asnumpy(view).tolist()
        assert to_dpnp(tensor, copy=False).shape == view.shape
    tensor = from_dlpack(x)
    x[0, 0] = 99
    assert float(to_dpnp(tensor)[0, 0]) == 99
    receipt = receipt_of(tensor, "dpnp")
    assert (receipt.shared, receipt.copied_by) == (True, None)
    assert to_dpnp(x) is x


@pytest.mark.fact(30)
def test_negative_strides_of_device_memory_are_refused() -> None:
    """dpnp cannot import them, and only the device could copy them."""
    x = dpnp.arange(6.0)
    reverse = from_dlpack(x[::-1])
    with pytest.raises(ValueError, match="accommodate"):
        dpnp.from_dlpack(reverse)
    refused("device", to_dpnp, reverse)
    refused("strides", to_dpnp, reverse, copy=False)


@pytest.mark.fact(31)
def test_host_memory_becomes_an_array_of_the_device() -> None:
    """`dpnp.from_dlpack` would return a NumPy array."""
    x = filled((4, 6), "float32")
    assert isinstance(dpnp.from_dlpack(x), np.ndarray), "dpnp has changed"
    for view in (x, x.T, x[::2], x[:, ::-1], x[:0], x[1, 2]):
        y = to_dpnp(view)
        assert isinstance(y, dpnp.ndarray)
        assert y.__dlpack_device__()[0] == ONEAPI
        assert np.array_equal(dpnp.asnumpy(y), view)
    receipt = receipt_of(x, "dpnp")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "dpnp", "device")
    assert "copy=False" in refused("device", to_dpnp, x, copy=False)
    x.flags.writeable = False
    assert to_dpnp(x).shape == (4, 6)


def test_the_device_policy() -> None:
    x = filled((3,), "float32")
    assert to_dpnp(x, device=(ONEAPI, 0)).__dlpack_device__() == (ONEAPI, 0)
    refused("device", to_dpnp, x, device=(ONEAPI, 5))
    refused("device", to_dpnp, x, device="cuda:0")
    refused("device", to_dpnp, from_dlpack(dpnp.ones(3)), device="cpu")


DTYPES = ["bool", "float16", "float32", "float64", "complex64", "complex128"]
DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    device = dpnp.empty(0).sycl_device
    if (name in ("float64", "complex128") and not device.has_aspect_fp64) or (
        name == "float16" and not device.has_aspect_fp16
    ):
        refused("dtype", to_dpnp, filled((4,), name))
        return
    x = filled((2, 3), name)
    y = to_dpnp(x)
    assert y.dtype == name
    assert from_dlpack(y).dtype == name
    assert to_numpy(y, device="cpu").tobytes() == x.tobytes()


@pytest.mark.parametrize("triple", [(4, 16, 1), (10, 8, 1), (0, 4, 1), (5, 32, 1)])
@pytest.mark.fact(22)
def test_dtypes_that_dpnp_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    """bfloat16 and small floats are not among its dtypes."""
    refused("dtype", to_dpnp, native.allocate((4,), triple))


@pytest.mark.fact(9)
def test_the_byte_offset_is_folded_into_the_pointer() -> None:
    """dpnp ignores that of CPU memory and would read other elements."""
    x = filled((64,), "float32")
    producer = ModernProducer(describe(x, byte_offset=64, shape=(16,)))
    assert dpnp.asnumpy(to_dpnp(producer)).tolist() == x[16:32].tolist()


@pytest.mark.fact(4)
def test_a_null_deleter_is_replaced() -> None:
    """dpnp crashes when an array dies whose producer gave none."""
    x = filled((4,), "float32")
    for kind in (ModernProducer, BareProducer):
        assert to_dpnp(kind(describe(x, has_deleter=False))).shape == (4,)
    usm = dpnp.ones(3)
    tensor = from_dlpack(usm)
    del usm
    again = dpnp.from_dlpack(tensor)
    del tensor
    assert dpnp.asnumpy(again).tolist() == [1, 1, 1]


def test_rank() -> None:
    assert to_dpnp(np.zeros((1,) * 64, "float32")).ndim == 64
    beyond = native.allocate((1,) * 65, (2, 32, 1))
    refused("ndim", to_dpnp, beyond)


def test_a_tensor_of_the_device_goes_where_devices_are_known() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    x = dpnp.ones(3)
    y = dlbridge.to_tvm(x)
    assert isinstance(y, tvm_ffi.Tensor)
    assert y.__dlpack_device__() == (ONEAPI, 0)
