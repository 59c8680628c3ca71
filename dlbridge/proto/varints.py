"""Runs of varints to and from arrays, without a loop over the elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.errors import WireError

Array = np.ndarray[Any, Any]

_LONGEST = 10
_BLOCK = 1 << 16  # bounds the memory that is needed at a time


def decode(data: Any) -> Array:
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


def encode(values: Array) -> bytes:
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
