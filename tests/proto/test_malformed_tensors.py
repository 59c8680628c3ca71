"""TensorProtos that make no sense: one clear error, bounded memory, no crash."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from measuring import peak
from wire_oracle import REFUSED, Oracle, same, sample

from dlbridge.errors import ExchangeError, WireError
from dlbridge.proto import dump_tensor, load_tensor, make_ndarray, read_tensor, tensors
from dlbridge.proto.datatypes import DATA_TYPES, DataType
from dlbridge.proto.messages import TensorShapeProto  # type: ignore[attr-defined]
from dlbridge.proto.wire import varint


@pytest.fixture(scope="module")
def oracle(framework: Any) -> Oracle:
    return Oracle(framework("tensorflow"))


def proto(dtype: int, dims: list[int] | None = None, /, tail: bytes = b"", **fields: Any) -> bytes:
    """Return a TensorProto with these fields, through protobuf, and `tail` after it."""
    from dlbridge.proto import TensorProto

    message = TensorProto(dtype=dtype, **fields)
    for size in dims or ():
        message.tensor_shape.dim.add().size = size
    data: bytes = message.SerializeToString() + tail
    return data


MALFORMED = {
    "negative extent": (proto(1, [-1], float_val=[1]), "no negative extents"),
    "elements overflow": (proto(1, [2**62, 2**62, 0]), "more than 2\\*\\*63 - 1 elements"),
    "bytes overflow": (proto(1, [2**62, 1]), "more than 2\\*\\*63 - 1 bytes"),
    "rank 255": (proto(1, [1] * 255, float_val=[1]), "at most 254 dimensions"),
    "unknown rank": (proto(1, tensor_shape=TensorShapeProto(unknown_rank=True)), "unknown rank"),
    "no dtype": (proto(0, [1]), "needs a dtype .* got 0"),
    "reference": (proto(101, [1]), "needs a dtype .* got 101"),
    "unknown dtype": (proto(77, [1]), "needs a dtype .* got 77"),
    "negative dtype": (b"\x08" + b"\xff" * 9 + b"\x01", "needs a dtype .* got -1"),
    "resource": (proto(20, []), "dtype resource has no values"),
    "variant": (proto(21, []), "dtype variant has no values"),
    "resource with content": (proto(20, [1], tensor_content=b"abcd"), "needs 0 bytes"),
    "short content": (proto(1, [2], tensor_content=b"1234567"), "needs 8 bytes, got 7"),
    "long content": (proto(1, [], tensor_content=b"12345"), "needs 4 bytes, got 5"),
    "content of nothing": (proto(1, [0], tensor_content=b"1"), "needs 0 bytes, got 1"),
    "no splat of content": (proto(1, [1000], tensor_content=b"1234"), "needs 4000 bytes"),
    "content beside values": (proto(1, [1], tensor_content=b"1", float_val=[1]), "needs 4 bytes"),
    "bool of 2": (proto(10, [2], tensor_content=b"\1\2"), "a byte of a bool is 0 or 1"),
    "too many values": (proto(1, [2], float_val=[1, 2, 3]), "holds 2 values, got 3"),
    "values of nothing": (proto(1, [0], float_val=[1]), "holds 0 values, got 1"),
    "too many strings": (proto(7, [1], string_val=[b"", b""]), "holds 1 values, got 2"),
    "wrong field": (proto(1, [1], int_val=[5]), "values in float_val, got int_val"),
    "two fields": (proto(3, [1], int_val=[5], string_val=[b""]), "in int_val, got string_val"),
    "half a complex": (proto(8, [2], scomplex_val=[1, 2, 3]), "come in pairs"),
    "too large": (proto(6, [1], int_val=[300]), "-128 to 127 are required, got 300"),
    "too small": (proto(4, [2], int_val=[-1, 7]), "0 to 255 are required, got -1 to 7"),
    "int4 of 9": (proto(29, [1], int_val=[9]), "-8 to 7 are required, got 9"),
    "17 bits of half": (proto(19, [1], half_val=[1 << 16]), "half_val of float16"),
    "quantised": (proto(12, [1], int_val=[256]), "0 to 255"),
    "bomb": (proto(1, [2**33], float_val=[1, 2]), "no more than 268435456 bytes"),
    "bomb of strings": (proto(7, [2**40], string_val=[b"a", b"b"]), "no more than"),
    "strings overrun": (proto(7, [2], tensor_content=b"\1\2ab"), "need 5 bytes, got 4"),
    "strings too long": (proto(7, [1], tensor_content=b"\1ab"), "need 2 bytes, got 3"),
    "lengths cut short": (proto(7, [2], tensor_content=b"\xff\xff"), "varint"),
    "many strings in no bytes": (proto(7, [2**40], tensor_content=b"\0"), "do not fit 1 bytes"),
    "too many elements for NumPy": (proto(1, [0, 2**62, 2**62]), "NumPy has no arrays"),
    "empty": (b"", "needs a dtype .* got 0"),
    "cut short": (proto(1, [2], float_val=[1, 2])[:-1], "is cut short"),
    "ones": (b"\xff" * 4, "varint is cut short"),
    "field 0": (b"\x08\x01\x02\x00", "the number 0"),
    "varint of 11 bytes": (b"\x08\x81" + b"\x80" * 9 + b"\x00", "longer than 10 bytes"),
    "tag of 6 bytes": (b"\x88\x80\x80\x80\x80\x00\x01", "field number is too large"),
    "tag of 33 bits": (b"\x08\x01\x82\x80\x80\x80\x10\x00", "field number is too large"),
    "wire type 6": (b"\x08\x01\x0e", "wire type 6"),
    "end without group": (b"\x08\x01\x0c", "wire type 4"),
    "group without end": (b"\x08\x01\xa3\x06", "group is cut short"),
    "groups without end": (b"\x08\x01" + b"\xa3\x06" * 200, "nested too deeply"),
    "group with an overrun": (b"\x08\x01\xa3\x06\x0a\x7f\xa4\x06", "group is cut short"),
    "group with a field 0": (b"\x08\x01\xa3\x06\x00\x00\xa4\x06", "field number is 0"),
    "cut fixed": (b"\x08\x01\x2d\0\0", "fixed size is cut short"),
    "packed floats cut": (b"\x08\x01\x2a\x03\0\0\0", "last value is cut short"),
    "packed varints cut": (b"\x08\x03\x12\x00\x3a\x02\x01\x80", "last of several varints"),
    "packed varint too long": (b"\x08\x03\x3a\x0c" + b"\x81" * 11 + b"\0", "longer than 10 bytes"),
    "malformed beside content": (
        proto(1, [1], tensor_content=b"abcd", tail=b"\x3a\x01\x80"), "last of several varints",
    ),
    "handle beside content": (
        proto(1, [1], tensor_content=b"abcd", tail=b"\x72\x01\xff"), "resource_handle_val",
    ),
    "name of a dim": (b"\x08\x01\x12\x07\x12\x05\x08\x01\x12\x01\xff\x2d\0\0\0\0", "not UTF-8"),
}  # fmt: skip
ACCEPTED_BY_TENSORFLOW = {
    "unknown rank", "too many values", "values of nothing", "too many strings", "wrong field",
    "two fields", "half a complex", "too large", "too small", "int4 of 9", "17 bits of half",
    "quantised", "content of nothing",
}  # fmt: skip
NOT_ASKED = {"bomb", "bomb of strings", "resource", "variant"}  # 32 GiB, and what no array holds


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_tensors_are_refused(name: str) -> None:
    data, text = MALFORMED[name]
    with pytest.raises(WireError, match=text) as refusal:
        read_tensor(data)
    assert isinstance(refusal.value, ValueError)
    assert refusal.value.reason == "wire"
    with pytest.raises((WireError, ExchangeError)):
        load_tensor(data)


@pytest.mark.parametrize("name", sorted(MALFORMED.keys() - NOT_ASKED))
def test_tensorflow_refuses_the_same_but_for_what_it_takes_silently(
    oracle: Oracle, name: str
) -> None:
    data, _ = MALFORMED[name]
    dtype = DATA_TYPES.get(data[1] if data[:1] == b"\x08" else 1, DATA_TYPES[1])
    refused = oracle.read(data, dtype) is REFUSED
    assert refused == (name not in ACCEPTED_BY_TENSORFLOW)


ACCEPTED = {
    "splat": (proto(1, [2, 3], float_val=[7]), [[7.0] * 3] * 2),
    "last repeated": (proto(3, [5], int_val=[1, 2]), [1, 2, 2, 2, 2]),
    "none given": (proto(9, [3]), [0, 0, 0]),
    "no strings given": (proto(7, [2]), [b"", b""]),
    "last string repeated": (proto(7, [3], string_val=[b"a", b"b"]), [b"a", b"b", b"b"]),
    "complex repeated": (proto(8, [2], scomplex_val=[1, 2]), [1 + 2j, 1 + 2j]),
    "float8 repeated": (proto(24, [2], float8_val=b"\x3c"), [1.0, 1.0]),
    "no float8 given": (proto(24, [2]), [0.0, 0.0]),
    "strings of content": (proto(7, [2], tensor_content=b"\1\2abb"), [b"a", b"bb"]),
    "no shape": (proto(1, float_val=[3]), 3.0),
    "content wins": (proto(1, [1], tensor_content=b"\0\0\x80?", float_val=[5]), [1.0]),
    "not packed": (b"\x08\x01\x12\x04\x12\x02\x08\x02\x2d\0\0\x80?\x2a\x04\0\0\0@", [1.0, 2.0]),
    "varints not packed": (b"\x08\x03\x12\x04\x12\x02\x08\x02\x38\x05\x3a\x01\x06", [5, 6]),
    "unknown group": (b"\x08\x01\x12\x00\x2d\0\0\x80?\xa3\x06\x08\x01\x0a\x00\xa4\x06", 1.0),
    "other wire type": (b"\x08\x01\x12\x04\x12\x02\x08\x01\x20\x05\x2a\x04\0\0\x80?", [1.0]),
    "unknown field": (proto(1, [], float_val=[2], tail=b"\xfa\x3f\x01x"), 2.0),
    "shape in parts": (proto(1, [2], tail=b"\x12\x04\x12\x02\x08\x03"), [[0.0] * 3] * 2),
    "long varint": (b"\x08\x83\x80\x80\x80\x80\x80\x80\x80\x80\x00\x12\x00\x38\x05", 5),
    "high bits of int32": (b"\x08\x03\x12\x00\x38\xff\xff\xff\xff\x0f", -1),
    "bool of 5": (b"\x08\x0a\x12\x00\x58\x05", True),
    "int64": (proto(9, [2], int64_val=[-(2**63), 2**63 - 1]), [-(2**63), 2**63 - 1]),
    "uint64": (proto(23, [2], uint64_val=[2**64 - 1, 3]), [2**64 - 1, 3]),
    "wrong field, but empty": (b"\x08\x03\x12\x00\x38\x05\x2a\x00", 5),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_short_contents_are_expanded_as_by_tensorflow(oracle: Oracle, name: str) -> None:
    data, expected = ACCEPTED[name]
    value = read_tensor(data)
    assert value.array.tolist() == expected
    assert same(oracle.read(data, value.dtype), value.array, value.dtype)
    if value.dtype.dlpack is not None:
        assert load_tensor(data).tolist() == expected


def test_bits_of_half_may_have_their_sign_extended() -> None:
    """Writers in languages without unsigned integers do so."""
    assert read_tensor(proto(19, [1], half_val=[0xBC00 - 0x10000])).array.tolist() == [-1.0]
    assert read_tensor(proto(14, [1], half_val=[0xBF80])).array.tolist() == [-1.0]


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, {"float_val": [1.5]}], ids=["none", "one"])
def test_fourteen_bytes_that_ask_for_32_gigabytes_take_no_memory(values: dict[str, Any]) -> None:
    data = proto(1, [2**33], **values)
    assert len(data) <= 18
    assert peak(lambda: (dump_tensor(read_tensor(data)), load_tensor(data)), 1 << 16) < 1 << 16
    value, tensor = read_tensor(data), load_tensor(data)
    assert value.shape == tensor.shape == (2**33,)
    assert tensor.strides == (0,)
    assert tensor.readonly
    assert value.array[2**32] == sum(values.get("float_val", [0]))
    assert value == read_tensor(dump_tensor(value))


@pytest.mark.parametrize("name", [name for name in MALFORMED if "bomb" in name or "many" in name])
def test_refusals_take_no_memory_either(name: str) -> None:
    data, _ = MALFORMED[name]

    def read() -> None:
        with pytest.raises(WireError):
            read_tensor(data)

    assert peak(read, 1 << 17) < 1 << 17


# ---- random bytes -------------------------------------------------------------------------------

VALUES = [dtype for dtype in DATA_TYPES.values() if not dtype.is_ref and dtype.kind != "h"]


@st.composite
def tensors_on_the_wire(draw: Callable[..., Any]) -> bytes:
    """Return TensorProtos, some of them mutilated."""
    dtype = draw(st.sampled_from(VALUES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    data = bytearray(dump_tensor(sample(dtype, shape, draw(st.integers(0, 5)))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(st.binary(max_size=2))
            case 1:
                data[at:at] = varint(draw(st.integers(0, 2**64 - 1)))
            case 2:
                del data[at:]
            case 3:
                tag = draw(st.sampled_from([*tensors.TAGS, 0x08, 0x12, 0x22]))
                data += varint(tag) + draw(st.binary(max_size=6))
    return bytes(data)


def takes_silently(message: Any, dtype: DataType) -> bool:
    """Return whether a message that TensorFlow reads is one of those that we refuse on purpose."""
    given = {field.name: values for field, values in message.ListFields() if field.number >= 5}
    size = int(np.prod([dim.size for dim in message.tensor_shape.dim], dtype=object))
    if message.tensor_shape.unknown_rank or dtype.is_ref:
        return True
    if message.tensor_content:
        return size == 0
    own = tensors.TYPED_FIELDS[dtype.number]
    name = message.DESCRIPTOR.fields_by_number[own.number].name
    if set(given) - {name}:
        return True
    values = given.get(name, ())
    count = len(values) / 2 if dtype.is_complex else len(values)
    if count > size or count % 1 or (1 < count < size and size * max(dtype.size, 8) > 1 << 28):
        return True
    if own.kind == "varint" and (range_ := range_in_int32(dtype)):
        return any(value not in range_ for value in values)
    return False


def range_in_int32(dtype: DataType) -> range | None:
    """Return what elements of a dtype may be whose values are in a field of int32."""
    if dtype.name in ("float16", "bfloat16"):  # their bits; some writers extend the sign
        return range(-(1 << 15), 1 << 16)
    found = re.fullmatch(r"q?(u?)int(\d+)", dtype.name)
    if not found or dtype.name in ("int64", "uint64", "uint32"):
        return None
    bits = int(found[2])
    return range(1 << bits) if found[1] else range(-(1 << bits - 1), 1 << bits - 1)


def check(oracle: Oracle, data: bytes) -> None:
    """Compare what we make of bytes with what TensorFlow does, but where we are stricter."""
    message = oracle.message(data)
    try:
        value = read_tensor(data)
    except WireError:
        value = None
    if message is None:
        if value is None:
            return
        # Only in fields that nobody asks for is what we skip malformed for TensorFlow.
        raise AssertionError("TensorFlow refuses the wire")
    dtype = DATA_TYPES.get(message.dtype)
    if dtype is None or dtype.is_ref or dtype.kind == "h":
        assert value is None
        return
    dims = [dim.size for dim in message.tensor_shape.dim]
    if len(dims) > 60 or np.prod([max(n, 1) for n in dims], dtype=object) > 1 << 24:
        return  # TensorFlow would really allocate it
    theirs = oracle.read(data, dtype)
    if value is None:
        assert theirs is REFUSED or takes_silently(message, dtype)
    else:
        assert theirs is not REFUSED
        assert same(theirs, value.array, dtype)
        assert same(make_ndarray(message), value.array, dtype)


@given(data=tensors_on_the_wire())
def test_mutilated_tensors_are_read_as_by_tensorflow_or_refused(
    oracle: Oracle, data: bytes
) -> None:
    check(oracle, data)


@given(data=st.binary(max_size=64))
@example(data=b"\xff\xff\xff\xff")  # TensorFlow 1.15.5 crashes on it
def test_random_bytes_are_read_as_by_tensorflow_or_refused(oracle: Oracle, data: bytes) -> None:
    check(oracle, data)


@given(data=st.binary(max_size=200), dtype=st.sampled_from(VALUES))
def test_random_fields_never_crash(data: bytes, dtype: DataType) -> None:
    for source in (data, varint(8) + varint(dtype.number) + data):
        for read in (read_tensor, load_tensor):
            try:
                read(source)
            except (WireError, ExchangeError):
                pass
