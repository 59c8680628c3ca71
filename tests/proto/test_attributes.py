"""AttrValue: each kind in its one Python form, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlbridge.errors import WireError
from dlbridge.proto import (
    AttrValue,  # type: ignore[attr-defined]
    DataType,
    FunctionName,
    TensorValue,
    attributes,
    make_value,
    read_attr,
    write_attr,
)
from dlbridge.shape import TensorShape

VALUE = make_value([1.5, 2.5])
FUNCTION = FunctionName("f", {"T": DataType("int32"), "n": 3})
VALUES = [
    b"text", b"", 0, -(2**63), 2**63 - 1, 1.5, float("inf"), True, False, DataType("float32"),
    DataType("string_ref"), TensorShape([1, None, 0]), TensorShape([]), TensorShape(None), VALUE,
    make_value("text"), make_value(0.5, shape=(2**20, 2**10)), FUNCTION,
    [], [b"a", b""], [1, -2], [0.5, 2.0], [True, False], [DataType("int8"), DataType("bool")],
    [TensorShape([2]), TensorShape(None)], [VALUE, make_value(1)], [FUNCTION, FunctionName("g")],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_goes_there_and_back(framework: Any, value: Any) -> None:
    message = AttrValue()
    write_attr(value, message)
    again = read_attr(message)
    assert again == value
    assert type(again) is type(value)
    framework("tensorflow")
    from tensorflow.core.framework import attr_value_pb2

    theirs = attr_value_pb2.AttrValue.FromString(message.SerializeToString())
    assert str(theirs) == str(message)
    assert read_attr(theirs) == value


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("text", b"text"), (np.int64(3), 3), (np.float32(0.5), 0.5), (np.True_, True),
        ((1, 2), [1, 2]), ([1, 0.5], [1.0, 0.5]), (["a"], [b"a"]), (np.bytes_(b"a"), b"a"),
    ],
    ids=repr,
)  # fmt: skip
def test_objects_that_stand_for_a_value_are_written_as_it(given: Any, read: Any) -> None:
    message = AttrValue()
    write_attr(given, message)
    assert read_attr(message) == read


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "no attribute has a value of type NoneType"), (1j, "type complex"),
        ({}, "type dict"),
        ([1, b"a"], "values of one kind"), ([[1]], "values of one kind"),
        ([None], "type NoneType"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_of_other_types_are_refused(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        write_attr(value, AttrValue())


@pytest.mark.parametrize("value", [2**63, [-(2**63) - 1]], ids=repr)
def test_integers_have_64_bits(value: Any) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        write_attr(value, AttrValue())


def malformed() -> dict[str, Any]:
    shape = AttrValue()
    shape.shape.dim.add().size = -2
    tensor = AttrValue()
    tensor.tensor.dtype = 1
    tensor.tensor.tensor_shape.dim.add().size = -1
    two = AttrValue()
    two.list.i.append(1)
    two.list.f.append(1)
    reference = AttrValue()
    reference.tensor.CopyFrom(AttrValue(tensor={"dtype": 1, "external_content": 2}).tensor)
    return {
        "needs a value, got none": AttrValue(),
        "got placeholder": AttrValue(placeholder="T"),
        "no DataType number 0": AttrValue(type=0),
        "no DataType number 77": AttrValue(type=77),
        "negative extents but -1": shape,
        "no negative extents": tensor,
        "values of one kind": two,
        "content 2 of 1": reference,
    }


@pytest.mark.parametrize("text", malformed())
def test_malformed_attributes_are_refused(text: str) -> None:
    with pytest.raises(WireError, match=text):
        read_attr(malformed()[text], [memoryview(b"abcd")])


def test_contents_are_found_wrong_when_they_are_looked_at() -> None:
    message = AttrValue(tensor={"dtype": 3, "int_val": [1, 2]})
    value = read_attr(message)
    assert (value.dtype, value.shape) == ("int32", ())
    for _ in range(2):
        with pytest.raises(WireError, match="holds 1 values, got 2"):
            value.array


def test_a_value_that_was_read_does_not_change_with_the_message() -> None:
    message = AttrValue()
    write_attr(VALUE, message)
    value = read_attr(message)
    message.tensor.tensor_content = b"\0" * 8
    assert value == VALUE


def test_tensor_bytes_are_written_as_they_came() -> None:
    """A value that is repeated stays as small as it was."""
    message = AttrValue(tensor={"dtype": 3, "int_val": [1, 2]})
    message.tensor.tensor_shape.dim.add(size=1000, name="rows")
    again = AttrValue()
    write_attr(read_attr(message), again)
    assert again == message


def test_large_contents_are_kept_out_of_the_message() -> None:
    array = np.arange(attributes.LARGE, dtype=np.uint8)
    message, contents = AttrValue(), []
    write_attr([TensorValue("uint8", array), VALUE], message, contents)
    assert message.ByteSize() < 100
    assert np.shares_memory(contents[0], array)
    values = read_attr(message, contents)
    assert np.shares_memory(values[0].array, array)
    assert values == [TensorValue("uint8", array), VALUE]
    again, more = AttrValue(), [b"before"]
    write_attr(values[0], again, more)
    assert again.tensor.external_content == 2
    assert np.shares_memory(np.frombuffer(more[1], np.uint8), array)
    with pytest.raises(WireError, match="needs 4096 bytes, got 6"):
        read_attr(message, [b"before"])
