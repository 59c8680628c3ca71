"""What another rank says of a tensor is data: it is checked before memory is made for it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dlbridge._core import native
from dlbridge.errors import MPIError
from dlbridge.mpi.agreement import digest
from dlbridge.mpi.messages import _read_head
from dlbridge.mpi.values import Kind

FLOAT32 = (2, 32, 1)
HEAD = 64  # bytes of a ballot before its payload
HIGHEST = 1000


def described(shape: tuple[int, ...], dtype: tuple[int, int, int] = FLOAT32) -> bytes:
    return Kind(shape, dtype).pack()


NO_KINDS = {
    "nothing": b"",
    "a part of the head": described(())[:-1],
    "fewer extents than dimensions": described((2, 3))[:-1],
    "2**32 - 1 dimensions": struct.pack("<BBHI", *FLOAT32, 2**32 - 1) + bytes(800),
    "65 dimensions": described((1,) * 65),
    "a negative extent": described((2, -1)),
    "negative extents with a positive product": described((-(2**40), -1)),
    "2**80 elements": described((2**40, 2**40)),
    "2**80 elements beside an empty dimension": described((0, 2**40, 2**40)),
    "no bits": described((2,), (2, 0, 1)),
    "no lanes": described((2,), (2, 32, 0)),
    "no known dtype": described((2,), (255, 32, 1)),
}


@pytest.mark.parametrize("what", NO_KINDS)
def test_descriptions_of_no_tensor_are_refused(what: str) -> None:
    with pytest.raises(MPIError, match="run the same dlbridge"):
        Kind.unpack(NO_KINDS[what])


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (1,) * 64])
def test_descriptions_are_read_as_they_were_written(shape: tuple[int, ...]) -> None:
    data = described(shape)
    assert Kind.unpack(data + b"more") == (Kind(shape, FLOAT32), len(data))


def head(number: int = 1, sender: int = 3, tag: int = 5) -> bytes:
    return struct.pack("<IIQ", number, sender, tag) + described((2,)) + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        head()[:15],
        head(sender=2),
        head(sender=2**32 - 1),
        head(number=HIGHEST + 1),
        head(number=2**31),
        head(tag=HIGHEST + 1),
        head(tag=2**64 - 1),
    ],
)
def test_heads_that_no_rank_sends_are_refused(data: bytes) -> None:
    """MPI would end the job for such a rank or tag."""
    with pytest.raises(MPIError, match="rank 3"):
        _read_head(memoryview(data), 3, HIGHEST)


def test_heads_are_read() -> None:
    number, sender, tag, kind, contents = _read_head(memoryview(head()), 3, HIGHEST)
    assert (number, sender, tag, kind) == (1, 3, 5, Kind((2,), FLOAT32))
    assert contents == bytes(8)


def ballot(call: str, kind: Kind | None, payload: bytes = b"", combine: Any = None) -> Any:
    return native.Ballot(None, digest(call, ""), kind, payload, combine)


@pytest.mark.parametrize("size", [0, 7, 9, 2**32 - 1])
def test_a_ballot_of_another_size_is_no_agreement(size: int) -> None:
    """Both are of the same call and kind, so both payloads are reduced into one."""

    def combine(own: memoryview, other: memoryview, _: bool) -> None:
        own[:] = other

    kind = Kind((8,), (1, 8, 1))
    own = ballot("allreduce", kind, bytes(8), combine)
    other = bytearray(ballot("allreduce", kind, bytes(8), combine).sealed())
    struct.pack_into("<I", other, 2, size)
    own.merge(other)
    assert not own.agreed


def test_a_ballot_that_says_more_than_came_is_no_agreement() -> None:
    own = ballot("bcast", None)
    other = bytearray(ballot("bcast", None, bytes(8)).sealed())
    struct.pack_into("<I", other, 2, len(other) - HEAD + 1)
    own.merge(other)
    assert not own.agreed


@pytest.mark.parametrize("size", [0, 1, HEAD - 1])
def test_a_short_ballot_is_no_agreement(size: int) -> None:
    own = ballot("barrier", None)
    own.merge(ballot("barrier", None).sealed()[:size])
    assert not own.agreed


KINDS = [
    Kind(shape, (code, bits, lanes))
    for shape in [(), (0,), (1,), (2, 3), (3, 2), (6,), (6, 1), (1, 6), (2**40,), (1,) * 64]
    for code, bits, lanes in [(2, 32, 1), (2, 64, 1), (0, 32, 1), (0, 32, 2)]
]


def test_ballots_of_different_shapes_or_dtypes_do_not_agree() -> None:
    for one in KINDS:
        for two in KINDS:
            own = ballot("allreduce", one)
            own.merge(ballot("allreduce", two).sealed())
            assert own.agreed == (one == two), (one, two)


def test_ballots_take_the_payload_of_the_rank_that_has_one() -> None:
    own = ballot("bcast", None)
    own.merge(ballot("bcast", Kind((2,), FLOAT32), b"contents").sealed())
    assert own.agreed
    assert own.payload == b"contents"
    own.merge(ballot("bcast", Kind((3,), FLOAT32)).sealed())
    assert not own.agreed, "the kind of the rank that knew it counts from then on"
