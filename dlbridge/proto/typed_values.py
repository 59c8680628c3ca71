"""The repeated fields of a TensorProto, of which each dtype has its own, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.errors import WireError
from dlbridge.proto import varints, wire
from dlbridge.proto.datatypes import DataType

Array = np.ndarray[Any, Any]


class Typed(NamedTuple):
    """A field of values: its number, how each is written, and what array they make."""

    number: int
    kind: str
    """"fixed" and "bytes": as in memory; "varint"; "string"."""
    numpy: Any = None
    """What one value is in memory where `kind` is "fixed"."""


_INT = Typed(7, "varint", np.int32)
_HALF = Typed(13, "varint", np.uint16)
_FLOAT8 = Typed(18, "bytes")
TYPED_FIELDS: dict[int, Typed] = {
    1: Typed(5, "fixed", np.float32),
    2: Typed(6, "fixed", np.float64),
    7: Typed(8, "string"),
    8: Typed(9, "fixed", np.float32),
    9: Typed(10, "varint", np.int64),
    10: Typed(11, "varint", np.bool_),
    14: _HALF,
    18: Typed(12, "fixed", np.float64),
    19: _HALF,
    22: Typed(16, "varint", np.uint32),
    23: Typed(17, "varint", np.uint64),
    **dict.fromkeys((3, 4, 5, 6, 11, 12, 13, 15, 16, 17, 29, 30, 31, 32), _INT),
    **dict.fromkeys((24, 25, 26, 27, 28, 33), _FLOAT8),
}
"""The field of each dtype's values, by the DataType's number."""

_FIELD_NAMES = {
    5: "float_val", 6: "double_val", 7: "int_val", 8: "string_val", 9: "scomplex_val",
    10: "int64_val", 11: "bool_val", 12: "dcomplex_val", 13: "half_val",
    14: "resource_handle_val", 15: "variant_val", 16: "uint32_val", 17: "uint64_val",
    18: "float8_val",
}  # fmt: skip
_STRINGS = (8, 14, 15)  # where a field of no bytes is a value all the same


def _wire_types(number: int) -> tuple[int, ...]:
    """Return the wire types of a field of values; with others it is an unknown field."""
    if number in (*_STRINGS, 18):
        return (wire.LENGTH,)
    if number in (5, 9):
        return (wire.LENGTH, wire.FIXED32)
    return (wire.LENGTH, wire.FIXED64 if number in (6, 12) else wire.VARINT)


TAGS = frozenset(number << 3 | kind for number in _FIELD_NAMES for kind in _wire_types(number))
"""The tags of all fields of values, packed and not."""


def read(dtype: DataType, raw: memoryview, values: list[wire.Field]) -> Array:
    """Return the values in the field of `dtype` in one dimension, shared where they are one run.

    Raises:
        WireError: there are values in another field, or out of the dtype's range, or cut short.
    """
    typed = TYPED_FIELDS[dtype.number]
    for tag, start, end in values:
        number = tag >> 3
        if number != typed.number and (
            start != end or tag & 7 != wire.LENGTH or number in _STRINGS
        ):
            raise WireError(
                f"a TensorProto of {dtype.name} has its values in {_FIELD_NAMES[typed.number]}, "
                f"got {_FIELD_NAMES[number]}"
            )
    given: Array = _READERS[typed.kind](
        raw, [it for it in values if it[0] >> 3 == typed.number], typed
    )
    if typed.kind == "string":
        return given
    if typed.kind == "varint":
        given = _narrow(given, typed, dtype)
    if given.nbytes % dtype.size:
        raise WireError(f"{dtype.name}: real and imaginary parts must come in pairs")
    array: Array = given.view(dtype.numpy)
    return array


def validate(raw: memoryview, values: list[wire.Field]) -> None:
    """Raise WireError where values that nobody asks for, content being there, are malformed."""
    for field in values:
        number = field[0] >> 3
        if number in (14, 15):
            raise WireError(f"a TensorProto with content has values in {_FIELD_NAMES[number]}")
        typed = next(typed for typed in TYPED_FIELDS.values() if typed.number == number)
        _READERS[typed.kind](raw, [field], typed)


def _read_fixed(raw: memoryview, values: list[wire.Field], typed: Typed) -> Array:
    """Return packed and single values as one array, a view where there is only one run."""
    width = np.dtype(typed.numpy).itemsize
    for _, start, end in values:
        if (end - start) % width:
            raise WireError(f"{_FIELD_NAMES[typed.number]}: the last value is cut short")
    runs = [raw[start:end] for _, start, end in values]
    return np.frombuffer(runs[0] if len(runs) == 1 else b"".join(runs), typed.numpy)


def _read_varints(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    runs = []
    for tag, start, end in values:
        packed = tag & 7 == wire.LENGTH
        runs.append(varints.decode(raw[start:end]) if packed else np.array([start], np.uint64))
    return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, np.uint64), *runs])


def _narrow(words: Array, typed: Typed, dtype: DataType) -> Array:
    """Return 64-bit varints as values of the field, which must be in the range of `dtype`."""
    if typed.numpy is np.bool_:
        return np.asarray(words != 0)
    if typed.numpy in (np.int64, np.uint64):
        return words.view(typed.numpy)
    low = words.astype(np.uint32)
    if typed.numpy is np.uint32:
        return low
    values = low.view(np.int32)
    least, most, target = _RANGES[dtype.number]
    if values.size and not least <= int(values.min()) <= int(values.max()) <= most:
        raise WireError(
            f"{_FIELD_NAMES[typed.number]} of {dtype.name}: values from {least} to {most} are "
            f"required, got {int(values.min())} to {int(values.max())}"
        )
    return values.astype(target)


def _range(bits: int, sign: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, (1 << bits) - 1)


# Of 16-bit floats some writers extend the sign, as if their bits were an integer.
_RANGES: dict[int, tuple[int, int, Any]] = {
    14: (-(1 << 15), (1 << 16) - 1, np.uint16),
    19: (-(1 << 15), (1 << 16) - 1, np.uint16),
    **{
        number: (*_range(bits, sign), np.dtype(f"{'i' if sign else 'u'}{max(bits // 8, 1)}"))
        for number, bits, sign in (
            (3, 32, True), (4, 8, False), (5, 16, True), (6, 8, True), (11, 8, True),
            (12, 8, False), (13, 32, True), (15, 16, True), (16, 16, False), (17, 16, False),
            (29, 4, True), (30, 4, False), (31, 2, True), (32, 2, False),
        )
    },
}  # fmt: skip


def _read_octets(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    """Return the last value of a field of bytes that is not repeated."""
    start, end = values[-1][1:] if values else (0, 0)
    return np.frombuffer(raw[start:end], np.uint8)


def _read_strings(raw: memoryview, values: list[wire.Field], _: Typed) -> Array:
    array = np.empty(len(values), object)
    array[:] = [bytes(raw[start:end]) for _, start, end in values]
    return array


_READERS = {
    "fixed": _read_fixed,
    "varint": _read_varints,
    "bytes": _read_octets,
    "string": _read_strings,
}
