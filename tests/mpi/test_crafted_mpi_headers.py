"""What another rank says of a tensor is data: it is checked before memory is made for it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.ballots import Calls
from fuzz.ballots import ballot as said_of
from fuzz.compiling import compile_library

from dlbridge._core import native
from dlbridge.errors import MPIError
from dlbridge.mpi.agreement import digest
from dlbridge.mpi.messages import _read_head
from dlbridge.mpi.quick import ALLGATHER, BARRIER
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
}


@pytest.mark.parametrize("what", NO_KINDS)
def test_descriptions_of_no_tensor_are_refused(what: str) -> None:
    with pytest.raises(MPIError, match="run the same dlbridge"):
        Kind.unpack(NO_KINDS[what])


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (1,) * 64])
def test_descriptions_are_read_as_they_were_written(shape: tuple[int, ...]) -> None:
    data = described(shape)
    assert Kind.unpack(data + b"more") == (Kind(shape, FLOAT32), len(data))


def test_a_dtype_that_this_dlpack_lacks_is_described_by_its_numbers() -> None:
    kind, _ = Kind.unpack(described((2,), (255, 32, 1)))
    assert (kind.shape, kind.dtype) == ((2,), (255, 32, 1))


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
    return native.Ballot(None, digest(call, ""), kind, payload, combine, takes=combine is None)


@pytest.mark.parametrize("size", [0, 7, 9, 2**32 - 1])
def test_a_ballot_of_another_size_is_refused(size: int) -> None:
    """Both are of the same call and kind, so both payloads are reduced into one."""

    def combine(own: memoryview, other: memoryview, _: bool) -> None:
        own[:] = other

    kind = Kind((8,), (1, 8, 1))
    own = ballot("allreduce", kind, bytes(8), combine)
    other = bytearray(ballot("allreduce", kind, bytes(8), combine).sealed())
    struct.pack_into("<I", other, 2, size)
    with pytest.raises(MPIError, match="run the same dlbridge"):
        own.merge(other)
    assert not own.agreed


@pytest.mark.parametrize("more", [1, -1, 2**31])
def test_a_ballot_that_says_another_size_than_came_is_refused(more: int) -> None:
    own = ballot("bcast", None)
    other = bytearray(ballot("bcast", None, bytes(8)).sealed())
    struct.pack_into("<I", other, 2, len(other) - HEAD + more)
    with pytest.raises(MPIError, match="run the same dlbridge"):
        own.merge(other)
    assert not own.agreed


def test_a_ballot_with_a_payload_where_no_rank_has_one_is_refused() -> None:
    own = native.Ballot(None, digest("barrier", ""), None, b"")
    with pytest.raises(MPIError, match="run the same dlbridge"):
        own.merge(ballot("barrier", None, b"contents").sealed())
    assert own.payload == b""


def test_a_second_payload_where_one_rank_has_one_is_refused() -> None:
    own = ballot("bcast", None, b"contents")
    with pytest.raises(MPIError, match="run the same dlbridge"):
        own.merge(ballot("bcast", None, b"contents").sealed())
    assert own.payload == b"contents"


@pytest.mark.parametrize("size", [0, 1, HEAD - 1])
def test_a_short_ballot_is_refused(size: int) -> None:
    own = ballot("barrier", None)
    with pytest.raises(MPIError, match="run the same dlbridge"):
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


# ---- replies, for a rank beyond the power of two, to calls that C makes ----


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).resolve().parents[1] / "fuzz" / "mpi_stand_in.c"
    return compile_library(source, tmp_path_factory.mktemp("mpi"))


X = np.array([1, 2, 3, 4], np.float32)
SAID = {  # the call, its arguments as ranks compare them, those for C, and the payload
    "allreduce": ("op='sum'", (X, "sum", None), lambda size: X.tobytes()),
    "reduce": ("op='sum', root=2", (X, "sum", 2, None), lambda size: X.tobytes()),
    "allgather": ("", (X, None, ALLGATHER), lambda size: X.tobytes() * size),
    "bcast": (
        *("root=0", (X, 0, "numpy", None)),
        lambda size: Kind(X.shape, FLOAT32).pack() + X.tobytes(),
    ),
    "barrier": ("", (BARRIER,), lambda size: b""),
}


@pytest.mark.parametrize("is_late", [False, True], ids=["for C", "for Python"])
@pytest.mark.parametrize("size", [3, 5, 6])
@pytest.mark.parametrize("name", SAID)
class TestReplies:
    """What the partner of the last rank says that all have agreed on."""

    def call(self, calls: Calls, name: str, reply: bytes, is_late: bool) -> Any:
        calls.late.append(reply) if is_late else calls.put(reply)
        return getattr(calls.quick, name)(*SAID[name][1])

    def test_sound_ones_are_taken(self, library: Any, name: str, size: int, is_late: bool) -> None:
        arguments, _, payload = SAID[name]
        kind = None if name == "barrier" else Kind(X.shape, FLOAT32)
        reply = said_of(name, arguments, kind, payload(size))
        result = self.call(Calls(library, size - 1, size), name, reply, is_late)
        if name in ("allreduce", "bcast") or (name == "reduce" and size == 3):
            assert result.tolist() == X.tolist()
        elif name == "allgather":
            assert result.tolist() == [X.tolist()] * size
        else:
            assert result is None

    @pytest.mark.parametrize("nbytes", [1, 8, 17, 17408])
    def test_those_with_another_payload_are_refused(
        self, library: Any, name: str, size: int, is_late: bool, nbytes: int
    ) -> None:
        kind = None if name == "barrier" else Kind(X.shape, FLOAT32)
        reply = said_of(name, SAID[name][0], kind, b"\x41" * nbytes)
        with pytest.raises(MPIError, match=r"run the same dlbridge on all ranks"):
            self.call(Calls(library, size - 1, size), name, reply, is_late)

    def test_those_of_another_call_are_refused(
        self, library: Any, name: str, size: int, is_late: bool
    ) -> None:
        _, _, payload = SAID[name]
        reply = said_of("alltoall", "", None, payload(size))
        with pytest.raises(MPIError, match=r"run the same dlbridge on all ranks"):
            self.call(Calls(library, size - 1, size), name, reply, is_late)


@pytest.mark.parametrize("is_late", [False, True], ids=["for C", "for Python"])
@pytest.mark.parametrize("name", sorted(SAID.keys() - {"barrier"}))
def test_a_reply_without_a_payload_is_refused(library: Any, name: str, is_late: bool) -> None:
    calls = Calls(library, 2, 3)
    reply = said_of(name, SAID[name][0], Kind(X.shape, FLOAT32))
    calls.late.append(reply) if is_late else calls.put(reply)
    with pytest.raises(MPIError, match=r"run the same dlbridge on all ranks"):
        getattr(calls.quick, name)(*SAID[name][1])


@pytest.mark.parametrize("is_late", [False, True], ids=["for C", "for Python"])
def test_a_bcast_that_describes_another_tensor_than_was_agreed_on_is_refused(
    library: Any, is_late: bool
) -> None:
    calls = Calls(library, 2, 3)
    other = Kind((2,), (2, 64, 1)).pack() + X.tobytes()  # of as many bytes
    reply = said_of("bcast", "root=0", Kind(X.shape, FLOAT32), other)
    calls.late.append(reply) if is_late else calls.put(reply)
    with pytest.raises(MPIError, match=r"bcast: the root announces float64\[2\]"):
        calls.quick.bcast(X, 0, "numpy", None)


def test_values_of_another_size_than_was_agreed_on_are_refused(library: Any) -> None:
    x = np.ones(2000, np.float32)
    for values in (bytes(7996), bytes(8004)):
        calls = Calls(library, 2, 3)
        calls.put(said_of("allreduce", "op='sum'", Kind(x.shape, FLOAT32)))
        calls.put(values)
        with pytest.raises(MPIError, match="rank 0"):
            calls.quick.allreduce(x, "sum", None)
