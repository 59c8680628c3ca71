"""Protocol buffers' wire format: fields, varints and lengths, read within bounds.

A reader takes a flat memoryview and the range of one message; fields that are cut short, too long
or nested too deeply are a WireError. Nothing is copied, and no allocation is larger than a constant
times the input.

`protobuf` is not used here: it would copy the contents of tensors, and tensors are read and written
where it is not installed. For runs of small integers it is also slower, by three to six times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError, WireError
from dlbridge.signals import not_from_handler

Array = np.ndarray[Any, Any]

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)

_MOST_TAG = 2**32
_LONGEST = 10  # bytes of a varint
_WORD = 2**64 - 1
_MOST_DEPTH = 100

Field = tuple[int, int, int]
"""Tag (field number times 8 plus wire type), and two integers: for a varint its value and the end
of its bytes, for other fields the first byte and the end of the contents."""


def flatten(buffer: object, call: str) -> memoryview:
    """Return the memory of an object with the buffer protocol as a flat view of bytes."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except not_from_handler(TypeError) as error:
        raise UnsupportedTypeError(f"{call}: bytes or another buffer required, {error}") from error
    except not_from_handler(ValueError) as error:  # released
        raise ArgumentError(f"{call}: {error}") from error
    if view.ndim == 1 and view.format == "B" and view.contiguous:
        return view
    if not view.c_contiguous:
        raise ArgumentError(f"{call}: a contiguous buffer is required, got one with gaps")
    return view.cast("B")


def read_varint(data: memoryview | bytes, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit value at `at`, and where it ends."""
    value = shift = 0
    for at in range(at, min(end, at + _LONGEST)):  # noqa: B020
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at + 1
        shift += 7
    raise _malformed("a varint is cut short or longer than 10 bytes", at)


def fields(data: memoryview | bytes, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in data[at:end], including unknown ones."""
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            start = at
            tag, at = read_varint(data, at, end)
            if tag >= _MOST_TAG or at - start > 5:
                raise _malformed("a field number is too large", start)
        if tag < 8:
            raise _malformed("a field has the number 0", at)
        kind = tag & 7
        if kind in (LENGTH, VARINT):
            if at < end and data[at] < 0x80:  # as most are
                value = data[at]
                at += 1
            else:
                value, at = read_varint(data, at, end)
            if kind == VARINT:
                yield tag, value, at
                continue
            stop = at + value
            if stop > end:
                raise _malformed(f"a field of {value} bytes is cut short", at)
            yield tag, at, stop
            at = stop
        else:
            stop = _skip(data, tag, at, end, 0)
            yield tag, at, stop
            at = stop


def _skip(data: memoryview | bytes, tag: int, at: int, end: int, depth: int) -> int:
    """Return the end of the field with this tag, whose contents start at `at`."""
    kind = tag & 7
    if kind == GROUP:
        return _skip_group(data, tag >> 3, at, end, depth + 1)
    if kind not in _SIZES:
        raise _malformed(f"there is no field of wire type {kind} here", at)
    stop = at + _SIZES[kind]
    if stop > end:
        raise _malformed("a field of fixed size is cut short", at)
    return stop


_SIZES = {FIXED64: 8, FIXED32: 4}


def _skip_group(data: memoryview | bytes, number: int, at: int, end: int, depth: int) -> int:
    """Return the end of a group, a deprecated form of nested messages."""
    if depth > _MOST_DEPTH:
        raise _malformed("groups are nested too deeply", at)
    while at < end:
        tag, at = read_varint(data, at, end)
        if tag == number << 3 | END_GROUP:
            return at
        if not 8 <= tag < _MOST_TAG:
            raise _malformed("a field number is 0 or too large", at)
        if tag & 7 == VARINT:
            _, at = read_varint(data, at, end)
        elif tag & 7 == LENGTH:
            length, at = read_varint(data, at, end)
            at += length
        else:
            at = _skip(data, tag, at, end, depth)
    raise _malformed("a group is cut short", end)


def _malformed(what: str, at: int) -> WireError:
    return WireError(f"malformed protocol buffer: {what}, at byte {at}")


def signed(value: int, bits: int = 64) -> int:
    """Return the low bits of a varint as a signed integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def varint(value: int) -> bytes:
    """Return an integer from 0 to 2**64 - 1, or a negative one of 64 bits, as a varint."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _WORD
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SHORT = [bytes((value,)) for value in range(0x80)]


# ---- runs of varints, without a loop over the elements -------------------------------------------

_BLOCK = 1 << 16  # bounds the memory that is needed at a time


def decode_varints(data: Any) -> Array:
    """Return the varints that fill a buffer as uint64[n].

    Raises:
        WireError: the last one is cut short, or one is longer than 10 bytes.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if octets.size and (not ends.size or ends[-1] != octets.size - 1):
        raise WireError("malformed protocol buffer: the last of several varints is cut short")
    if ends.size == octets.size:  # each one byte long
        return octets.astype(np.uint64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST:
        raise WireError("malformed protocol buffer: a varint is longer than 10 bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        reached = np.flatnonzero(lengths > place)
        part = (octets[starts[reached] + place] & 0x7F).astype(np.uint64)
        values[reached] |= part << np.uint64(7 * place)
    return values


def encode_varints(values: Array) -> bytes:
    """Return integers, sign-extended to 64 bits as protocol buffers want, as varints."""
    if values.dtype.kind == "i":
        values = values.astype(np.int64)
    words = values.astype(np.uint64).reshape(-1)
    blocks = [words[at : at + _BLOCK] for at in range(0, words.size, _BLOCK)]
    return b"".join(map(_encode_block, blocks))


def _encode_block(words: Array) -> bytes:
    top = int(words.max())
    if top < 0x80:
        return words.astype(np.uint8).tobytes()
    longest = -(-top.bit_length() // 7)
    shifts = np.arange(longest, dtype=np.uint64) * np.uint64(7)
    parts = words[:, None] >> shifts
    octets = (parts & np.uint64(0x7F)).astype(np.uint8)
    more = np.zeros(parts.shape, np.bool_)
    more[:, :-1] = parts[:, 1:] != 0
    kept = np.ones(parts.shape, np.bool_)
    kept[:, 1:] = more[:, :-1]
    encoded: bytes = (octets | (more.astype(np.uint8) << 7))[kept].tobytes()
    return encoded
