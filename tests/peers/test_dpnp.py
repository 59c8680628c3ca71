"""dpnp's own rules: a real device that is not the CPU's, even where it is the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    BareProducer,
    Consumer,
    ModernProducer,
    Versioned,
    capsule_address,
    describe,
)

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


@pytest.mark.parametrize("make", [dpnp.ones, np.ones])
def test_a_producer_of_its_package_need_not_be_an_array(make: Any) -> None:
    """As in dpnp's own tests: nothing but the protocol."""
    x = make(3, dtype="float32")

    class Container:
        __module__ = "dpnp.tests"

        def __dlpack__(self, **keywords: object) -> object:
            return x.__dlpack__(**keywords)

        def __dlpack_device__(self) -> tuple[int, int]:
            device: tuple[int, int] = x.__dlpack_device__()
            return device

    tensor = from_dlpack(Container())
    assert tensor.__dlpack_device__() == x.__dlpack_device__()
    assert tensor.cpu().tolist() == [1, 1, 1]


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
def test_negative_strides_of_device_memory_are_shared() -> None:
    """dpnp takes them behind the lowest address, and goes below the memory otherwise."""
    x = dpnp.arange(24.0).reshape(2, 3, 4)
    views = [
        x[::-1], x[:, ::-1], x[..., ::-2], x[::-1, 1:, ::-1], x.mT[::-1], x[::-1, 0],
        x[:, :0][::-1], x[1:, ::-1], x[0, 0, 3:0:-1], x[1, 2, 3], x[None, ::-1],
    ]  # fmt: skip
    for view in views:
        tensor = from_dlpack(view)
        for y in (dpnp.from_dlpack(tensor), to_dpnp(tensor), to_dpnp(tensor, copy=False)):
            assert address(y) == address(view)
            assert y.strides == view.strides
            assert dpnp.asnumpy(y).tolist() == dpnp.asnumpy(view).tolist()
        for max_version in ((1, 3),) if tensor.readonly else (None, (1, 3)):
            consumer = Consumer(tensor.__dlpack__(max_version=max_version))
            assert consumer.data + consumer.byte_offset == tensor.data_ptr
            lowest = sum(
                min(0, (n - 1) * step)
                for n, step in zip(tensor.shape, tensor.strides, strict=True)
                if tensor.size
            )
            assert consumer.byte_offset == -8 * lowest
            consumer.release()

    class Folded:
        """The same, with the offset folded into the pointer."""

        def __dlpack__(self, **keywords: object) -> object:
            capsule = tensor.__dlpack__(max_version=(1, 3))
            dl = Versioned.from_address(capsule_address(capsule)).dl
            dl.data, dl.byte_offset = dl.data + dl.byte_offset, 0
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (ONEAPI, 0)

    tensor = from_dlpack(x[0, 0, ::-1])
    with pytest.raises(ValueError, match="accommodate"):  # else dpnp has changed
        dpnp.from_dlpack(Folded())


# ---- copies and order, by dpnp -----------------------------------------------------------------


@pytest.mark.parametrize("max_version", [None, (1, 3)], ids=["legacy", "versioned"])
def test_the_host_is_delivered_to(max_version: tuple[int, int] | None) -> None:
    x = dpnp.arange(24, dtype="int32").reshape(4, 6)
    for view in (x, x[1:, ::-1], x.T, x[:0], x[2, 3]):
        tensor = from_dlpack(view)
        consumer = Consumer(tensor.__dlpack__(dl_device=(1, 0), max_version=max_version))
        assert consumer.device == (1, 0)
        assert consumer.byte_offset == 0
        assert not consumer.versioned or consumer.flags == 2  # IS_COPIED
        consumer.release()
        expected = dpnp.asnumpy(view)
        for made in (
            np.from_dlpack(tensor, device="cpu"),
            to_numpy(tensor, device="cpu"),
            to_numpy(tensor.to("cpu")),
            tensor.cpu().numpy(),
        ):
            assert np.array_equal(made, expected)
            assert made.dtype == expected.dtype
    refusal = refused("device", from_dlpack(x).__dlpack__, dl_device=(1, 0), copy=False)
    assert "copy=False" in refusal
    refused("device", from_dlpack(x).__dlpack__, dl_device=(2, 0))
    refused("device", to_numpy, from_dlpack(x), device="cpu", copy=False)
    receipt = receipt_of(from_dlpack(x), "numpy", device="cpu")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "dpnp", "device")
    assert dlbridge.explain(from_dlpack(x), "numpy", device="cpu").copied_by == "dpnp"


def test_copies_stay_on_the_device() -> None:
    x = dpnp.arange(24.0).reshape(4, 6)
    x.flags.writable = False
    for view in (x, x[1:, ::-1], x.T):
        tensor = from_dlpack(view)
        for made in (
            dpnp.from_dlpack(tensor, copy=True),
            to_dpnp(tensor, copy=True),
            to_dpnp(view, copy=True),
            to_dpnp(from_dlpack(view, copy=True)),
            to_dpnp(tensor.copy()),
            to_dpnp(tensor.copy("F")),
            to_dpnp(tensor.to("oneapi", copy=True)),
        ):
            assert address(made) != address(view)
            assert made.flags.writable
            assert dpnp.asnumpy(made).tolist() == dpnp.asnumpy(view).tolist()
    assert from_dlpack(x.T).copy().is_contiguous
    assert from_dlpack(x).copy("F").strides == (1, 4)
    assert from_dlpack(x.T).to("oneapi", copy=True).strides == (1, 6)
    consumer = Consumer(from_dlpack(x).__dlpack__(copy=True, max_version=(1, 0)))
    assert consumer.device == (ONEAPI, 0)
    assert consumer.flags == 2
    consumer.release()
    receipt = receipt_of(from_dlpack(x), "dpnp", copy=True)
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "dpnp", "requested")


def test_the_host_goes_to_the_device() -> None:
    x = filled((4, 6), "float32")
    for view in (x, x[:, ::-1], x.T):
        tensor = from_dlpack(view)
        y = tensor.to("oneapi")
        assert y.__dlpack_device__() == (ONEAPI, 0)
        assert np.array_equal(y.cpu().numpy(), view)
        z = dpnp.from_dlpack(tensor, device=(ONEAPI, 0))
        assert np.array_equal(dpnp.asnumpy(z), view)


def test_a_queue_is_a_stream() -> None:
    dpctl = pytest.importorskip("dpctl")
    mine, other = dpctl.SyclQueue(), dpctl.SyclQueue()
    x = dpnp.arange(1 << 16, dtype="float32", sycl_queue=mine)
    for _ in range(5):
        x *= 2
        tensor = from_dlpack(x)  # the device's queue waits for `mine`
        for keywords in ({}, {"copy": True}, {"dl_device": (1, 0)}):
            capsule = tensor.__dlpack__(stream=other, max_version=(1, 3), **keywords)
            Consumer(capsule).release()
        assert np.array_equal(tensor.cpu().numpy(), dpnp.asnumpy(x))
    for wrong in ({}, "queue", 1.5, dpctl.SyclDevice(), True):
        with pytest.raises(TypeError, match="stream must be"):
            tensor.__dlpack__(stream=wrong)
    refused("stream", tensor.__dlpack__, stream=1)
    Consumer(tensor.__dlpack__(stream=-1)).release()


def test_a_capsule_of_an_unknown_producer_is_copied_by_dpnp_all_the_same() -> None:
    x = dpnp.arange(6.0)
    tensor = dlbridge.as_tensor(x.__dlpack__())
    assert tensor.to("cpu").tolist() == [0, 1, 2, 3, 4, 5]


def test_without_dpnp_device_memory_is_not_copied(run_python: Any) -> None:
    """Memory of SYCL may come from others; dpnp is not imported for it."""
    run_python(
        """
        import sys
        from dlbridge._core import native
        import dlbridge
        tensor = native.take_object((), 64, (2,), None, (2, 32, 1), (14, 0))
        for call in (tensor.copy, lambda: tensor.to("cpu"), lambda: tensor.__dlpack__(copy=True),
                     lambda: tensor.__dlpack__(dl_device=(1, 0)),
                     lambda: dlbridge.to_numpy(tensor, device="cpu"),
                     lambda: dlbridge.empty(2, "float32").to("oneapi")):
            try:
                call()
            except dlbridge.ExchangeError as error:
                assert error.reason == "device", error
            else:
                raise AssertionError("not refused")
        try:
            tensor.__dlpack__(stream=object())
        except TypeError:
            pass
        else:
            raise AssertionError("not refused")
        assert "dpnp" not in sys.modules
        """
    ).check()


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
