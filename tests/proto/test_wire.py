"""Varints: the loop and the vectors, against each other and against protobuf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge.errors import WireError
from dlbridge.proto import TensorProto, wire  # type: ignore[attr-defined]
from dlbridge.proto.wire import fields, flatten, read_varint, signed, varint


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_vectors_of_varints_are_single_ones_in_a_row(values: list[int]) -> None:
    data = b"".join(map(varint, values))
    assert wire.encode_varints(np.array(values, np.uint64)) == data
    assert wire.decode_varints(data).tolist() == values
    at, read = 0, []
    while at < len(data):
        value, at = read_varint(data, at, len(data))
        read.append(value)
    assert read == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_negative_numbers_are_written_as_protobuf_writes_them(values: list[int]) -> None:
    data = TensorProto(int64_val=values).SerializeToString()
    assert (
        wire.encode_varints(np.array(values, np.int64))
        == data[-len(wire.encode_varints(np.array(values))) :]
    )
    assert (
        wire.decode_varints(wire.encode_varints(np.array(values))).view(np.int64).tolist() == values
    )
    assert [signed(read_varint(varint(value), 0, 10)[0]) for value in values] == values


def test_long_runs_are_encoded_in_blocks() -> None:
    values = np.arange(200_000, dtype=np.uint32)
    assert wire.decode_varints(wire.encode_varints(values)).tolist() == list(range(200_000))


def test_fields_are_found_with_their_ranges() -> None:
    data = TensorProto(dtype=3, tensor_content=b"abc", float_val=[1]).SerializeToString()
    found = list(fields(data, 0, len(data)))
    assert [tag >> 3 for tag, _, _ in found] == [1, 4, 5]
    assert found[0][1] == 3
    assert data[found[1][1] : found[1][2]] == b"abc"


def test_a_varint_beyond_the_message_is_refused() -> None:
    with pytest.raises(WireError, match="cut short"):
        read_varint(b"\x80\x01", 0, 1)


def test_buffers_are_flattened_without_a_copy() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.shares_memory(np.frombuffer(flatten(array, "test"), np.uint8), array)
