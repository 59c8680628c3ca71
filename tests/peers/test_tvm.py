"""TVM's own rules: tvm_ffi takes nearly everything, TVM's own runtime does not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import READ_ONLY, Consumer, ModernProducer, describe

import dlbridge
from dlbridge import from_dlpack, to_numpy, to_tvm
from dlbridge._core import native
from dlbridge.frameworks import tvm
from peers.checks import receipt_of, refused
from peers.readers import filled, read

tvm_ffi = pytest.importorskip("tvm_ffi")

TRIPLES = [(code, bits, 1) for code in (0, 1) for bits in (1, 2, 4, 8, 16, 32, 64)]
TRIPLES += [(2, 16, 1), (2, 32, 1), (2, 64, 1), (3, 64, 1), (4, 16, 1), (6, 8, 1), (15, 6, 1)]
TRIPLES += [(16, 6, 1), (17, 4, 1), (17, 4, 2), (2, 32, 4), (0, 8, 4)]
TRIPLES += [(code, 8, 1) for code in range(7, 15)]


@pytest.mark.parametrize("triple", TRIPLES)
def test_every_dtype_goes_round(triple: tuple[int, int, int]) -> None:
    tensor = native.allocate((8,), triple, 64, True)
    x = to_tvm(tensor)
    assert x.shape == (8,)
    assert x.data_ptr() == tensor.data_ptr
    assert from_dlpack(x).dtype.triple == triple
    assert tvm_ffi.dtype(str(x.dtype)) == x.dtype


@pytest.mark.parametrize("bits", [32, 64, 128])
def test_complex_numbers_are_refused_since_tvm_cannot_name_them(bits: int) -> None:
    for call in (to_tvm, lambda x: dlbridge.convert(x, tvm_ffi.Tensor)):
        refused("dtype", call, native.allocate((8,), (5, bits, 1)))


def test_sub_byte_elements_are_packed() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1, 2, 3, 4], ml_dtypes.int4)
    receipt = receipt_of(x, "tvm")
    assert (receipt.copied_by, receipt.why) == ("dlbridge", "dtype")
    assert to_numpy(to_tvm(x)).tolist() == [1, 2, 3, 4]
    refused("dtype", to_tvm, x, copy=False)


def test_read_only_memory_is_refused() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_tvm, x)
    assert to_tvm(x, readonly="copy").data_ptr() != x.ctypes.data
    assert to_tvm(x, readonly="share").data_ptr() == x.ctypes.data


def test_views_go_out_with_their_offset() -> None:
    x = filled((8,), "float32")
    offset = ModernProducer(describe(x, byte_offset=8, shape=(2,)))
    lent = tvm_ffi.from_dlpack(offset.capsule())
    assert from_dlpack(lent).tolist() == [2, 3]
    assert from_dlpack(lent).data_ptr == x.ctypes.data + 8


def test_any_layout_and_device_is_taken() -> None:
    x = filled((4, 6), "float32", offset=4)
    for view in (x, x.T, x[::2], x[:, ::-1], np.broadcast_to(x[:1], (3, 6))):
        result = to_tvm(dlbridge.as_tensor(view), readonly="share", copy=False)
        assert read("tvm", result) == (view.tobytes(), view.ctypes.data)


def test_an_object_of_its_own_is_returned() -> None:
    x = tvm_ffi.from_dlpack(filled((3,), "float32"))
    assert to_tvm(x) is x
    assert dlbridge.convert(x, tvm_ffi) is x
    assert to_tvm(x, copy=True).data_ptr() != x.data_ptr()


def test_the_paths_agree() -> None:
    for x in (filled((4, 6), "float32"), filled((3,), "bool"), filled((2,), "float32").T):
        fast = to_tvm(x)
        with dlbridge.receipts():
            slow = to_tvm(x)
        for y in (fast, slow):
            assert (y.shape, y.data_ptr(), str(y.dtype)) == (x.shape, x.ctypes.data, x.dtype.name)
        tensor = from_dlpack(fast)
        with dlbridge.receipts():
            assert from_dlpack(fast).strides == tensor.strides


@pytest.mark.subprocess
@pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="TVM itself is not installed")
@pytest.mark.full
def test_tvm_itself_needs_aligned_rows(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import numpy as np, tvm_ffi, dlbridge
        from peers.readers import filled, read
        x = filled((4, 6), "float32", offset=4)
        loose = dlbridge.to_tvm(x)
        assert type(loose) is tvm_ffi.Tensor and loose.data_ptr() == x.ctypes.data
        import tvm
        fine = filled((4, 6), "float32")
        cases = ((fine, None), (x, "alignment"), (x.T, "strides"), (x[::2], "strides"))
        for view, why in cases:
            assert dlbridge.explain(view, "tvm").why == why
            with dlbridge.receipts() as log:
                slow = dlbridge.to_tvm(view)
            for y in (slow, dlbridge.to_tvm(view), dlbridge.convert(view, tvm)):
                assert type(y) is tvm.runtime.Tensor
                assert y.data_ptr() % 64 == 0 and y.is_contiguous()
                assert np.array_equal(y.numpy(), view)
                assert (y.data_ptr() == view.ctypes.data) == (why is None)
            assert log[0].why == why
            if why:
                try:
                    dlbridge.to_tvm(view, copy=False)
                except dlbridge.ExchangeError as error:
                    assert error.reason == why
                else:
                    raise AssertionError("copied in silence")
        y = tvm.runtime.tensor(np.arange(6.0))
        assert dlbridge.to_tvm(y) is y
        assert dlbridge.to_numpy(y).tolist() == list(range(6))
        assert dlbridge.from_dlpack(y).data_ptr == y.data_ptr()
        del loose
        """
    ).check()


def test_a_tensor_is_held_as_an_object() -> None:
    """Without a capsule: the memory stays when the tensor goes, and an offset is folded in."""
    x = filled((8,), "float32")
    offset = ModernProducer(describe(x, byte_offset=8, shape=(2,)))
    theirs = tvm_ffi.from_dlpack(offset.capsule())
    tensor, array = from_dlpack(theirs), to_numpy(theirs)
    assert native.take(theirs) is not None
    assert (tensor.data_ptr, array.ctypes.data) == (x.ctypes.data + 8, x.ctypes.data + 8)
    del theirs, offset
    assert (tensor.tolist(), array.tolist()) == ([2, 3], [2, 3])
    for shape in ((), (0,), (2, 0, 3), (1,) * 8):
        made = tvm_ffi.from_dlpack(np.ones(shape, np.int16))
        assert to_numpy(made).shape == from_dlpack(made).shape == shape


def test_a_tensor_without_an_object_is_refused() -> None:
    """tvm_ffi makes such ones for the time of a callback; it would end the process itself."""
    empty = tvm_ffi.Tensor.__new__(tvm_ffi.Tensor)
    for call in (from_dlpack, to_numpy, dlbridge.to_torch, dlbridge.inspect):
        assert "has no object" in refused("producer", call, empty)


@pytest.mark.subprocess
def test_the_first_exchange_writes_one_receipt(run_python: Callable[..., Any]) -> None:
    """The adapter tries tvm_ffi's table when it is first used, and leaves none of its own."""
    run_python(
        """
        import numpy, tvm_ffi, dlbridge
        with dlbridge.receipts() as log:
            dlbridge.to_tvm(numpy.ones(3))
        assert [each.source for each in log] == ["numpy"], log
        """
    ).check()


def test_proved_releases_make_tensors_by_a_table() -> None:
    """`from_dlpack` remains for others, and takes 1.4 times as long."""
    if not tvm_ffi.__version__.startswith(tvm._PROVED):
        pytest.skip(f"tvm_ffi {tvm_ffi.__version__} is not proved")
    assert tvm._find_table(tvm_ffi, tvm_ffi.Tensor) is not None


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.fact(17)
def test_copy_and_device_count_for_legacy_capsules() -> None:
    """tvm_ffi ignores both unless a versioned capsule is asked for."""
    x = tvm_ffi.from_dlpack(np.arange(4.0))
    ignored = Consumer(x.__dlpack__(copy=True))
    assert ignored.data == x.data_ptr(), "tvm_ffi has changed"
    ignored.release()
    assert from_dlpack(x, copy=True).data_ptr != x.data_ptr()
    refused("device", from_dlpack, x, device="cuda:0")


@pytest.mark.fact(40)
def test_tvm_uses_our_exchange_table_and_gets_no_read_only_memory() -> None:
    """tvm_ffi is the one consumer of exchange tables, and it ignores READ_ONLY."""
    x = filled((2, 3), "float32")
    assert tvm_ffi.from_dlpack(from_dlpack(x)).data_ptr() == x.ctypes.data
    echo = tvm_ffi.convert(lambda y: y)
    assert isinstance(echo(from_dlpack(x)), dlbridge.Tensor)
    marked = ModernProducer(describe(x, flags=READ_ONLY))
    refused("readonly", dlbridge.to_tvm, marked)
