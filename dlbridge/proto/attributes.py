"""The values of attributes in Python, and as AttrValue messages.

    kind of AttrValue   in Python
    type                DataType
    shape               TensorShape
    tensor              TensorValue
    s, i, f, b          bytes, int, float, bool
    func                FunctionName(name, attrs)
    list                list of one of these

Large contents of tensors need not go through protobuf: `contents` is a list of buffers that
accompanies the messages, and a TensorProto without content refers to one by its index; see
`graph_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError, WireError
from dlbridge.proto import messages
from dlbridge.proto.datatypes import DATA_TYPES, DataType
from dlbridge.proto.tensors import CONTENT, TensorFields, lazy_value, split_value
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import TensorShape
from dlbridge.signals import not_from_handler

LARGE = 1 << 12
"""Contents of at least this many bytes are kept out of the messages."""

# ---- reading ------------------------------------------------------------------------------------


def read_attr(message: Any, contents: Sequence[Any] = ()) -> Any:
    """Return the value of an AttrValue, ours or TensorFlow's, in the form of the table above.

    Of tensors, only dtype and shape are read at once; invalid contents raise WireError on first
    access of their `array`. Later changes of the message have no effect on the value.

    Args:
        message: an AttrValue.
        contents: the buffers that its tensors may refer to; they are shared.

    Raises:
        WireError: there is no value, or an invalid one.
    """
    messages.require("read_attr", message, "AttrValue")
    kind = message.WhichOneof("value")
    if kind in _PLAIN:
        return getattr(message, kind)
    reader = _READERS.get(kind)
    if reader is None:
        raise WireError(f"an AttrValue needs a value, got {kind or 'none'}")
    return reader(getattr(message, kind), contents)


_PLAIN = frozenset(("s", "i", "f", "b"))


def read_type(number: int, _: object = ()) -> DataType:
    """Return the DataType of a number; WireError when there is none."""
    try:
        return DATA_TYPES[number]
    except not_from_handler(KeyError):
        raise WireError(f"TensorFlow has no DataType number {number}") from None


def read_shape(message: Any, _: object = ()) -> TensorShape:
    """Return a TensorShapeProto as a TensorShape: -1 is an unknown extent, less is a WireError."""
    dims = [dim.size for dim in message.dim]
    if message.unknown_rank:
        if dims:
            raise WireError(f"a shape of unknown rank has no extents, got {dims}")
        return _UNKNOWN
    if not dims or min(dims) >= 0:
        if math.prod(dims) >= 2**63:
            raise WireError(f"the shape {dims} has more than 2**63 - 1 elements")
        return TensorShape(dims)
    if min(dims) < -1:
        raise WireError(f"a shape has no negative extents but -1, got {dims}")
    return TensorShape([None if size < 0 else size for size in dims])


_UNKNOWN = TensorShape(None)


def read_tensor_message(message: Any, contents: Sequence[Any] = ()) -> TensorValue:
    """Return the value of a TensorProto whose content may be in `contents`."""
    place = getattr(message, "external_content", 0)
    data = message.SerializeToString()
    if not place and len(data) <= _SMALL:
        return _read_small(data)
    fields = TensorFields(memoryview(data))
    if place:
        if place > len(contents):
            raise WireError(f"a TensorProto refers to content {place} of {len(contents)}")
        fields.attach(memoryview(contents[place - 1]))
    return lazy_value(fields)


_SMALL = 64


@lru_cache(maxsize=4096)
def _read_small(data: bytes) -> TensorValue:
    """Return a small value, cached: graphs have many equal axes, shapes and numbers."""
    return lazy_value(TensorFields(memoryview(data)))


def _read_function(message: Any, contents: Sequence[Any]) -> FunctionName:
    attrs = {name: read_attr(message.attr[name], contents) for name in sorted(message.attr)}
    return FunctionName(message.name, attrs)


def _read_list(message: Any, contents: Sequence[Any]) -> list[Any]:
    given = message.ListFields()
    if not given:
        return []
    if len(given) > 1:
        raise WireError("a list of an AttrValue has values of one kind")
    field, values = given[0]
    reader = _READERS.get(field.name)
    return list(values) if reader is None else [reader(value, contents) for value in values]


_READERS: dict[str | None, Callable[[Any, Sequence[memoryview]], Any]] = {
    "type": read_type,
    "shape": read_shape,
    "tensor": read_tensor_message,
    "func": _read_function,
    "list": _read_list,
}

# ---- writing ------------------------------------------------------------------------------------


def write_attr(value: Any, message: Any, contents: list[Any] | None = None) -> None:
    """Write a value, in the form of the table above, into an empty AttrValue of ours.

    Args:
        value: the value; a tuple is a list. Lists hold values of one kind.
        message: the AttrValue.
        contents: a list to which large contents are added, as buffers over the tensors' own memory;
            None copies them into the message.

    Raises:
        UnsupportedTypeError: no attribute has such a value.
        ArgumentError: an integer of more than 64 bits, or a tensor of 2 GiB or more.
    """
    messages.require("write_attr", message, "AttrValue")
    kind = kind_of(value)
    if kind == "list":
        _write_list(value, message.list, contents)
    elif kind in _WRITERS:
        _WRITERS[kind](value, getattr(message, kind), contents)
    else:
        _assign(message, kind, value)


def kind_of(value: Any) -> str:
    """Return the field of AttrValue for a value; UnsupportedTypeError where there is none."""
    kind = _KINDS.get(type(value))
    if kind is None:
        kind = next((kind for base, kind in _BASES if isinstance(value, base)), None)
    if kind is None:
        raise UnsupportedTypeError(
            f"write_attr: no attribute has a value of type {type(value).__name__}: {value!r}; see "
            "dlbridge.proto.attributes for those that have"
        )
    return kind


_KINDS: dict[type, str] = {
    DataType: "type",
    TensorShape: "shape",
    TensorValue: "tensor",
    FunctionName: "func",
    bytes: "s",
    bool: "b",
    int: "i",
    float: "f",
    list: "list",
    tuple: "list",
}
_BASES: tuple[tuple[Any, str], ...] = (
    (bytes, "s"),
    (str, "s"),
    (np.bool_, "b"),
    (int | np.integer, "i"),
    (float | np.floating, "f"),
    (list | tuple, "list"),
)


def _plain(kind: str, value: Any) -> Any:
    if kind == "type":
        return value.number
    if kind == "s" and isinstance(value, str):
        return value.encode()
    return _PYTHON[kind](value)


_PYTHON: dict[str, Callable[[Any], Any]] = {"s": bytes, "i": int, "f": float, "b": bool}


def _assign(message: Any, kind: str, value: Any) -> None:
    try:
        setattr(message, kind, _plain(kind, value))
    except not_from_handler(ValueError) as error:
        raise ArgumentError(f"an int of an attribute has 64 bits: {error}") from error


def _write_list(values: Sequence[Any], message: Any, contents: list[Any] | None) -> None:
    message.SetInParent()
    kinds = {kind_of(value) for value in values}
    if kinds == {"i", "f"}:
        kinds = {"f"}
    if not kinds:
        return
    kind = kinds.pop()
    if kinds or kind == "list":
        raise UnsupportedTypeError(f"a list of an attribute has values of one kind, got {values!r}")
    field = getattr(message, kind)
    if kind in _WRITERS:
        for value in values:
            _WRITERS[kind](value, field.add(), contents)
        return
    try:
        field.extend([_plain(kind, value) for value in values])
    except not_from_handler(ValueError) as error:
        raise ArgumentError(f"an int of an attribute has 64 bits: {error}") from error


def write_shape(shape: TensorShape, message: Any, _: object = None) -> None:
    """Write a shape into an empty TensorShapeProto; -1 for unknown extents."""
    message.SetInParent()
    if shape.dims is None:
        message.unknown_rank = True
        return
    for size in shape.dims:
        message.dim.add().size = -1 if size is None else size


def write_tensor_message(value: TensorValue, message: Any, contents: list[Any] | None) -> None:
    """Write a value into an empty TensorProto, its content into `contents` if it is large."""
    parts = split_value(value)
    if contents is None or parts.tag != CONTENT or len(parts.values) < LARGE:
        message.MergeFromString(b"".join(parts.buffers()))
        return
    message.MergeFromString(parts.head)
    contents.append(parts.values)
    message.external_content = len(contents)


def _write_function(value: FunctionName, message: Any, contents: list[Any] | None) -> None:
    message.SetInParent()
    message.name = value.name
    for name, attr in value.attrs.items():
        write_attr(attr, message.attr[name], contents)


_WRITERS: dict[str, Callable[[Any, Any, list[Any] | None], None]] = {
    "shape": write_shape,
    "tensor": write_tensor_message,
    "func": _write_function,
}
