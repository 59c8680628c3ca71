"""Tensor: values in and out, typed views, copies, protocols, text."""

import copy
import ctypes
import gc
import operator
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dlbridge
from dlbridge._core import ffi, native
from dlbridge.dtype import DType
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    ViewError,
)
from dlbridge.shape import row_major
from dlbridge.tensor import values
from dlbridge.tensor.memory import empty, empty_like, from_buffer, full, ones, zeros
from dlbridge.tensor.tensor import Tensor, equal

ml_dtypes = pytest.importorskip("ml_dtypes")

FLOATS = [
    *("float16", "float32", "float64", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e5m2"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
]
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (4, 8, 16, 32, 64)]
PACKED = ["int2", "uint2", "int4", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
CUDA = (2, 0)


def on_cuda(shape=(2, 3), dtype=(2, 32, 1), strides=None, flags=0) -> Tensor:
    """Return a Tensor whose memory nobody may touch: its address is made up."""
    return native.take_object(object(), 0xDEAD000, shape, strides, dtype, CUDA, flags)


def on_rocm() -> Tensor:
    return native.take_object(object(), 0xDEAD000, (2, 3), None, (2, 32, 1), (10, 0))


class Named(Tensor):
    """A subclass with attributes of its own."""


def need(name):
    """Skip a test whose dtype this ml_dtypes lacks."""
    if name in ("int1", "uint1", "complex32") and not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")


def named(tensor, name):
    view = tensor._view(tensor.shape, tensor.strides, cls=Named)
    view.name = name
    return view


# ---- values ----


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_numbers_go_in_and_come_out(name):
    tensor = full((3, 8), 1, name)
    tensor[1] = [0, 1, 2, 3, 4, 0, 1, 2]
    tensor[::2, 0:3:2] = 6
    expected = [[6, 1, 6, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 0, 1, 2], [6, 1, 6, 1, 1, 1, 1, 1]]
    assert tensor.tolist() == expected
    assert np.asarray(tensor).astype("f8").tolist() == expected
    kind = float if tensor.dtype.is_floating else int
    assert type(tensor.tolist()[0][0]) is kind
    assert type(tensor[1:2, 4:5].item()) is kind


@pytest.mark.parametrize(("name", "value"), [("bool", True), ("bool1", True), ("int2", -1),
                                             ("uint2", 3), ("int4", -8), ("int1", -1),
                                             ("uint1", 1), ("complex32", 1 - 2j),
                                             ("complex64", 1 - 2j), ("complex128", 1 - 2j),
                                             ("float8_e8m0fnu", 0.25)])  # fmt: skip
def test_narrow_and_complex_values_survive(name, value):
    need(name)
    tensor = zeros((3, 8), name) if name != "float8_e8m0fnu" else full((3, 8), 1, name)
    tensor[::2] = value
    assert tensor[0].tolist() == tensor[2].tolist() == [value] * 8
    assert tensor[1].tolist() != tensor[0].tolist()
    assert type(tensor[0, 0].item()) is type(value)


@pytest.mark.parametrize("name", PACKED)
def test_the_bits_of_packed_values_are_little_endian(name):
    dtype = DType(name)
    codes = np.arange(16, dtype=np.uint8) % (1 << dtype.bits)
    tensor = zeros((2, 8), name)
    tensor[...] = codes.view(dtype.numpy).reshape(2, 8)
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits]
    assert bytes(tensor.view("uint8")) == np.packbits(bits.ravel(), bitorder="little").tobytes()


@given(hnp.arrays("i4", hnp.array_shapes(max_dims=3, max_side=4), unique=True), st.data())
def test_assignment_to_a_view_is_numpys(array, data):
    tensor = native.take(array.copy())
    key = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))
    shapes = hnp.broadcastable_shapes(np.shape(array[key]), max_dims=3, min_side=0, max_side=4)
    value = data.draw(hnp.arrays("i4", shapes))
    expected = array.copy()
    try:
        np.broadcast_to(value, np.shape(array[key]))
    except ValueError:
        with pytest.raises(ArgumentError):
            tensor[key] = value
        return
    expected[key] = value
    tensor[key] = value
    assert np.array_equal(np.asarray(tensor), expected)


def test_assignment_of_overlapping_memory_reads_before_it_writes():
    tensor = from_buffer(bytearray(range(8)), "uint8")
    tensor[1:] = tensor[:-1]
    assert tensor.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    tensor[...] = tensor[::-1]
    assert tensor.tolist() == [6, 5, 4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        ("int32", 1.5, "dtype"),
        ("bool", 1, "dtype"),
        ("float32", 1j, "dtype"),
        ("uint8", 256, "dtype"),
        ("uint8", -1, "dtype"),
        ("int4", [7, 8], "dtype"),
        ("int64", 2**70, "dtype"),
        ("float32", "text", "dtype"),
        ("float32x2", 1.0, "lanes"),
        ("handle", 1.0, "dtype"),
    ],
)
def test_values_that_would_be_lost_are_refused(dtype, value, reason):
    tensor = zeros(2, dtype)
    with pytest.raises(ExchangeError) as caught:
        tensor[...] = value
    assert caught.value.reason == reason
    assert bytes(tensor.view("uint8")) == bytes(tensor.nbytes)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint64", -1),
        ("uint64", np.int64([-1, 1])),
        ("uint8", np.int8([1, -128])),
        ("int8", np.uint8([200, 1])),
        ("int16", np.uint16(2**15)),
        ("int32", np.uint32(2**31)),
        ("int64", 2**63),
        ("int64", np.uint64([2**64 - 1, 0])),
        ("int4", np.uint8(8)),
        ("int4", full(2, 8, "uint4")),
        ("uint4", full(2, -1, "int4")),
        ("uint2", full(2, -2, "int2")),
        ("int2", full(2, 2, "uint2")),
    ],
)
def test_integers_of_the_other_sign_never_wrap(dtype, value):
    """Casting there and back gives the same bits where widths agree: the range decides."""
    tensor = zeros(2, dtype)
    with pytest.raises(ExchangeError, match=f"does not fit {dtype}") as caught:
        tensor[...] = value
    assert caught.value.reason == "dtype"
    assert tensor.tolist() == [0, 0]
    with pytest.raises(ExchangeError):
        full(2, value, dtype)


@pytest.mark.parametrize("name", INTEGERS)
def test_the_extremes_of_a_type_fit(name):
    """The range check is exact at both ends, and for values of every width and sign."""
    bits, signed = DType(name).bits, name.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    assert full((), low, name).item() == low
    assert full(2, high, name).tolist() == [high] * 2
    assert full(2, np.array([True, False]), name).tolist() == [1, 0]
    assert full((0,), np.zeros(0, "i8"), name).tolist() == []
    for beyond in (low - 1, high + 1):
        with pytest.raises(ExchangeError):
            full((), beyond, name)


MASKED = np.ma.array([1, 2], mask=[False, True])


@pytest.mark.parametrize("value", [MASKED, MASKED.astype("i2"), [MASKED, MASKED], ((MASKED,),),
                                   [1, np.ma.masked], np.ma.masked])  # fmt: skip
def test_masked_values_are_refused(value):
    """NumPy drops the mask without a word when it makes an array of these."""
    tensor = zeros(2, "float64")
    with pytest.raises(ExchangeError, match="mask") as caught:
        tensor[...] = value
    assert caught.value.reason == "masked"
    assert tensor.tolist() == [0.0, 0.0]


def test_masked_arrays_without_a_masked_element_are_values():
    """There is nothing to lose; `filled` and `data` are what the refusal advises."""
    tensor = zeros(2, "int64")
    for value in (
        np.ma.array([3, 4]),
        np.ma.array([3, 4], mask=False),
        np.ma.masked_equal([3, 4], 5),
    ):
        tensor[...] = value
        assert tensor.tolist() == [3, 4]
    tensor[...] = MASKED.filled(9)
    assert tensor.tolist() == [1, 9]


def test_values_of_frameworks_come_in_by_the_exchange(framework):
    """Lazy bits are resolved and gradients refused as `from_dlpack` does, not by NumPy's errors."""
    torch = framework("torch")
    tensor = zeros(2, "complex64")
    tensor[...] = torch.tensor([1 + 2j, 3j]).conj()
    assert tensor.tolist() == [1 - 2j, -3j]
    assert full(2, torch.tensor([1 + 2j, 3j]).conj().imag, "float32").tolist() == [-2.0, -3.0]
    assert full(2, torch.ones(2, dtype=torch.bfloat16), "float32").tolist() == [1.0, 1.0]
    for value, reason in (
        (torch.ones(2, requires_grad=True), "requires_grad"),
        (torch.ones(2).to_sparse(), "sparse"),
    ):
        with pytest.raises(ExchangeError) as caught:
            tensor[...] = value
        assert caught.value.reason == reason
    with pytest.raises(UnsupportedTypeError, match="requires grad"):
        tensor[...] = [torch.ones(2, requires_grad=True)] * 2
    with pytest.raises(DLBridgeError):
        tensor[...] = torch.ones(2, device="meta")


class Broken:
    """Raises what no caller of ours can know."""

    def __array__(self, *arguments, **keywords):
        raise RuntimeError("not today")


class Cyclic(list):
    """A list that is its own element."""


@pytest.mark.parametrize("value", [Broken(), [Broken()], {1}, object(), None, "text", b"text"])
def test_values_that_numpy_cannot_read_raise_an_error_of_ours(value):
    """One root for all errors: `except DLBridgeError` around an assignment is enough."""
    with pytest.raises(DLBridgeError):
        full(2, value, "int8")


def test_a_list_in_itself_is_a_refusal_of_ours():
    """Neither the walk for masks nor NumPy ends there."""
    value = Cyclic()
    value.append(value)
    with pytest.raises(UnsupportedTypeError, match="Cyclic"):
        full(2, value, "int8")
    value.clear()


def test_a_shape_that_does_not_fit_is_refused_before_values_are_converted():
    """A broadcast array is small until it is converted: petabytes here."""
    value = np.broadcast_to(np.int32(1), (2**50, 2))
    with pytest.raises(ArgumentError, match="does not broadcast"):
        zeros(2, "int64")[...] = value


@pytest.mark.filterwarnings("ignore:Creating an ndarray")
def test_ragged_lists_are_no_values():
    with pytest.raises((UnsupportedTypeError, ExchangeError)):
        zeros(2, "int8")[...] = [[1], [1, 2]]


def test_a_read_only_tensor_is_never_written():
    memory = bytes(4)
    tensor = from_buffer(memory)
    with pytest.raises(ExchangeError, match="copy") as caught:
        tensor[0] = 1
    assert caught.value.reason == "readonly"
    assert memory == bytes(4)
    with pytest.raises(ExchangeError):
        zeros(1, "int8").broadcast_to((3,))[0] = 1


def test_python_numbers():
    assert bool(full((), True))
    assert not zeros((1, 1), "float8_e5m2")
    assert int(full(1, 7, "int16")) == 7
    assert float(full((), 0.5, "bfloat16")) == 0.5
    assert complex(full((), 1j)) == 1j
    assert [10, 20, 30][full((), 1, "uint8")] == 20
    for tensor in (zeros(1, "int8"), zeros((), "float32"), zeros((), "bool")):
        with pytest.raises(TypeError, match="index"):
            [0][tensor]


@pytest.mark.parametrize("convert", [bool, int, float, complex, Tensor.item])
def test_only_one_element_makes_a_number(convert):
    with pytest.raises(ArgumentError, match="has 2"):
        convert(zeros(2, "int8"))


def test_lanes_are_elements_to_item():
    """One element of four lanes is four numbers; the first is not the element."""
    with pytest.raises(ArgumentError, match="has 4"):
        zeros(1, "float32x4").item()


def test_length_and_iteration():
    tensor = from_buffer(bytes(range(6)), "uint8", (3, 2))
    assert len(tensor) == 3
    assert [row.tolist() for row in tensor] == [[0, 1], [2, 3], [4, 5]]
    for call in (len, iter):
        with pytest.raises(TypeError):
            call(tensor[0, 0])


def test_equal_compares_values():
    one, other = full((2, 2), 3, "int4"), full((2, 2), 3, "int4")
    assert equal(one, other)
    other[0, 0:1] = 1
    assert not equal(one, other)
    assert not equal(one, full((2, 2), 3, "uint4"))
    assert not equal(one, full((1, 2, 2), 3, "int4"))
    nan = full((), float("nan"))
    assert not equal(nan, nan)


def test_eq_with_what_has_values_is_refused():
    """One bool by identity would look like an answer about values."""
    one, other = full((2,), 1), full((2,), 1)
    for x in (other, one[0], 1.0, True, np.ones(2), np.float32(1), [1, 1], (1, 1)):
        for compare in (operator.eq, operator.ne):
            if not isinstance(x, (np.ndarray, np.generic)):
                with pytest.raises(UnsupportedTypeError, match=r"Tensor == "):
                    compare(x, one)
            with pytest.raises(UnsupportedTypeError, match=r"dlbridge\.equal\(a, b\)"):
                compare(one, x)
    assert (np.ones(2) == one).all()  # NumPy's own comparison reads the values


def test_tensors_are_keys_by_identity():
    one, other = full((2,), 1), full((2,), 1)
    assert len({one, other, one}) == 2
    assert one == one
    held = weakref.WeakKeyDictionary({one: "a", other: "b"})
    assert (held[one], held[other]) == ("a", "b")
    for x in (None, "text", object(), int):
        assert one != x


# ---- typed views ----


def test_typed_views_check_rank_dtype_layout_and_alignment():
    tensor = zeros((2, 8), "float32")
    assert tensor.matrix("float32", alignment=64) is tensor
    assert tensor[0].vec().data_ptr == tensor.data_ptr
    assert tensor.tensor(2) is tensor
    with pytest.raises(ArgumentError, match="2 dimensions"):
        tensor.vec()
    with pytest.raises(ArgumentError, match="float64 is required, got float32"):
        tensor.matrix("float64")
    with pytest.raises(ViewError, match="contiguous"):
        tensor.T.matrix()
    with pytest.raises(ExchangeError, match="multiple of 64") as caught:
        tensor[1].vec(alignment=64)
    assert caught.value.reason == "alignment"
    odd = zeros(9, "uint8")[1:]._view((2,), (1,), 0, (2, 32, 1))
    with pytest.raises(ExchangeError, match="multiple of 4"):
        odd.vec()


# ---- copies ----


@given(st.permutations(range(3)), st.sampled_from("CFK"), st.sampled_from(["int16", "int4"]))
def test_copies_have_the_order_asked_for(axes, order, name):
    tensor = full((2, 3, 4), 1, name)
    tensor[1] = 2
    tensor = tensor.transpose(axes)
    other = tensor.copy(order)
    assert equal(other, tensor)
    assert not other.readonly
    assert other.data_ptr % 64 == 0
    assert type(other) is Tensor
    compact = {"C": other, "F": other.T, "K": other.transpose(np.argsort(axes).tolist())}
    assert compact[order].is_contiguous


def test_a_copy_that_finds_no_memory_names_the_size():
    """A broadcast view can be larger than any memory; a packed one is unpacked to be read."""
    view = zeros((1, 8), "int8").broadcast_to((2**50, 8))
    for order in "CFK":
        with pytest.raises(AllocationError, match=f"{2**53} bytes"):
            view.copy(order)
    with pytest.raises(AllocationError, match=f"{2**53} bytes"):
        empty_like(view)
    with pytest.raises(AllocationError, match=f"{2**53} bytes"):
        zeros((1, 8), "int4").broadcast_to((2**50, 8)).tolist()


def test_copy_refuses_an_unknown_order():
    with pytest.raises(ArgumentError, match="C, F, K"):
        zeros(1, "int8").copy("A")


def test_contiguous_copies_only_if_it_must():
    tensor = full((2, 3), 1.0)
    assert tensor.contiguous() is tensor
    assert tensor.T.contiguous().is_contiguous
    assert tensor.T.contiguous().data_ptr != tensor.data_ptr


def test_to_the_same_device_is_the_tensor_itself():
    tensor = full((2, 3), 1.0)
    assert tensor.to("cpu") is tensor
    assert tensor.to(tensor.device, copy=True).data_ptr != tensor.data_ptr
    for call in (lambda: tensor.to("rocm:0"), lambda: on_rocm().to("cpu")):
        with pytest.raises(ExchangeError) as caught:
            call()
        assert caught.value.reason == "device"


def test_shallow_copies_share_and_deep_copies_do_not():
    tensor = named(full((2, 3), 1.0), ["a"])
    same, other = copy.copy(tensor), copy.deepcopy([tensor, tensor])
    assert type(same) is type(other[0]) is Named
    assert same is not tensor
    assert same.data_ptr == tensor.data_ptr
    assert same.name is tensor.name
    assert other[0] is other[1]
    assert other[0].data_ptr != tensor.data_ptr
    assert equal(other[0], tensor)
    assert other[0].name == ["a"]
    assert other[0].name is not tensor.name


def test_views_and_copies_of_a_subclass_have_its_class():
    tensor = named(full((2, 3), 1.0), "a")
    for view in (tensor[0], tensor.T, tensor.reshape(6), tensor.view("int64"), tensor.copy()):
        assert type(view) is Named
    padded = native.take_object(tensor, tensor.data_ptr, (8,), None, (0, 4, 1), (1, 0), 4)
    assert type(padded._view((8,), (1,), cls=Named).view("uint8")) is Named
    assert weakref.ref(tensor)() is tensor


def test_a_class_is_not_called():
    with pytest.raises(TypeError):
        Tensor()
    with pytest.raises(TypeError):
        object.__new__(Tensor)


# ---- padded sub-byte elements ----


def test_padded_elements_are_read_written_and_viewed():
    codes = np.array([1, 15, 7, 8], np.uint8)
    address = codes.__array_interface__["data"][0]
    tensor = native.take_object(codes, address, (4,), None, (0, 4, 1), (1, 0), 4)
    assert tensor.tolist() == [1, -1, 7, -8]
    assert tensor[1:].tolist() == [-1, 7, -8]
    tensor[1] = 3
    assert codes.tolist() == [1, 3, 7, 8]
    plain = tensor.view("uint8")
    assert plain.tolist() == [1, 3, 7, 8]
    assert plain.flags == 0
    packed = tensor.copy()
    assert packed.nbytes == 2
    assert bytes(packed.view("uint8")) == b"\x31\x87"


def padded(dtype=(0, 4, 1), shape=(4,)) -> Tensor:
    codes = np.array([1, 15, 7, 8], np.uint8)
    return native.take_object(
        codes, codes.__array_interface__["data"][0], shape, None, dtype, (1, 0), 4
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int4", [1, -1, 7, -8]),
        ("uint4", [1, 15, 7, 8]),
        ("float4_e2m1fn", [0.5, -6.0, 6.0, -0.0]),
    ],
)
def test_padded_elements_of_one_width_stay_padded(name, expected):
    """Only the name of the dtype changes; the padding must not turn into elements."""
    tensor = padded()
    view = tensor.view(name)
    assert view.tolist() == expected
    assert (view.shape, view.flags, view.data_ptr) == ((4,), 4, tensor.data_ptr)
    assert view[1:].view("int4").tolist() == [-1, 7, -8]


@pytest.mark.parametrize("name", ["int2", "uint2", "bool1", "float6_e2m3fn", "uint1"])
def test_padding_is_never_read_as_elements(name):
    """Bits between padded elements mean nothing to a dtype that packs."""
    with pytest.raises(ViewError, match="padding"):
        padded().view(name)


def test_padded_elements_are_whole_bytes_to_other_types():
    """A dtype that fills its bytes is not padded: the mark goes."""
    for name, shape in (("uint8", (4,)), ("int16", (2,)), ("float32", (1,)), ("uint8x2", (2,))):
        view = padded().view(name)
        assert (view.shape, view.flags) == (shape, 0)
    assert bytes(padded().view("uint8")) == bytes([1, 15, 7, 8])


def test_padded_lanes_take_a_byte_each():
    """Two lanes of four bits are two bytes when padded."""
    view = padded((0, 4, 2), (2,)).view("int4")
    assert (view.shape, view.flags, view.tolist()) == ((4,), 4, [1, -1, 7, -8])
    assert padded().view("int4x2").shape == (2,)


def test_a_mark_of_padding_on_whole_bytes_means_nothing():
    """Elements of eight bits have no padding, so that a narrower view packs."""
    view = padded((1, 8, 1)).view("uint4")
    assert (view.shape, view.flags, view.nbytes) == ((8,), 0, 4)


# ---- protocols out ----


def test_numpy_shares_what_it_can():
    tensor = full((2, 3), 1.0, "float32")
    array = np.asarray(tensor)
    array[0, 0] = 5
    assert tensor[0, 0].item() == 5
    assert tensor.__array__(copy=False).__array_interface__["data"][0] == tensor.data_ptr
    assert tensor.__array__(copy=True).__array_interface__["data"][0] != tensor.data_ptr
    assert tensor.__array__("f8").dtype == np.float64
    assert tensor.__array__("f8", copy=True).dtype == np.float64
    with pytest.raises(ValueError, match="needs a copy"):
        tensor.__array__("f8", copy=False)
    assert np.asarray(full(2, 1, "bfloat16")).dtype == ml_dtypes.bfloat16
    with pytest.raises(ViewError):
        full(2, 1, "int4").__array__(copy=False)


def test_numpy_arrays_keep_the_memory_and_the_mark():
    array = np.asarray(from_buffer(b"abcd"))
    gc.collect()
    assert array.tobytes() == b"abcd"
    assert not array.flags.writeable
    assert not np.asarray(full(4, 1, "bfloat16").broadcast_to((2, 4))).flags.writeable


def test_numpy_has_no_more_than_64_dimensions():
    tensor = zeros((1,) * 65, "int8")
    with pytest.raises(ExchangeError) as caught:
        tensor.tolist()
    assert caught.value.reason == "ndim"
    assert "<not read>" in repr(tensor)


def test_lanes_are_a_last_dimension():
    tensor = from_buffer(np.arange(8, dtype="f4"), "float32x4")
    assert tensor.shape == (2,)
    assert np.asarray(tensor).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tensor.view("float32").tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_dltensor_is_the_struct_and_keeps_the_tensor():
    tensor = zeros((2, 3), "bfloat16")
    pointer, address = tensor.dltensor, tensor.data_ptr
    reference = weakref.ref(tensor)
    assert ffi.typeof(pointer) is ffi.typeof("DLTensor *")
    del tensor
    gc.collect()
    assert reference() is not None
    assert int(ffi.cast("uintptr_t", pointer.data)) == address
    assert [pointer.shape[i] for i in range(pointer.ndim)] == [2, 3]
    assert (pointer.dtype.code, pointer.dtype.bits, pointer.dtype.lanes) == (4, 16, 1)
    del pointer
    gc.collect()
    assert reference() is None


def test_only_cuda_tensors_have_the_cuda_array_interface():
    assert not hasattr(zeros(1, "float32"), "__cuda_array_interface__")
    assert not hasattr(on_cuda(dtype=(4, 16, 1)), "__cuda_array_interface__")
    assert on_cuda().__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (0xDEAD000, False),
        "version": 3,
        "strides": None,
        "stream": 1,
    }
    strided = on_cuda(strides=(1, 2), flags=1).__cuda_array_interface__
    assert strided["strides"] == (4, 8)
    assert strided["data"] == (0xDEAD000, True)


@pytest.mark.parametrize(
    "call",
    [
        *(np.asarray, Tensor.tolist, Tensor.copy, bytes, copy.deepcopy),
        lambda tensor: tensor.__setitem__(0, 1.0),
        lambda tensor: float(tensor[0, 0]),
    ],
)
def test_memory_of_another_device_is_not_touched(call):
    with pytest.raises(ExchangeError) as caught:
        call(on_rocm())
    assert caught.value.reason == "device"


@pytest.mark.parametrize("call", [np.asarray, Tensor.tolist, bytes, Tensor.item])
def test_values_of_cuda_memory_are_read_after_an_explicit_copy(call):
    """Whoever reads waits for the device; that is to be seen in the program."""
    with pytest.raises(ExchangeError, match=r'\.to\("cpu"\)') as caught:
        call(on_cuda((1,)))
    assert caught.value.reason == "device"


def test_views_of_another_device_are_fine():
    view = on_cuda()[1:, ::2].T
    assert view.data_ptr == 0xDEAD000 + 12
    assert view.shape == (2, 1)
    assert repr(view) == "Tensor(<not read>, shape=(2, 1), dtype=float32, device=cuda:0)"


def test_pinned_host_memory_is_read():
    memory = np.arange(3.0)
    address = memory.__array_interface__["data"][0]
    tensor = native.take_object(memory, address, (3,), None, (2, 64, 1), (3, 0))
    tensor[0] = 7
    assert tensor.tolist() == memory.tolist() == [7, 1, 2]


# ---- text ----


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (lambda: full((), 1.5, "float32"), "Tensor(1.5, shape=(), dtype=float32, device=cpu)"),
        (lambda: zeros((0, 3), "int8"), "Tensor([], shape=(0, 3), dtype=int8, device=cpu)"),
        (lambda: full(2, 0.5, "float8_e4m3fn"),
         "Tensor([0.5, 0.5], shape=(2,), dtype=float8_e4m3fn, device=cpu)"),
        (lambda: full(2, -1, "int4"), "Tensor([-1, -1], shape=(2,), dtype=int4, device=cpu)"),
        (lambda: full(1, 1j, "complex64"),
         "Tensor([0.+1.j], shape=(1,), dtype=complex64, device=cpu)"),
        (lambda: from_buffer(b"a"),
         "Tensor([97], shape=(1,), dtype=uint8, device=cpu, readonly=True)"),
        (lambda: named(zeros(1, "bool"), "a"),
         "Named([False], shape=(1,), dtype=bool, device=cpu)"),
        (lambda: zeros(1, "handle"), "Tensor([0], shape=(1,), dtype=handle, device=cpu)"),
    ],
)  # fmt: skip
def test_small_tensors_show_everything(tensor, expected):
    assert repr(tensor()) == expected


def test_half_complex_numbers_print_as_complex_numbers():
    need("complex32")
    assert repr(full(1, 1j, "complex32")).startswith("Tensor([0.+1.j], shape=(1,)")


@pytest.mark.parametrize("name", ["int16", "float32", *PACKED])
def test_big_tensors_show_what_numpy_shows(name):
    tensor = zeros((30, 9, 16), name)
    tensor[..., 0] = 1
    tensor[-1, ::-2] = 1
    array = np.asarray(tensor)
    wider = array.astype("i8" if tensor.dtype.is_integer else "f4")
    expected = np.array2string(wider, separator=", ", prefix="Tensor(", threshold=1000)
    assert repr(tensor).startswith(f"Tensor({expected}, shape=(30, 9, 16)")
    reversed_text = np.array2string(wider[::-1, ::-1, ::-2], separator=", ", prefix="Tensor(")
    if name in ("int16", "float32"):
        assert repr(tensor[::-1, ::-1, ::-2]).startswith(f"Tensor({reversed_text}")


def test_the_text_of_a_huge_tensor_copies_next_to_nothing():
    before = native.allocator_statistics()["total"]
    tensor = zeros((1 << 16, 1 << 17), "float6_e2m3fn")
    assert repr(tensor).count("...") == 7
    assert native.allocator_statistics()["total"] == before + 1
    assert "too many dimensions" in repr(empty((2,) * 20, "int8"))


# ---- the native copy, against bits picked one by one ----


LAYOUTS = st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 9)), max_size=4)
MEMORIES = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).integers(0, 64, 2048, np.uint8)  # without NaN
)
ANY_WIDTH = [*PACKED, "bool1", "int8", "int16", "float32", "complex128", "int4x3"]


def in_the_middle(memory, dimensions, name) -> Tensor:
    """Return a Tensor of any layout around the middle of 2048 bytes."""
    shape = [extent for extent, _ in dimensions]
    strides = [stride for _, stride in dimensions]
    middle = memory.__array_interface__["data"][0] + 1024
    return native.take_object(memory, middle, shape, strides, DType(name).triple, (1, 0))


@given(LAYOUTS, MEMORIES, st.sampled_from([name for name in ANY_WIDTH if name != "complex128"]))
def test_any_layout_is_read_element_by_element(dimensions, memory, name):
    tensor = in_the_middle(memory, dimensions, name)
    picked = values.pick(tensor, [list(range(extent)) for extent in tensor.shape])
    assert np.array_equal(values.as_array(tensor.copy()), picked)
    assert np.array_equal(values.as_array(tensor), picked)


@given(LAYOUTS, MEMORIES, MEMORIES, st.sampled_from(ANY_WIDTH))
def test_any_layout_is_written_and_nothing_beside_it(dimensions, memory, other, name):
    tensor = in_the_middle(memory, dimensions, name)
    width = tensor.dtype.itembits
    grid = np.ix_(*(range(extent) for extent in tensor.shape))
    places = sum(i * stride for i, stride in zip(grid, tensor.strides, strict=True))
    places = np.asarray(places).ravel()
    if abs(places).max() * width > 1000 * 8 or len(np.unique(places)) < len(places):
        return
    before = np.unpackbits(memory, bitorder="little")
    source = in_the_middle(other, [], name)._view(tensor.shape, row_major(tensor.shape))
    if source.nbytes > 1000:
        return
    native.copy_into(tensor, source)
    bits = np.unpackbits(other[1024:], bitorder="little")[: len(places) * width]
    expected = before.copy()
    expected[1024 * 8 + places[:, None] * width + np.arange(width)] = bits.reshape(-1, width)
    assert np.array_equal(np.unpackbits(memory, bitorder="little"), expected)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_equal_takes_whatever_from_dlpack_takes(framework):
    pytest.importorskip(framework)
    own = from_buffer(np.arange(6, dtype="f4")).reshape(2, 3)
    other = native.convert(own, framework, copy=True)
    assert equal(own, other)
    assert equal(other, own)
    assert equal(other, other)
    own[0, 0] = 5
    assert not equal(own, other)
    assert not equal(other, np.zeros(3, "f4"))
    with pytest.raises(UnsupportedTypeError, match="list"):
        equal(other, [1, 2])


@st.composite
def pairs_of_tensors(draw):
    """Tensors that often have equal values, of any layout, alignment and dtype."""
    names = ("float32", "float64", "complex64", "int8", "uint32", "int64", "bool", "float16")
    shape = draw(st.sampled_from([(), (3,), (2, 3), (0, 2), (1500,), (40, 40)]))
    made = []
    for _ in range(2):
        dtype = np.dtype(draw(st.sampled_from(names[:2] if draw(st.booleans()) else names)))
        raw = np.zeros(int(np.prod(shape)) * dtype.itemsize + 8, "u1")
        start = draw(st.sampled_from([0, 0, 1]))
        array = raw[start : raw.size - 8 + start].view(dtype).reshape(shape)
        for place in draw(st.lists(st.integers(0, max(array.size - 1, 0)), max_size=2)):
            if array.size:
                array.flat[place] = draw(st.sampled_from([0, 1, np.nan, -0.0])) if (
                    dtype.kind in "fc"
                ) else draw(st.integers(0, 1))  # fmt: skip
        array = array[::-1] if shape and draw(st.booleans()) else array
        made.append(draw(st.sampled_from([from_buffer, lambda x: x]))(array))
    return made[0], made[1]


@given(pairs_of_tensors())
def test_tensors_are_compared_in_c_as_in_python(pair):
    one, other = pair
    for a, b in ((one, other), (one, one), (other, one)):
        result = equal(a, b)
        assert type(result) is bool
        assert result == equal(a=a, b=b)  # by name it goes by Python


def test_the_last_element_of_large_tensors_is_compared():
    for dtype in ("uint8", "int64", "float32", "float64", "complex128"):
        for size in (1025, 100_001):
            one, other = np.ones(size, dtype), np.ones(size, dtype)
            assert equal(one, other)
            other[-1] = 2
            assert not equal(one, other)


def test_a_wrong_call_of_equal_names_it():
    with pytest.raises(TypeError, match=r"^equal\(\)"):
        equal(np.ones(3))


def test_a_number_is_in_a_tensor_that_has_its_value():
    t = from_buffer(np.array([[1.0, 2.5], [np.nan, 4.0]]))
    for number in (1.0, 1, True, np.float32(2.5), np.array(4), from_buffer(np.array(4.0))):
        assert number in t
    for number in (3.0, float("nan"), 2**70, 1j):
        assert number not in t
    assert 1.0 not in t[:0]
    assert 2.5 in t[0, 1]
    assert 3 in full((2,), 3, "int4")
    assert 0.5 in full((2,), 0.5, "bfloat16")


@pytest.mark.parametrize("value", ["a", None, [1.0], np.ones(2)])
def test_only_numbers_are_looked_for(value):
    with pytest.raises(UnsupportedTypeError, match=r"dlbridge\.equal"):
        value in zeros((2,), "float32")  # noqa: B015


def test_items_of_a_subclass_are_assigned_whatever_its_indexing_returns():
    class Rows(Tensor):
        def __getitem__(self, key):
            return f"row {key}"

    plain = zeros((2, 2), "float32")
    rows = plain._view(plain.shape, plain.strides, cls=Rows)
    rows[1] = 3
    assert plain.tolist() == [[0, 0], [3, 3]]
    assert rows[1] == "row 1"


def test_numpy_finds_the_dtype_of_a_result():
    t = zeros((2,), "float32")
    assert t.__numpy_dtype__ == np.dtype("f4")
    assert not hasattr(zeros((2,), "float32x4"), "__numpy_dtype__")
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        assert np.result_type(t, np.float64) == np.dtype("f8")
        assert np.result_type(t, 1.0) == np.dtype("f4")


def test_jax_numpy_takes_a_tensor():
    jnp = pytest.importorskip("jax").numpy
    t = from_buffer(np.arange(3, dtype="f4"))
    shared, copied = jnp.asarray(t), jnp.array(t)
    t[0] = 7
    assert copied.tolist() == [0, 1, 2]
    assert shared.dtype == jnp.float32
    assert (shared + 1).shape == (3,)


# ---- the array API -------------------------------------------------------------------------------


def test_a_tensor_is_no_array_of_a_namespace_and_can_be_made_one():
    compat = pytest.importorskip("array_api_compat")
    tensor = ones((2, 3), "float32")
    assert not hasattr(tensor, "__array_namespace__")
    assert not compat.is_array_api_obj(tensor)
    with pytest.raises(TypeError, match="Tensor"):
        compat.array_namespace(tensor)
    array = tensor.numpy()
    assert compat.array_namespace(array).sum(array) == 6
    assert array.ctypes.data == tensor.data_ptr


def test_to_device_is_that_of_the_array_api():
    tensor = ones((2, 3), "float32")
    assert tensor.to_device(tensor.device) is tensor
    assert tensor.to_device("cpu", stream=None) is tensor
    with pytest.raises(ExchangeError, match="stream must be None") as caught:
        tensor.to_device("cpu", stream=1)
    assert caught.value.reason == "stream"
    with pytest.raises(TypeError):
        tensor.to_device("cpu", 1)
    with pytest.raises(ExchangeError) as caught:
        on_rocm().to_device("cpu")
    assert caught.value.reason == "device"
    with pytest.raises(ArgumentError, match="nowhere"):
        tensor.to_device("nowhere")


# ---- the array interface -----------------------------------------------------------------------


class OnlyTheInterface:
    """A consumer's view of a producer that has nothing else."""

    def __init__(self, tensor):
        self.kept = tensor
        self.__array_interface__ = tensor.__array_interface__


@pytest.mark.parametrize("name", ["int8", "uint64", "float16", "float64", "complex64", "bool"])
def test_the_array_interface_names_the_same_memory(name):
    tensor = zeros((3, 4), name)[::-1, ::2]
    array = np.asarray(OnlyTheInterface(tensor))
    assert (array.shape, array.dtype.name) == ((3, 2), name)
    assert array.strides == tuple(n * tensor.itemsize for n in tensor.strides)
    array[0, 1] = 1
    assert tensor[0, 1].item() == 1
    assert not np.asarray(OnlyTheInterface(zeros((2,), name).broadcast_to((3, 2)))).flags.writeable
    assert np.asarray(OnlyTheInterface(zeros((0, 2), name))).shape == (0, 2)


class OnlyTheStruct:
    """The same, in C."""

    def __init__(self, tensor):
        self.kept = tensor

    @property
    def __array_struct__(self):
        return self.kept.__array_struct__


class PyArrayInterface(ctypes.Structure):
    """The struct, field by field as NumPy documents it."""

    _fields_ = [
        ("two", ctypes.c_int),
        ("nd", ctypes.c_int),
        ("typekind", ctypes.c_char),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("data", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
    ]


def read_struct(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return PyArrayInterface.from_address(get(capsule, None))


STRUCT_DTYPES = ["bool", "float16", "float32", "float64", "complex64", "complex128"]
STRUCT_DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", STRUCT_DTYPES)
def test_the_array_struct_names_the_same_memory(name):
    whole = zeros((3, 4), name)
    for tensor in (whole, whole.T, whole[::-1, ::2], whole[1], whole[2, 3], whole[:0], whole[None]):
        capsule, expected = tensor.__array_struct__, tensor.numpy()
        struct = read_struct(capsule)
        assert (struct.two, struct.descr) == (2, None)
        array = np.asarray(OnlyTheStruct(tensor))
        assert (array.shape, array.dtype) == (expected.shape, np.dtype(name))
        if array.size:
            assert (array.strides, array.ctypes.data) == (expected.strides, expected.ctypes.data)
            # contiguous both ways, aligned, native byte order, writeable: as NumPy's own
            own = expected.__array_struct__
            assert struct.flags == read_struct(own).flags
        assert not np.asarray(OnlyTheStruct(whole[1].broadcast_to((2, 4)))).flags.writeable
    np.asarray(OnlyTheStruct(whole))[1, 2] = 1
    assert whole[1, 2].item() == 1


def test_the_array_struct_keeps_the_memory():
    before = native.live()
    capsule = ones((1000,), "float64").__array_struct__
    gc.collect()
    struct = read_struct(capsule)
    assert (struct.nd, struct.shape[0], struct.strides[0], struct.typekind) == (1, 1000, 8, b"f")
    assert (ctypes.c_double * 1000).from_address(struct.data)[999] == 1
    assert native.live() != before
    del capsule
    assert native.live() == before
    array = np.asarray(OnlyTheStruct(ones((1000,), "float64")))
    gc.collect()
    assert array.sum() == 1000
    del array
    memory = np.zeros(17, "uint8")
    odd = native.take_object(memory, memory.ctypes.data + 1, (4,), None, (2, 32, 1), (1, 0))
    capsule = odd.__array_struct__
    assert not read_struct(capsule).flags & 0x100  # NPY_ARRAY_ALIGNED
    assert not np.asarray(OnlyTheStruct(odd)).flags.aligned


@pytest.mark.parametrize(
    "tensor",
    [
        zeros((2,), "bfloat16"),
        zeros((2,), "float8_e5m2"),
        zeros((8,), "int4"),
        zeros((2,), "float32x2"),
        native.take_object((), 64, (2,), None, (2, 32, 1), (10, 0)),
    ],
    ids=["bfloat16", "float8", "int4", "lanes", "rocm"],
)
def test_memory_that_the_array_interface_cannot_name_has_none(tensor):
    assert not hasattr(tensor, "__array_interface__")
    assert not hasattr(tensor, "__array_struct__")


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    ["x + 1", "1 + x", "x - x", "2.0 * x", "x @ x", "x / 2", "-x", "abs(x)", "x < 1", "1 < x",
     "x ** 2", "x & x", "x // 2", "x % 2", "~x", "x << 1"],
)  # fmt: skip
def test_arithmetic_is_refused_with_advice(expression):
    with pytest.raises(dlbridge.UnsupportedTypeError, match=r"computes nothing.*to_numpy\(x\)"):
        eval(expression, {"x": dlbridge.ones(2)})


def test_arithmetic_with_arrays_is_theirs():
    x, array = dlbridge.ones(2), np.arange(2.0)
    assert (x + array).tolist() == (array + x).tolist() == [1, 2]
    assert np.add(x, 1).tolist() == [2, 2]
    assert (x < array).tolist() == [False, False]
    with pytest.raises(TypeError, match="unsupported operand"):
        x + object()
