"""Views against NumPy: same values, same address, inside the memory, never a copy."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError, ViewError
from dlbridge.shape import row_major
from dlbridge.tensor import views
from dlbridge.tensor.memory import from_buffer, zeros
from dlbridge.tensor.tensor import Tensor

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw):
    """Return an array of distinct values and the array that owns its memory."""
    base = np.arange(math.prod(shape := draw(SHAPES)), dtype="i8").reshape(shape)
    array = base
    for _ in range(draw(st.integers(0, 2))):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
        array = array[draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))]
        array = np.asarray(array) if isinstance(array, np.ndarray) else base
    assume(array.ndim <= 8)
    return array, base


def tensor_of(array) -> Tensor:
    tensor = native.take(array)
    assert isinstance(tensor, Tensor)
    return tensor


def assert_same_view(tensor, array, base):
    """Check values, shape, address, strides and bounds of a view."""
    assert tensor.shape == array.shape
    assert np.array_equal(np.asarray(tensor), array)
    if not array.size:
        return
    start = base.__array_interface__["data"][0]
    assert tensor.data_ptr == array.__array_interface__["data"][0]
    for extent, ours, theirs in zip(array.shape, tensor.strides, array.strides, strict=True):
        assert extent == 1 or ours * 8 == theirs
    low, high = views.reach(tensor.shape, tensor.strides)
    assert start <= tensor.data_ptr + low * 8
    assert tensor.data_ptr + high * 8 + 8 <= start + base.nbytes


@given(arrays(), st.data())
def test_indexing_is_numpys(pair, data):
    array, base = pair
    key = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))
    expected = array[key]
    if not isinstance(expected, np.ndarray):  # NumPy gives a scalar where we give a view
        expected = array[(*(key if isinstance(key, tuple) else (key,)), ...)]
    assert_same_view(tensor_of(array)[key], expected, base)


@given(arrays(), st.data())
def test_transpose_is_numpys(pair, data):
    array, base = pair
    axes = data.draw(st.permutations(range(array.ndim)))
    assert_same_view(tensor_of(array).transpose(axes), array.transpose(axes), base)
    assert_same_view(tensor_of(array).T, array.T, base)
    if array.ndim >= 2:
        assert_same_view(tensor_of(array).mT, np.swapaxes(array, -1, -2), base)


@st.composite
def other_shapes(draw, size):
    """Return a shape of `size` elements, with some dimensions of one and perhaps a -1."""
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
        if len(shape) == 5:
            break
    shape = [*shape, size]
    if draw(st.booleans()) and 0 not in shape:
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return tuple(shape)


@given(arrays(), st.data())
def test_reshape_is_a_view_exactly_when_numpys_is(pair, data):
    array, base = pair
    shape = data.draw(other_shapes(array.size))
    expected = array.reshape(shape)
    if array.size and not np.shares_memory(expected, array):
        with pytest.raises(ViewError, match="contiguous") as caught:
            tensor_of(array).reshape(shape)
        assert caught.value.reason == "copy_required"
    else:
        assert_same_view(tensor_of(array).reshape(shape), expected, base)


@given(arrays(), st.data())
def test_squeeze_and_expand_dims_are_numpys(pair, data):
    array, base = pair
    assert_same_view(tensor_of(array).squeeze(), array.squeeze(), base)
    axis = data.draw(st.integers(-array.ndim - 1, array.ndim))
    wider = np.expand_dims(array, axis)
    assert_same_view(tensor_of(array).expand_dims(axis), wider, base)
    assert_same_view(tensor_of(wider).squeeze(axis), array, base)


@given(arrays(), st.data())
def test_broadcast_is_numpys_and_read_only(pair, data):
    array, base = pair
    shape = data.draw(hnp.broadcastable_shapes(array.shape, max_dims=5, max_side=3))
    try:
        expected = np.broadcast_to(array, shape)
    except ValueError:
        with pytest.raises(ArgumentError, match="does not broadcast"):
            tensor_of(array).broadcast_to(shape)
        return
    view = tensor_of(array).broadcast_to(shape)
    assert view.readonly
    assert_same_view(view, expected, base)


@given(arrays(), st.sampled_from(["i1", "i2", "f4", "f8", "c16"]))
def test_view_of_another_dtype_is_numpys(pair, name):
    array, _ = pair
    try:
        expected = array.view(name)
    except ValueError:
        with pytest.raises((ViewError, ArgumentError)):
            tensor_of(array).view(np.dtype(name))
        return
    view = tensor_of(array).view(np.dtype(name))
    assert view.shape == expected.shape
    assert np.asarray(view).tobytes() == expected.tobytes()
    assert not array.size or view.data_ptr == expected.__array_interface__["data"][0]


@given(SHAPES, st.data())
def test_a_layout_never_leaves_the_memory(shape, data):
    """The arithmetic alone, over slices of any bounds and steps."""
    size = math.prod(shape)
    key = tuple(data.draw(st.slices(extent)) for extent in shape)
    layout = views.index(shape, row_major(shape), key)
    if 0 not in layout.shape:
        low, high = views.reach(layout.shape, layout.strides)
        assert 0 <= layout.offset + low <= layout.offset + high < size


@pytest.mark.parametrize("step", [2**62, -(2**62), 2**70, -(2**70)])
def test_a_huge_step_takes_one_element(step):
    tensor = from_buffer(bytes(range(5)), "uint8")
    assert tensor[::step].tolist() == list(range(5))[::step]


class Three:
    def __index__(self):
        return 3


def test_any_integer_indexes():
    tensor = from_buffer(bytes(range(5)), "uint8")
    assert tensor[Three()].item() == 3
    assert tensor[np.int8(-1)].item() == 4
    assert tensor[tensor[2]].item() == 2
    assert tensor[Three() :].tolist() == [3, 4]


@pytest.mark.parametrize("key", [True, np.True_, [0, 1], np.array([0]), 1.0, "a", slice("a", None)])
def test_indices_that_copy_are_refused(key):
    with pytest.raises(UnsupportedTypeError):
        zeros((2, 3), "int8")[key]


@pytest.mark.parametrize("key", [2, -3, (0, 3), (0, 0, 0), (..., ...), (0, ..., 5)])
def test_indices_out_of_range_are_index_errors(key):
    with pytest.raises(IndexError):
        zeros((2, 3), "int8")[key]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("transpose", (0, 0)),
        ("transpose", (0,)),
        ("transpose", (0, 2)),
        ("reshape", (5, 5)),
        ("reshape", (-1, -1)),
        ("reshape", (-2, -3)),
        ("reshape", (4, -1)),
        ("squeeze", (0,)),
        ("squeeze", (2,)),
        ("expand_dims", (4,)),
        ("expand_dims", ((0, 0),)),
        ("broadcast_to", ((3,),)),
        ("broadcast_to", ((2, 2),)),
        ("broadcast_to", ((-1, 2, 3),)),
    ],
)
def test_impossible_views_are_argument_errors(method, arguments):
    with pytest.raises(ArgumentError):
        getattr(zeros((2, 3), "int8"), method)(*arguments)


def test_matrix_transpose_needs_two_dimensions():
    with pytest.raises(ArgumentError, match="2 dimensions"):
        _ = zeros(3, "int8").mT


def test_a_reshape_of_nothing_to_anything_empty():
    assert zeros((0, 3), "int8").reshape(5, 0).shape == (5, 0)
    with pytest.raises(ArgumentError):
        zeros((0, 3), "int8").reshape(0, -1)


@pytest.mark.parametrize("name", ["int4", "float6_e2m3fn", "uint2", "bool1"])
def test_packed_elements_inside_a_byte_have_no_view(name):
    tensor = zeros((4, 8), name)
    assert tensor[2].shape == (8,)
    assert tensor[::-2, 0::4].shape == (2, 2)
    with pytest.raises(ExchangeError, match="whole byte") as caught:
        tensor[0, 1:]
    assert caught.value.reason == "alignment"


def test_a_view_checks_the_alignment_of_the_new_dtype():
    memory = from_buffer(bytearray(17), "uint8")
    odd = memory[1:] if memory.data_ptr % 4 == 0 else memory[:16]
    with pytest.raises(ExchangeError, match="multiple of 4") as caught:
        odd.view("float32")
    assert caught.value.reason == "alignment"
    assert odd.view("int8").shape == (16,)


def test_packed_and_wide_dtypes_view_each_other():
    tensor = from_buffer(bytearray(b"\x21\x43\x65\x87"), "uint8")
    assert tensor.view("uint4").tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tensor.view("uint4").view("uint16").tolist() == [0x4321, 0x8765]
    assert tensor.view("uint8x4").shape == (1,)
    assert tensor[:3].view("float6_e2m3fn").shape == (4,)
    with pytest.raises(ArgumentError):
        tensor.view("float6_e2m3fn")
    with pytest.raises(ArgumentError):
        tensor[0].view("uint4")


@pytest.mark.parametrize("shape", [(2**70, 2, 3), (2**62, 2, 3), (0, 2**70, 2, 3)])
def test_broadcasts_beyond_64_bits_are_refused(shape):
    """DLPack's extents and strides have 64 bits, also where there is no element."""
    with pytest.raises(ArgumentError, match="overflows 64 bits"):
        views.broadcast_to((2, 3), (3, 1), shape)


@pytest.mark.parametrize("shape", [(0, 2**70), (2**70, 0), (0, 2**62, 2**62)])
def test_empty_shapes_beyond_64_bits_are_refused(shape):
    """Their strides would not fit, although nothing is ever read."""
    with pytest.raises(ArgumentError, match="overflows 64 bits"):
        views.reshape((0, 3), (3, 1), shape)


def test_a_slice_takes_steps():
    """A step of 0 is a ValueError in Python, and so an ArgumentError here."""
    with pytest.raises(ArgumentError, match="zero"):
        views.index((4,), (1,), slice(None, None, 0))


# ---- what C does of it: exactly what the rules in Python say -------------------------------------

KEYS = st.one_of(
    st.integers(-6, 6),
    st.just(Ellipsis),
    st.none(),
    st.slices(5),
    st.builds(slice, *[st.sampled_from([None, 0, 3, -4, 2**40, -(2**70), 2**70, True])] * 3),
    st.sampled_from([True, np.int64(1), 2**70, "a", [0], 0.5]),
)


def outcome(call, tensor):
    """Return the layout that a call gives, or the class and text of its error."""
    try:
        made = call()
    except Exception as error:
        return type(error), str(error)
    if isinstance(made, views.Layout):
        return made
    offset = (made.data_ptr - tensor.data_ptr) // tensor.itemsize if made.size else 0
    return views.Layout(made.shape, made.strides, offset)


@given(arrays(), st.one_of(KEYS, st.lists(KEYS, max_size=5).map(tuple)))
def test_an_index_in_c_is_that_of_the_rules(pair, key):
    tensor = tensor_of(pair[0])
    wanted = outcome(lambda: views.index(tensor.shape, tensor.strides, key), tensor)
    assert outcome(lambda: tensor[key], tensor) == wanted


@given(arrays(), st.lists(st.integers(-2, 6), max_size=5), st.sampled_from(["", "tuple", "list"]))
def test_a_shape_in_c_is_that_of_the_rules(pair, extents, how):
    tensor = tensor_of(pair[0])
    given_as = {"": extents, "tuple": [tuple(extents)], "list": [list(extents)]}[how]
    wanted = outcome(lambda: views.reshape(tensor.shape, tensor.strides, extents), tensor)
    assert outcome(lambda: tensor.reshape(*given_as), tensor) == wanted


@pytest.mark.parametrize("shape", [(2**62, 4), (2**63, 1), (2**40, 2**40), (-1, 2**64)])
def test_shapes_beyond_64_bits_are_refused(shape):
    with pytest.raises((ArgumentError, OverflowError)):
        zeros((4,), "float32").reshape(shape)


def test_packed_elements_are_indexed_at_whole_bytes():
    packed = zeros((8,), "int4")
    assert packed[2:4].data_ptr == packed.data_ptr + 1
    with pytest.raises(ExchangeError, match="inside a byte"):
        packed[1:]


def test_the_views_of_a_subclass_have_its_class():
    class Named(Tensor):
        pass

    named = native.take(np.zeros((2, 3)))._view((2, 3), (3, 1), cls=Named)
    assert type(named[0]) is type(named.reshape(6)) is type(named[[0].index(0)]) is Named


def test_a_view_of_the_most_dimensions_is_as_the_rules_say():
    """The limit of DLPack tensors here is 254; one more is refused, not written past."""
    tensor = zeros((1,) * 254, "float32")
    with pytest.raises(ExchangeError):
        tensor[None]
    with pytest.raises((ExchangeError, ArgumentError)):
        tensor.reshape((1,) * 255)
