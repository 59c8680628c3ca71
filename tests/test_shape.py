"""TensorShape against TensorFlow's, and the 16-byte record against its measured limits."""

from __future__ import annotations

import copy
import gc
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge import faults
from dlbridge._core import ffi, lib, native
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.shape import TensorShape, as_shape, row_major, unknown_shape

EDGES = (0, 1, 2, 65533, 65534, 65535, 65536, 2**32 - 3, 2**32 - 2, 2**32 - 1, 2**32, 2**63 - 1)
extents = st.none() | st.integers(0, 5) | st.sampled_from(EDGES) | st.integers(0, 2**63 - 1)
small_extents = st.none() | st.integers(0, 3)
dims_lists = st.none() | st.lists(extents, max_size=9)
small_lists = st.none() | st.lists(small_extents, max_size=4)


def pack(dims: Any) -> Any:
    record = ffi.gc(ffi.new("dlb_shape *"), lib.dlb_shape_release)
    rank = -1 if dims is None else len(dims)
    values = [-1 if dim is None else dim for dim in dims or []]
    reason = lib.dlb_shape_pack(record, rank, values)
    assert reason == ffi.NULL, ffi.string(reason)
    return record


def unpack(record: Any) -> Any:
    room = ffi.new("int64_t[254]")
    rank = lib.dlb_shape_unpack(record, room)
    assert rank == lib.dlb_shape_rank(record)
    return None if rank < 0 else [None if dim == -1 else dim for dim in room[0:rank]]


# ---- the record --------------------------------------------------------------------------------


def test_the_record_is_16_bytes_with_its_fields_at_the_end() -> None:
    assert ffi.sizeof("dlb_shape") == lib.DLB_SHAPE_BYTES == 16
    offsets = [ffi.offsetof("dlb_shape", name) for name in ("padding", "dtype", "ndims", "tag")]
    assert offsets == [12, 13, 14, 15]


@given(dims_lists)
def test_a_packed_shape_is_unpacked_as_it_was(dims: Any) -> None:
    assert unpack(pack(dims)) == dims
    assert unpack(pack(dims)) == (None if dims is None else TensorShape(dims).as_list())


@pytest.mark.parametrize(
    ("dims", "tag"),
    [
        ([], 0),
        ([65533] * 6, 0),
        ([None] * 6, 0),
        ([65534], 1),
        ([None, 65535, 0], 1),
        ([4294967293] * 3, 1),
        ([4294967294], 2),
        ([65534] * 4, 2),
        ([1] * 7, 2),
        ([None] * 254, 2),
        ([2**63 - 1], 2),
    ],
)
def test_the_narrowest_representation_that_holds_the_dimensions(dims: Any, tag: int) -> None:
    record = pack(dims)
    assert (record.tag, record.ndims, record.dtype, record.padding) == (tag, len(dims), 0, 0)
    if tag == 0:
        stored = [0xFFFF if dim is None else dim for dim in dims] + [0] * (6 - len(dims))
        assert bytes(ffi.buffer(record))[:12] == struct.pack("<6H", *stored)
    elif tag == 1:
        stored = [0xFFFFFFFF if dim is None else dim for dim in dims] + [0] * (3 - len(dims))
        assert bytes(ffi.buffer(record))[:12] == struct.pack("<3I", *stored)
    else:
        heap = ffi.cast("int64_t *", ffi.cast("uintptr_t *", record)[0])
        assert ffi.unpack(heap, len(dims)) == [-1 if dim is None else dim for dim in dims]


def test_a_failed_pack_leaves_a_record_of_unknown_rank() -> None:
    record = ffi.new("dlb_shape *")
    for rank, dims, reason in (
        (255, [1] * 255, b"ndim"),
        (-2, [], b"ndim"),
        (2, [1, -2], b"shape"),
    ):
        assert ffi.string(lib.dlb_shape_pack(record, rank, dims)) == reason
        assert unpack(record) is None


def test_releasing_twice_is_harmless() -> None:
    record = ffi.new("dlb_shape *")
    lib.dlb_shape_pack(record, 7, [3] * 7)
    lib.dlb_shape_release(record)
    lib.dlb_shape_release(record)
    assert unpack(record) is None


known_dims = st.lists(st.integers(0, 4) | st.sampled_from([2**16, 2**32, 2**62]), max_size=8)


@given(dims_lists, known_dims, st.data())
def test_records_and_shapes_agree_on_what_fits(dims: Any, given_dims: Any, data: Any) -> None:
    """The C core asks the record (of what is fed), Python the TensorShape."""
    if dims is not None and data.draw(st.booleans()):  # make a match likely
        given_dims = [data.draw(st.integers(0, 9)) if dim is None else dim for dim in dims]
    record = pack(dims)
    record.padding = record.dtype = 99
    if dims is not None and record.tag == 0 and len(dims) < 6:
        record.dims[10] = 77  # beyond the dimensions, where TensorFlow leaves garbage
    fits = lib.dlb_shape_fits(record, len(given_dims), given_dims)
    assert fits == TensorShape(dims).is_compatible_with(given_dims)


@pytest.mark.parametrize("dims", [None, [], [None], [3, None], [2**40, 0], [1] * 7])
def test_feeds_are_checked_against_the_record(dims: Any) -> None:
    feed = native.Feed(np.dtype("f4"), dims if dims is None else tuple(dims), lambda value: "slow")
    for shape in [(), (0,), (3,), (3, 2), (2, 3), (2**40, 0), (1,) * 7]:
        array = np.empty(shape, "f4")
        fits = TensorShape(dims).is_compatible_with(shape)
        assert (feed(array) is array) == fits


def test_the_record_of_a_shape_lives_as_long_as_the_shape() -> None:
    shape = TensorShape([1, 2, 3, 4, 5, 6, 7])
    address = int.from_bytes(shape.record[:8], "little")
    gc.collect()
    assert ffi.unpack(ffi.cast("int64_t *", address), 7) == [1, 2, 3, 4, 5, 6, 7]
    assert shape.record == shape.record


@given(st.none() | st.lists(st.none() | st.integers(0, 65533), max_size=6))
def test_records_are_read_back(dims: Any) -> None:
    assert TensorShape.from_record(TensorShape(dims).record) == TensorShape(dims)


def test_records_that_are_not_ours_to_read_are_refused() -> None:
    for record in (b"", b"\0" * 15, TensorShape([1] * 7).record, bytes(14) + b"\x07\x00"):
        with pytest.raises(ArgumentError, match="from_record"):
            TensorShape.from_record(record)


# ---- the shape ---------------------------------------------------------------------------------


def test_text() -> None:
    assert str(TensorShape([None, 3])) == "(?, 3)"
    assert str(TensorShape([3])) == "(3,)"
    assert str(TensorShape([])) == "()"
    assert str(TensorShape(None)) == "<unknown>"
    assert repr(TensorShape([None, 3])) == "TensorShape([None, 3])"
    assert repr(TensorShape()) == "TensorShape(None)"


@pytest.mark.parametrize("dims", [[-1], [2, -3], [2**63], [1] * 255])
def test_values_out_of_range(dims: Any) -> None:
    with pytest.raises(ArgumentError, match=r"must be from 0|at most 254"):
        TensorShape(dims)


@pytest.mark.parametrize("dims", ["23", 2.5, [2.5], ["2"], [[2]], [object()], b"2"])
def test_invalid_dimensions_are_refused(dims: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="must be an integer or None"):
        TensorShape(dims)
    assert TensorShape([2]) != dims


@given(dims_lists)
def test_copies_and_hashes(dims: Any) -> None:
    shape = TensorShape(dims)
    for other in (TensorShape(shape), copy.deepcopy(shape), pickle.loads(pickle.dumps(shape))):
        assert other == shape
        assert hash(other) == hash(shape)
    assert as_shape(shape) is shape
    assert shape == dims
    if dims is not None:
        assert hash(shape) == hash(tuple(dims))


def test_integers_of_other_libraries_become_int() -> None:
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    shape = TensorShape(np.array([2, 3]))
    assert [type(dim) for dim in shape] == [int, int]
    assert TensorShape(3) == [3]
    assert TensorShape([True]).dims == (1,)
    assert type(TensorShape([True])[0]) is int


def test_unknown_rank_has_no_length() -> None:
    for call in (len, list, TensorShape.as_list):
        with pytest.raises(ArgumentError, match="known rank"):
            call(TensorShape(None))


@given(small_lists, small_lists)
def test_merging_is_the_meet_of_what_is_known(one: Any, other: Any) -> None:
    a, b = TensorShape(one), TensorShape(other)
    assert a.is_compatible_with(b) == b.is_compatible_with(a)
    if not a.is_compatible_with(b):
        with pytest.raises(ArgumentError, match="are not compatible"):
            a.merge_with(b)
        return
    merged = a.merge_with(b)
    assert merged == b.merge_with(a) == merged.merge_with(a)
    assert a.most_specific_compatible_shape(merged) == a


# ---- the same as TensorFlow --------------------------------------------------------------------

BINARY = {
    "merge_with": TensorShape.merge_with,
    "concatenate": TensorShape.concatenate,
    "most_specific_compatible_shape": TensorShape.most_specific_compatible_shape,
    "is_compatible_with": TensorShape.is_compatible_with,
    "assert_is_compatible_with": TensorShape.assert_is_compatible_with,
    "assert_same_rank": TensorShape.assert_same_rank,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "rank": lambda shape: shape.rank,
    "ndims": lambda shape: shape.ndims,
    "len": len,
    "list": list,
    "bool": bool,
    "as_list": lambda shape: shape.as_list(),
    "num_elements": lambda shape: shape.num_elements(),
    "is_fully_defined": lambda shape: shape.is_fully_defined(),
    "assert_is_fully_defined": lambda shape: shape.assert_is_fully_defined(),
    "repr": repr,
    "with_rank": lambda shape: shape.with_rank(2),
    "with_rank_at_least": lambda shape: shape.with_rank_at_least(2),
    "with_rank_at_most": lambda shape: shape.with_rank_at_most(2),
    "assert_has_rank": lambda shape: shape.assert_has_rank(1),
    "first": lambda shape: shape[0],
    "last": lambda shape: shape[-1],
    "add": lambda shape: shape + [4],  # noqa: RUF005
    "radd": lambda shape: [4] + shape,  # noqa: RUF005
}


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, shapes as text, or the standard exception that it raises."""
    try:
        result = call(*arguments)
    except (ValueError, IndexError) as error:
        return ValueError if isinstance(error, ValueError) else IndexError
    return repr(result)


@pytest.fixture(scope="module")
def tf_shape(framework: Callable[[str], Any]) -> Any:
    return framework("tensorflow").TensorShape


@pytest.mark.parametrize("name", UNARY)
@given(dims=small_lists)
def test_as_tensorflow_one_shape(tf_shape: Any, name: str, dims: Any) -> None:
    call = UNARY[name]
    assert outcome(call, TensorShape(dims)) == outcome(call, tf_shape(dims))


@pytest.mark.parametrize("name", BINARY)
@given(one=small_lists, other=small_lists)
def test_as_tensorflow_two_shapes(tf_shape: Any, name: str, one: Any, other: Any) -> None:
    theirs = getattr(tf_shape, name)
    assert outcome(BINARY[name], TensorShape(one), other) == outcome(theirs, tf_shape(one), other)
    assert (TensorShape(one) == TensorShape(other)) == (tf_shape(one) == tf_shape(other))


bounds = st.none() | st.integers(-3, 4)


@given(small_lists, bounds, bounds, st.sampled_from([None, 1, 2]))
def test_as_tensorflow_slices(tf_shape: Any, dims: Any, start: Any, stop: Any, step: Any) -> None:
    key = slice(start, stop, step)
    if dims is None and step == 1:  # TensorFlow refuses a step that says nothing
        key = slice(start, stop)
    assert outcome(TensorShape.__getitem__, TensorShape(dims), key) == outcome(
        tf_shape.__getitem__, tf_shape(dims), key
    )


def test_tensorflow_shapes_and_protos_are_read(framework: Callable[[str], Any]) -> None:
    tf = framework("tensorflow")
    dimension = tf.compat.v1.Dimension
    for dims in (None, [], [2, None], [65534, 1]):
        theirs = tf.TensorShape(dims)
        assert TensorShape(theirs) == TensorShape(theirs.as_proto()) == TensorShape(dims) == theirs
    assert TensorShape([dimension(3), dimension(None)]).as_list() == [3, None]
    assert TensorShape(tf.zeros([2, 3]).shape) == (2, 3)
    assert tf.TensorShape(TensorShape([2, None])).as_list() == [2, None]


def test_unknown_shapes() -> None:
    assert unknown_shape() == TensorShape(None)
    assert unknown_shape(2) == TensorShape([None, None])
    assert TensorShape(None)[1:3] == unknown_shape(2)
    assert TensorShape(None)[3:1] == TensorShape([])


# ---- strides -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=9).map(tuple))
def test_row_major_strides_are_those_of_the_core(shape: tuple[int, ...]) -> None:
    """The rule stands in C, in Python, and in the peers that use nothing of dlbridge."""
    tensor = native.allocate(shape, (0, 8, 1))
    assert row_major(shape) == tensor.strides == faults.row_major(shape)
    assert tensor._view(shape, row_major(shape)).is_contiguous


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (2, 0, 3), (0,), (3, 1, 0, 5), (0, 0, 4)])
def test_an_extent_of_zero_counts_as_one_in_strides(
    shape: tuple[int, ...], framework: Callable[[str], Any]
) -> None:
    torch = framework("torch")
    strides = torch.empty(shape).stride()
    assert strides == torch.ones(shape).stride() == row_major(shape)
    tensor = dlbridge.zeros(shape, "float32")
    assert tensor.strides == strides
    assert dlbridge.to_torch(tensor).stride() == strides
    assert tensor.copy(order="F").strides == row_major(shape[::-1])[::-1]
