"""Paddle's own rules and its known defects. It cannot be imported after TensorFlow."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import CUDA, READ_ONLY, ModernProducer, describe

import dlbridge
from dlbridge import FrameworkMissingError, from_dlpack, to_numpy, to_paddle
from dlbridge._core import native
from peers.checks import receipt_of, refused
from peers.readers import filled, has, read_memory

if not has("paddle"):
    pytest.skip("paddle is not installed, or TensorFlow was here first", allow_module_level=True)

paddle = pytest.importorskip("paddle")


def values(x: Any) -> bytes:
    """Read a tensor at its address."""
    return read_memory(x.data_ptr(), tuple(x.shape), tuple(x.strides), x.element_size())


# ---- in ----------------------------------------------------------------------------------------

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16"]
DTYPES += ["float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    x = filled((2, 3), name)
    y = to_paddle(x)
    assert str(y.dtype) == f"paddle.{name}"
    assert (values(y), y.data_ptr()) == (x.tobytes(), x.ctypes.data)
    back = from_dlpack(y)
    assert (back.dtype, back.data_ptr) == (name, x.ctypes.data)


@pytest.mark.parametrize("triple", [(4, 16, 1), (10, 8, 1), (12, 8, 1)])
def test_small_floats_go_round(triple: tuple[int, int, int]) -> None:
    tensor = native.allocate((4,), triple, 64, True)
    assert from_dlpack(to_paddle(tensor)).dtype.triple == triple


@pytest.mark.parametrize("triple", [(5, 32, 1), (11, 8, 1), (14, 8, 1), (0, 4, 1), (3, 64, 1)])
def test_dtypes_that_paddle_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_paddle, native.allocate((4,), triple))


@pytest.mark.fact(33)
def test_uint16_is_refused() -> None:
    """Paddle imports it as bfloat16."""
    x = filled((3,), "uint16")
    assert str(paddle.from_dlpack(x).dtype) == "paddle.bfloat16", "Paddle has changed"
    refused("dtype", to_paddle, x)
    bits = paddle.to_tensor([1.0, 2.0], dtype="bfloat16")
    assert from_dlpack(bits).dtype == "bfloat16"


@pytest.mark.fact(12)
def test_vectors_are_refused() -> None:
    """Paddle accepts even 0 lanes."""
    refused("lanes", to_paddle, native.allocate((4,), (2, 32, 4)))


@pytest.mark.fact(30)
def test_nine_dimensions_are_the_most() -> None:
    """Paddle refuses a tenth."""
    assert to_paddle(np.zeros((1,) * 9, "float32")).ndim == 9
    refused("ndim", to_paddle, np.zeros((1,) * 10, "float32"))


def test_layouts_are_shared() -> None:
    x = filled((4, 6), "float32", offset=4)
    for view in (x, x.T, x[::2], x[:, ::3], x[1:]):
        y = to_paddle(view, copy=False)
        assert y.data_ptr() == view.ctypes.data
        assert np.array_equal(y.numpy(), view)
        assert float(y.sum()) == view.sum()
    odd = ModernProducer(describe(x, shape=(1, 6), strides=(-6, 1)))
    assert to_paddle(odd).numpy().tolist() == [x[0].tolist()]


@pytest.mark.fact(30)
def test_negative_strides_are_copied() -> None:
    """Paddle imports them, and its `numpy()` then reads other memory."""
    x = filled((4, 6), "float32")[:, ::-1]
    receipt = receipt_of(x, "paddle")
    assert (receipt.copied_by, receipt.why) == ("dlbridge", "strides")
    assert np.array_equal(to_paddle(x).numpy(), x)
    refused("strides", to_paddle, x, copy=False)


@pytest.mark.fact(16)
def test_read_only_memory_is_refused() -> None:
    """Paddle ignores READ_ONLY, and would write into it."""
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_paddle, x)
    assert to_paddle(x, readonly="copy").data_ptr() != x.ctypes.data
    assert to_paddle(x, readonly="share").data_ptr() == x.ctypes.data
    refused(
        "readonly", to_paddle, ModernProducer(describe(filled((4,), "float32"), flags=READ_ONLY))
    )


@pytest.mark.fact(9)
def test_the_byte_offset_is_folded_into_the_pointer() -> None:
    """Paddle ignores it and would read other memory."""
    x = filled((64,), "float32")
    producer = ModernProducer(describe(x, byte_offset=64, shape=(16,)))
    theirs = paddle.from_dlpack(producer)
    assert theirs.numpy()[0] == x[0], "Paddle has changed"
    del theirs
    assert to_paddle(producer).numpy().tolist() == x[16:32].tolist()


@pytest.mark.subprocess
@pytest.mark.fact(5)
def test_memory_of_a_gpu_is_refused_before_paddle_asks_for_a_stream(
    run_python: Callable[..., Any],
) -> None:
    """A CPU build crashes when it looks for the current stream."""
    if paddle.is_compiled_with_cuda():
        pytest.skip("this Paddle has CUDA")
    run_python(
        f"""
        import dlbridge, paddle
        from dlpack_peers import ModernProducer, describe
        from peers.readers import filled
        producer = ModernProducer(describe(filled((3,), "float32"), device=({CUDA}, 0)))
        for call in (dlbridge.to_paddle, lambda x: dlbridge.to_paddle(x, copy=True)):
            try:
                call(producer)
            except dlbridge.ExchangeError as error:
                assert error.reason == "device", error
            else:
                raise AssertionError("entered Paddle")
        """
    ).check()


@pytest.mark.subprocess
@pytest.mark.fact(8)
def test_paddle_is_not_imported_after_tensorflow(run_python: Callable[..., Any]) -> None:
    """The process would crash before any exchange."""
    run_python(
        """
        import sys, types, numpy as np, dlbridge
        tensorflow = sys.modules["tensorflow"] = types.ModuleType("tensorflow")
        try:
            dlbridge.to_paddle(np.ones(3))
        except dlbridge.FrameworkMissingError as error:
            assert "first" in str(error)
        else:
            raise AssertionError("imported Paddle")
        assert "paddle" not in sys.modules
        """
    ).check()
    assert issubclass(FrameworkMissingError, ImportError)


@pytest.mark.fact(36)
def test_an_address_that_is_imported_twice_keeps_its_owner() -> None:
    """Paddle loses the owner of an address that it imports twice."""
    x = filled((4, 6), "float32")
    before = native.live()["references"]
    first = to_paddle(x)
    second = to_paddle(x)
    assert second is not first
    assert second.data_ptr() == first.data_ptr() == x.ctypes.data
    del first
    assert np.array_equal(second.numpy(), x)
    for _ in range(20):
        second = to_paddle(x)  # the earlier one dies while the new one lives
    del second
    gc.collect()
    assert native.live()["references"] == before


@pytest.mark.fact(36)
def test_an_import_that_was_reshaped_is_not_reused() -> None:
    """An alias must describe the memory as it is asked for now."""
    x = filled((4, 6), "float32")
    first = to_paddle(x)
    first.reshape_([24])
    del first
    assert to_paddle(x).shape == [4, 6]


@pytest.mark.fact(36)
def test_what_get_tensor_returns_holds_no_memory_and_is_refused() -> None:
    """`paddle.ones(3).get_tensor()` refers to a tensor that is gone, and may end the process."""
    before = native.live()["references"]
    x = to_paddle(filled((4, 6), "float32"))
    inner = x.get_tensor()
    for call in (from_dlpack, to_numpy):
        refused("producer", call, inner)
    del x
    assert native.live()["references"] == before, "Paddle has changed"
    del inner


def test_zero_size_and_scalars() -> None:
    x = np.zeros((0, 3), "float32")
    first, second = to_paddle(x), to_paddle(x)
    assert list(first.shape) == list(second.shape) == [0, 3]
    assert to_numpy(paddle.zeros([0, 3])).shape == (0, 3)
    assert to_paddle(np.float32(2.5)).numpy().tolist() == 2.5
    assert to_numpy(paddle.to_tensor(2.5)).tolist() == 2.5


def test_copy() -> None:
    x = filled((4,), "float32")
    assert to_paddle(x, copy=True).data_ptr() != x.ctypes.data
    own = paddle.ones([3])
    assert to_paddle(own) is own
    assert to_paddle(own, copy=True).data_ptr() != own.data_ptr()


# ---- out ---------------------------------------------------------------------------------------


@pytest.mark.fact(24)
def test_a_device_index_of_none_counts_as_zero() -> None:
    """Paddle's `__dlpack_device__()` is (kDLCPU, None)."""
    x = paddle.ones([3])
    assert x.__dlpack_device__()[1] is None, "Paddle has changed"
    for tensor in (from_dlpack(x), from_dlpack(x, device="cpu"), dlbridge.as_tensor(x)):
        assert tensor.__dlpack_device__() == (1, 0)


def test_views_go_out_shared() -> None:
    x = paddle.arange(24).reshape([4, 6]).astype("float32")
    for view in (x, x[1:], x.T, x[::2], x[2:2]):
        tensor = from_dlpack(view)
        assert tensor.tolist() == view.tolist()
        assert not tensor.size or tensor.data_ptr == view.data_ptr()


@pytest.mark.fact(39)
def test_a_gradient_is_refused_until_it_is_detached() -> None:
    """Paddle's exchange table exports tensors that require one."""
    x = paddle.ones([3])
    x.stop_gradient = False
    assert native.take_table(x, type(x).__dlpack_c_exchange_api__).shape == (3,)
    parameter = paddle.create_parameter([2], "float32")
    for needs in (x, x * 2, parameter):
        for call in (from_dlpack, to_numpy):
            refused("requires_grad", call, needs)
        assert to_numpy(needs, grad="detach").shape == tuple(needs.shape)
    assert to_numpy(x, grad="detach").ctypes.data == x.data_ptr()


def test_sparse_tensors_are_refused() -> None:
    x = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
    for call in (from_dlpack, to_numpy):
        refused("sparse", call, x)
        refused("sparse", call, x.to_sparse_csr())


@pytest.mark.subprocess
def test_values_of_a_static_graph_are_refused(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import dlbridge, paddle
        paddle.enable_static()
        x = paddle.static.data("x", [2, 3])
        try:
            dlbridge.from_dlpack(x)
        except dlbridge.ExchangeError as error:
            assert error.reason == "lazy", error
        else:
            raise AssertionError("a value of a graph has no memory")
        """
    ).check()


# ---- the fall-back -----------------------------------------------------------------------------


def test_without_the_table_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlbridge.frameworks import paddle as adapter

    monkeypatch.setattr(adapter, "_TABLE", "__no_such_table__")
    x = filled((4, 6), "float32")
    assert receipt_of(x, "paddle").route.endswith("paddle.utils.dlpack.from_dlpack")
    for view in (x, x.T, x[::2]):
        y = to_paddle(view)
        assert (values(y), y.data_ptr()) == (view.tobytes(), view.ctypes.data)
        assert from_dlpack(y).strides == tuple(y.strides)
    needs = paddle.ones([3])
    needs.stop_gradient = False
    refused("requires_grad", from_dlpack, needs)
    assert from_dlpack(needs.detach()).tolist() == [1, 1, 1]
