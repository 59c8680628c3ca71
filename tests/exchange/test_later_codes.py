"""Dtypes and devices newer than DLPack 1.3 are carried, and refused where they are read."""

from __future__ import annotations

import copy
import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import Consumer, LegacyProducer, ModernProducer, describe

import dlbridge
from dlbridge.errors import ExchangeError, UnsupportedTypeError

DTYPES: dict[str, tuple[int, int, int]] = {
    "code19_bits16": (19, 16, 1),
    "code40_bits12": (40, 12, 1),
    "code255_bits8x2": (255, 8, 2),
}
DEVICES = {"type22:1": (22, 1), "type70:0": (70, 0), "type2147483647:-3": (2**31 - 1, -3)}
ARRAY = np.arange(24, dtype="i2").reshape(4, 6)


def take(name: str) -> tuple[dlbridge.Tensor, tuple[int, int], tuple[int, int, int]]:
    """Return a Tensor, with the fields of its device and of its dtype."""
    device, dtype = DEVICES.get(name, (1, 0)), DTYPES.get(name, (0, 16, 1))
    what = describe(ARRAY, device=device, dtype=dtype)
    return dlbridge.from_dlpack(ModernProducer(what)), device, dtype


def on_device(device: tuple[int, int] = (22, 1)) -> dlbridge.Tensor:
    return dlbridge.from_dlpack(ModernProducer(describe(ARRAY, device=device)))


def of_dtype(name: str = "code19_bits16") -> dlbridge.Tensor:
    return dlbridge.from_dlpack(ModernProducer(describe(ARRAY, dtype=DTYPES[name])))


@pytest.mark.parametrize("name", [*DTYPES, *DEVICES])
@pytest.mark.parametrize("versioned", [True, False])
def test_what_comes_in_goes_out_as_it_was(name: str, versioned: bool) -> None:
    tensor, device, dtype = take(name)
    found = Consumer(tensor.__dlpack__(max_version=(1, 3) if versioned else None))
    assert (found.device, found.dtype, found.shape) == (device, dtype, (4, 6))
    assert found.data == ARRAY.ctypes.data
    found.release()
    assert tensor.__dlpack_device__() == device
    assert dlbridge.as_tensor(tensor) is tensor


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("kind", [ModernProducer, LegacyProducer])
def test_either_kind_of_capsule_may_have_them(name: str, kind: type[Any]) -> None:
    tensor = dlbridge.from_dlpack(kind(describe(ARRAY, dtype=DTYPES[name])))
    assert str(tensor.dtype) == name


@pytest.mark.parametrize("name", [*DTYPES, *DEVICES])
def test_they_are_shown_by_their_numbers(name: str) -> None:
    tensor, device, dtype = take(name)
    assert "<not read>" in repr(tensor)
    assert f"dtype={tensor.dtype}, device={tensor.device})" in repr(tensor)
    assert (tensor.device.pair, tensor.dtype.triple) == (device, dtype)
    assert name in str(dlbridge.inspect(tensor))


def test_views_are_taken_without_reading() -> None:
    for tensor in (of_dtype(), on_device()):
        assert tensor[1:, ::2].shape == (3, 3)
        assert (tensor.T.shape, tensor.reshape(24).shape) == ((6, 4), (24,))
        assert tensor[1:].device is tensor.device
        assert tensor[1:].dtype is tensor.dtype


def test_the_pointer_of_an_unknown_device_may_be_a_handle() -> None:
    """A view keeps it, and says by the byte offset where it begins."""
    found = Consumer(on_device()[1:, 2:].__dlpack__(max_version=(1, 3)))
    assert (found.data, found.byte_offset) == (ARRAY.ctypes.data, 16)
    found.release()


def test_a_view_of_known_bits_is_readable() -> None:
    assert of_dtype().view("int16").tolist() == ARRAY.tolist()


@pytest.mark.parametrize(
    "made",
    [dlbridge.Tensor.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("name", DTYPES)
def test_elements_in_host_memory_are_copied_bit_by_bit(
    name: str, made: Callable[[dlbridge.Tensor], dlbridge.Tensor]
) -> None:
    tensor = of_dtype(name)
    copied = made(tensor)
    assert copied.dtype is tensor.dtype
    assert copied.data_ptr != tensor.data_ptr
    count = tensor.size * tensor.dtype.itembits // 8
    assert ctypes.string_at(copied.data_ptr, count) == ctypes.string_at(tensor.data_ptr, count)


READS: dict[str, Callable[[dlbridge.Tensor], object]] = {
    "copy": lambda x: x.copy(),
    "to": lambda x: x.to("cpu"),
    "pickle": pickle.dumps,
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "memoryview": memoryview,
    "assignment": lambda x: x.__setitem__(0, 1),
    "equal": lambda x: dlbridge.equal(x, x),
    "__dlpack__ to the CPU": lambda x: x.__dlpack__(dl_device=(1, 0), max_version=(1, 3)),
    "from_dlpack": lambda x: dlbridge.from_dlpack(x, copy=True),
    "to_numpy": dlbridge.to_numpy,
    "explain": lambda x: dlbridge.explain(x, "numpy"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("device", DEVICES.values())
def test_memory_of_an_unknown_device_is_not_read(read: str, device: tuple[int, int]) -> None:
    with pytest.raises(ExchangeError) as caught:
        READS[read](on_device(device))
    assert caught.value.reason == "device"


@pytest.mark.parametrize("read", ["numpy", "item", "tolist", "memoryview", "equal", "assignment"])
def test_elements_of_an_unknown_dtype_have_no_values(read: str) -> None:
    with pytest.raises(ExchangeError) as caught:
        READS[read](of_dtype())
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize("call", [dlbridge.to_numpy, lambda x: dlbridge.explain(x, "numpy")])
def test_a_consumer_without_the_dtype_is_named_with_advice(call: Callable[[Any], object]) -> None:
    with pytest.raises(
        ExchangeError, match=r"got code19_bits16\[4, 6\] on cpu; .*x\.view"
    ) as caught:
        call(ModernProducer(describe(ARRAY, dtype=(19, 16, 1))))
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_frameworks_refuse_what_they_lack(name: str) -> None:
    pytest.importorskip(name)
    for tensor, reason in ((of_dtype(), "dtype"), (on_device(), "device")):
        with pytest.raises(ExchangeError, match=f"to_{name}: ") as caught:
            dlbridge.convert(tensor, name)
        assert caught.value.reason == reason


def test_kernels_with_a_pattern_of_known_dtypes_refuse_them() -> None:
    kernel = dlbridge.wrap(lambda x: None, "later::f(x: number[n, m])", abi="python:dlbridge")
    with pytest.raises(UnsupportedTypeError, match=r"got code19_bits16\[4, 6\]"):
        kernel(of_dtype())
    with pytest.raises(ExchangeError, match="type22:1"):
        kernel(on_device())


def test_graphs_refuse_them_by_name() -> None:
    import dlbridge.graph as tf

    with pytest.raises(ExchangeError, match=r"constant: .* code19_bits16"):
        tf.constant(of_dtype())
    with pytest.raises(ExchangeError, match=r"constant: .* type22:1"):
        tf.constant(on_device())


@pytest.mark.parametrize("fields", [{"device": (5, 0)}, {"device": (-1, 0)}, {"dtype": (19, 0, 1)}])
def test_what_no_later_version_can_mean_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ExchangeError) as caught:
        dlbridge.from_dlpack(ModernProducer(describe(ARRAY, **fields)))
    assert caught.value.reason in fields
