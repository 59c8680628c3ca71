"""Pickling: every protocol, every dtype, and no copy out of band."""

import pickle

import numpy as np
import pytest

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.memory import from_buffer, full, zeros
from dlbridge.tensor import Tensor, equal

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DTYPES = [
    *("bool", "int2", "int4", "int8", "uint64", "float16", "float64", "bfloat16", "complex32"),
    *("float8_e4m3fn", "float8_e8m0fnu", "float6_e3m2fn", "float4_e2m1fn", "complex128"),
    *("float32x2", "handle"),
]


class Labelled(Tensor):
    """A subclass with attributes of its own."""


def filled(name, shape) -> Tensor:
    """Return a Tensor of this dtype whose bytes count up; all its elements fill whole bytes."""
    tensor = zeros(shape, name)
    memory = np.asarray(tensor.reshape(-1).view("uint8"))
    memory[:] = np.arange(memory.size) % (2 if name == "bool" else 120)
    return tensor


def bits_of(tensor):
    return bytes(tensor.view("uint8"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", DTYPES)
def test_a_round_trip_keeps_everything(name, protocol):
    tensor = filled(name, (3, 8))
    other = pickle.loads(pickle.dumps(tensor, protocol))
    assert type(other) is Tensor
    assert other.dtype is tensor.dtype
    assert other.shape == (3, 8)
    assert not other.readonly
    assert bits_of(other) == bits_of(tensor)
    other[...] = other.copy()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_packed_tails_and_empty_tensors(protocol):
    for tensor in (full((3, 5), 3, "int4"), full((3, 3), 1, "uint2"), zeros((0, 3), "int8"),
                   full((), 7, "int64")):  # fmt: skip
        other = pickle.loads(pickle.dumps(tensor, protocol))
        assert equal(other, tensor)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_read_only_stays_read_only(protocol):
    tensor = from_buffer(b"abcd")
    assert pickle.loads(pickle.dumps(tensor, protocol)).readonly
    view = full(3, 1.0).broadcast_to((2, 3))
    other = pickle.loads(pickle.dumps(view, protocol))
    assert other.readonly
    assert equal(other, view)


def test_out_of_band_buffers_are_the_memory_itself():
    tensor = full((1000, 1000), 1.5, "bfloat16")
    buffers = []
    data = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    assert len(data) < 500
    assert [buffer.raw().nbytes for buffer in buffers] == [2_000_000]
    other = pickle.loads(data, buffers=buffers)
    assert other.data_ptr == tensor.data_ptr
    other[0, 0] = 2.5
    assert tensor[0, 0].item() == 2.5


@pytest.mark.parametrize("readonly", [True, False])
def test_out_of_band_read_only_survives_writable_transport(readonly):
    tensor = from_buffer(b"abcd") if readonly else from_buffer(bytearray(b"abcd"))
    buffers = []
    data = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    other = pickle.loads(data, buffers=[bytearray(buffer.raw()) for buffer in buffers])
    assert other.readonly is readonly
    assert pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]).readonly


def test_transposed_memory_goes_as_it_lies():
    tensor = full((2, 3, 4), 1, "int16").transpose(2, 0, 1)
    tensor[1] = 5
    buffers = []
    data = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    other = pickle.loads(data, buffers=buffers)
    assert other.data_ptr == tensor.data_ptr
    assert other.strides == tensor.strides
    assert equal(other, tensor)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_layouts_are_packed(protocol):
    tensor = from_buffer(bytearray(range(24)), "uint8", (4, 6))
    for view in (tensor[::2, ::-1], tensor[:, :3], tensor[1:2].broadcast_to((3, 6))):
        data = pickle.dumps(view, protocol)
        assert equal(pickle.loads(data), view)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_subclasses_keep_class_and_attributes(protocol):
    tensor = full(3, 1.0)._view((3,), (1,), cls=Labelled)
    tensor.label = {"a": 1}
    other = pickle.loads(pickle.dumps(tensor, protocol))
    assert type(other) is Labelled
    assert other.label == {"a": 1}


def test_padded_elements_stay_padded():
    codes = np.array([1, 15, 7], np.uint8)
    address = codes.__array_interface__["data"][0]
    tensor = native.take_object(codes, address, (3,), None, (0, 4, 1), (1, 0), 4)
    other = pickle.loads(pickle.dumps(tensor))
    assert other.flags == 4
    assert other.tolist() == [1, -1, 7]


def test_memory_of_another_device_is_refused():
    tensor = native.take_object(object(), 0xDEAD000, (3,), None, (2, 32, 1), (2, 0))
    with pytest.raises(ExchangeError) as caught:
        pickle.dumps(tensor)
    assert caught.value.reason == "device"
