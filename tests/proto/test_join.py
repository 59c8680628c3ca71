"""native.join: several buffers as one bytes object."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dlbridge._core import native


def test_buffers_are_joined_as_bytes_are() -> None:
    parts = [b"ab", bytearray(b""), memoryview(b"cde"), np.arange(3, dtype=np.uint8)]
    assert native.join(parts) == b"abcde\0\1\2"
    assert native.join(iter(parts)) == native.join(tuple(parts))
    assert native.join([]) == b""
    assert native.join([b"x"]) == b"x"


def test_large_buffers_are_joined_too() -> None:
    """Beyond 8 MiB huge pages are asked for."""
    array = np.arange(3 << 20, dtype=np.uint32)
    joined = native.join([b"head", array.view(np.uint8), b"tail"])
    assert joined == b"head" + array.tobytes() + b"tail"


@pytest.mark.parametrize("given", [3, [b"ab", "text"], [np.arange(4)[::2]]], ids=repr)
def test_anything_but_a_list_of_buffers_is_refused(given: object) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        native.join(given)


def test_no_buffer_stays_open() -> None:
    data = bytearray(b"abc")
    before = sys.getrefcount(data)
    native.join([data])
    with pytest.raises(TypeError):
        native.join([data, 3])
    data.append(1)
    assert sys.getrefcount(data) == before
