"""Pickling: every protocol, every dtype, and no copy out of band."""

import pickle

import numpy as np
import pytest

from dlbridge._core import native
from dlbridge.errors import AllocationError, ArgumentError, DLBridgeError, ExchangeError
from dlbridge.tensor.memory import from_buffer, full, zeros
from dlbridge.tensor.pickling import rebuild, rebuild_cuda
from dlbridge.tensor.tensor import Tensor, equal

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
    tensor = native.take_object(object(), 0xDEAD000, (3,), None, (2, 32, 1), (10, 0))
    with pytest.raises(ExchangeError) as caught:
        pickle.dumps(tensor)
    assert caught.value.reason == "device"


# ---- what no writer of ours says ----

FLOATS = {"shape": (3, 4), "dtype": (2, 32, 1), "order": (0, 1), "flags": 0}


@pytest.mark.parametrize("length", [0, 1, 47])
def test_a_buffer_that_was_cut_off_is_refused(length):
    """A reader passes buffers out of band itself; reading past their end would be a crash."""
    buffers = []
    data = pickle.dumps(full((3, 4), 1.5, "float32"), 5, buffer_callback=buffers.append)
    with pytest.raises(ArgumentError, match=f"48 bytes or more, got {length} bytes"):
        pickle.loads(data, buffers=[bytes(buffers[0].raw())[:length]])


def test_buffers_in_the_wrong_order_are_refused_or_fit():
    """Two tensors of one pickle: the short buffer of the one does not hold the other."""
    buffers = []
    pair = [full((3, 4), 1.5, "float32"), full(3, 1, "int8")]
    data = pickle.dumps(pair, 5, buffer_callback=buffers.append)
    with pytest.raises(ArgumentError, match="48 bytes or more, got 3 bytes"):
        pickle.loads(data, buffers=buffers[::-1])


@pytest.mark.parametrize("step", [2, -1])
def test_a_buffer_with_gaps_is_refused(step):
    """Its last byte is not where the strides of the pickled tensor lead."""
    with pytest.raises(ArgumentError, match="contiguous"):
        rebuild(Tensor, memoryview(bytearray(200))[::step], **FLOATS)


@pytest.mark.parametrize(("flags", "nbytes"), [(0, 4), (4, 8)])
def test_padded_elements_need_a_byte_each(flags, nbytes):
    """The flag doubles what eight elements of four bits take."""
    state = {"shape": (8,), "dtype": (1, 4, 1), "order": (0,), "flags": flags}
    assert rebuild(Tensor, bytes(nbytes), **state).tolist() == [0] * 8
    with pytest.raises(ArgumentError, match=f"{nbytes} bytes or more"):
        rebuild(Tensor, bytes(nbytes - 1), **state)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"order": order} for order in [(0, 0), (1, 2), (0,), (0, 1, 2), (-1, 0), (0.0, 1), None]),
        *({"shape": shape} for shape in [(-3, -4), (3, -4), (3.0, 4), "34", [3, 4], None, 12]),
        *({"shape": shape} for shape in [(2**70, 0), (0, 2**62), (2**70, 1), (2**32, 2**32)]),
        *({"dtype": dtype} for dtype in [(2, 32), (2, 33, 1), (2, 32, 0), (99, 0, 1), None]),
        *({"flags": flags} for flags in [1, 2, 8, -1, None, "4", 0.0, False]),
        {"shape": (1,) * 300, "order": tuple(range(300))},
        {"shape": (1,) * 2, "dtype": (2, 64, 65535)},
    ],
    ids=repr,
)
def test_a_state_that_does_not_agree_is_refused(wrong):
    """A pickle is bytes from elsewhere: nonsense in it is an error and never a crash."""
    with pytest.raises(DLBridgeError):
        rebuild(Tensor, bytearray(48), **{**FLOATS, **wrong})


@pytest.mark.parametrize(("cls", "data"), [(int, b"a" * 48), ("Tensor", b"a" * 48), (Tensor, 48)])
def test_a_state_of_other_types_is_refused(cls, data):
    """Neither a class that is no Tensor nor data without a buffer gets as far as memory."""
    with pytest.raises(TypeError):
        rebuild(cls, data, **FLOATS)


def test_packing_that_finds_no_memory_names_the_size():
    """A broadcast view has to be packed, and can be larger than any memory."""
    view = full((1, 3), 1, "int8").broadcast_to((2**50, 3))
    with pytest.raises(AllocationError, match=f"{3 * 2**50} bytes"):
        pickle.dumps(view)


NONSENSE = [None, "x", 1.5, (), (1,), -1, 2**70, (2**70,), b"x", (2, 2.0), object(), int, True]


@pytest.mark.parametrize("place", range(6))
def test_any_wrong_pickle_is_refused_with_one_kind_of_error(place):
    arguments = [Tensor, bytes(24), (2, 3), (2, 32, 1), (0, 1), 0]
    for other in NONSENSE:
        changed = [*arguments[:place], other, *arguments[place + 1 :]]
        if place != 5 or other is not True:
            with pytest.raises(DLBridgeError):
                rebuild(*changed)


@pytest.mark.parametrize("place", [0, 2, 3, 4, 5, 6])
def test_any_wrong_pickle_of_cuda_memory_is_refused_likewise(place):
    arguments = [Tensor, (), 0, (0, 3), (3, 1), (2, 32, 1), 0]
    for other in NONSENSE:
        changed = [*arguments[:place], other, *arguments[place + 1 :]]
        with pytest.raises(DLBridgeError):
            rebuild_cuda(*changed)
