"""Messages between the tasks of a graph, made up: headers, shapes, and which of them come when."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from tests.fuzz import drawing
from tests.fuzz.compiling import compile_library

ENVELOPE = struct.Struct("<QQIIIIBB6xIIQI4x")  # of transport.c
VALUE, LARGE, NEWS, BATCH, LENT = range(5)
SMALL = 8192  # bytes of contents that travel with the header
RANKS, HIGHEST_TAG = 4, 1000  # of the stand-in
FLOAT32 = 1
FAILURE = 2**32 - 1  # the number of an edge that no message has
LIMIT = 2**20
ARENA = 4 * 2**20  # bytes of a region, whose first half is its head
BLOCKS = 2 * 2**20  # where its blocks begin
SLOTS = 1024
NUMBER = 56  # where the header has it
MAILBOX, RING = 64, 2**16  # where that for rank 0 lies in a region, and its bytes
COUNTERS = MAILBOX + RANKS * (128 + RING)  # of readers: of each slot one for each rank
STEPS = (1, 2)
FEW_SLOTS = (0, 1, 5)
OFFSETS = (BLOCKS, BLOCKS, BLOCKS + 64, BLOCKS + 8, ARENA - 2**20, ARENA - 64, 64, 0)


class StepError(Exception):
    """What the waits of a failed step raise."""


def end_wait(peers: frozenset[int] | None, step: int, plan: int) -> None:
    """End a wait for what will not come."""
    raise TimeoutError


class Job:
    """A transport over the stand-in.

    Attributes:
        library: the stand-in.
        transport: of the rank 0 of four.
        other: of the rank 1, which shares memory with it, or None.
        news: what others said.
        unwelcome: contents of news for which a StepError is raised.
    """

    def __init__(self, library: ctypes.CDLL, shares: bool = False) -> None:
        self.library = library
        news: list[tuple[int, int, int, bytes]] = []
        self.news = news
        unwelcome: set[bytes] = set()
        self.unwelcome = unwelcome

        def take(*said: Any) -> None:
            if said[3] in unwelcome:
                raise StepError
            news.append(said)

        # Nothing here may refer to this object: a transport takes no part in cyclic collection.
        self.transport, other = (
            native.Transport(
                library._name, 1, 2, 3, -1, rank, RANKS, HIGHEST_TAG,
                take, end_wait, lambda _: StepError(),
            )
            for rank in (0, 1)
        )  # fmt: skip
        self.other = other if shares else None
        if shares:
            ends = self.transport, other
            offered = [end.offer(ARENA) for end in ends]
            for rank, end in enumerate(ends):
                address = offered[1 - rank]
                assert address is not None
                assert end.attach(1 - rank, address)
            for end in ends:
                end.share(True)
            firsts = [native.InArena(end, lambda: np.zeros(10_000, np.uint8))() for end in ends]
            self._regions = [first.ctypes.data - BLOCKS for first in firsts]

    def put(self, message: bytes) -> None:
        """Let a message be there."""
        assert self.library.stand_in_put(message, len(message)) == 0

    def mailbox(self) -> memoryview:
        """Return the mailbox from rank 1: bytes written, at 64 those taken, at 128 messages."""
        start = self._regions[1] + MAILBOX
        return memoryview((ctypes.c_uint8 * (128 + RING)).from_address(start)).cast("B")

    def readers(self, owner: int, slot: int) -> Any:
        """Return the counters of readers that a slot has in rank 0 or 1, one for each rank."""
        start = self._regions[owner] + COUNTERS + 4 * RANKS * slot
        return np.ctypeslib.as_array((ctypes.c_uint32 * RANKS).from_address(start))

    def asked(self) -> int:
        """Return for how many bytes of large contents memory was made."""
        self.library.stand_in_asked.restype = ctypes.c_longlong
        return int(self.library.stand_in_asked())

    def edge(self, step: int, number: int = 1, limit: int = -1) -> Any:
        """Return what receives float32 values in a step; the rendezvous is of this edge alone."""
        meeting = native.Rendezvous(self.transport, limit)
        meeting.step = step
        return native.Edge(meeting, number, FLOAT32, np.dtype(np.float32), -1, limit)


def message(
    shape: tuple[int, ...] = (2,),
    nbytes: int | None = None,
    *,
    step: int = 1,
    edge: int = 1,
    sender: int = 1,
    payload: int = 1,
    dtype: int = FLOAT32,
    kind: int | None = None,
    ndim: int | None = None,
    contents: bytes | None = None,
    loan: tuple[int, int, int] = (0, 0, 0),
    number: int = 0,
) -> bytes:
    """Return a message, by default a sound one of ones or, above 8 KiB, of what announces them."""
    nbytes = 4 * int(np.prod(shape, dtype=object)) if nbytes is None else nbytes
    kind = (LARGE if nbytes > SMALL else VALUE) if kind is None else kind
    ndim = len(shape) if ndim is None else ndim
    head = ENVELOPE.pack(step, nbytes, edge, sender, payload, dtype, kind, ndim, *loan, number)
    if contents is None:
        contents = b"" if kind in (LARGE, LENT) else np.ones(nbytes // 4, np.float32).tobytes()
    return head + struct.pack(f"<{len(shape)}q", *shape) + contents


def batch(
    *messages: bytes, sender: int = 1, contents: bytes | None = None, number: int = 0
) -> bytes:
    """Return a message of several ones of values, padded to 8 bytes each."""
    if contents is None:
        contents = b"".join(each + bytes(-len(each) % 8) for each in messages)
    return message((), len(contents), sender=sender, kind=BATCH, contents=contents, number=number)


class Fuzzer:
    """Two steps, one with a limit, that begin, receive and fail between messages that come."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, source: random.Random) -> str:
        self.library.stand_in_clear()
        self.library.stand_in_set(source.random() < 0.9, source.random() < 0.1)
        job = Job(self.library, source.random() < 0.5)
        edges: dict[int, Any] = {}
        given_up = set()
        number = 0  # of the next message of rank 1
        said = "nothing came"
        for _ in range(source.randrange(1, 12)):
            step = source.choice(STEPS)
            action = source.randrange(16)
            try:
                if action == 0 or (action > 11 and not edges):
                    edges.setdefault(step, job.edge(step, limit=LIMIT if step == 2 else -1))
                elif action == 1:
                    given_up.add(step)
                    job.transport.give_up(step)
                elif action == 2:
                    job.transport.fail(step)
                elif action < 9 and step in edges and step not in given_up:
                    job.transport.progress()
                    job.transport.fail(step)  # a wait for what is not there ends at once
                    value = edges[step]()
                    assert value.dtype == np.float32
                    assert value.nbytes <= LIMIT or step == 1
                    value.reshape(-1)[-1:].tolist()
                    said = "taken"
                else:
                    made = made_up(source, step)
                    if source.random() < 0.9 and len(made) >= ENVELOPE.size:
                        made = made[:NUMBER] + struct.pack("<I", number) + made[NUMBER + 4 :]
                    if job.other is not None and source.random() < 0.5:  # a loan is counted
                        job.readers(source.choice((1, 1, 0)), source.choice(FEW_SLOTS))[0] += 1
                    if job.other is not None and action == 15:
                        spoil(source, job.mailbox())
                    elif job.other is not None and action == 14:
                        job.other.post(0, step, 1, made[: source.randrange(200)])
                    else:
                        job.put(made)
                    job.transport.progress()
                    number += 1
            except (DLBridgeError, MemoryError, StepError, TimeoutError) as error:
                said = f"refused: {type(error).__name__}"
        self.library.stand_in_set(1, 0)  # MPI has no more to write when the transport goes
        for _ in range(20):
            try:
                job.transport.progress()
            except DLBridgeError:
                continue
        return said


def spoil(source: random.Random, mailbox: memoryview) -> None:
    """Write into a mailbox what may be no message, or of any length."""
    (written,) = struct.unpack_from("<I", mailbox)
    for at in range(written % RING, min(written % RING + 64, RING - 8), 8):
        struct.pack_into("<II", mailbox, 128 + at, source.choice((0, 8, 72, 2**32 - 1, at)), at)
    more = source.choice((8, 16, 80, 7, 2**31, RING, RING + 8))
    struct.pack_into("<I", mailbox, 0, (written + more) % 2**32)


def made_up(source: random.Random, step: int) -> bytes:
    """Return a message with something wrong in it, most of the time."""
    shape = source.choice(((), (2,), (0, 3), (40, 60), (2, 3, 4), (300, 1000), (1, 1)))
    given = message(shape, step=step, payload=source.randrange(1, 9))
    if source.random() < 0.3:
        slot = source.choice((*FEW_SLOTS, source.randrange(SLOTS)))
        loan = source.choice((1, 1, 0, 2)), slot, source.choice(OFFSETS)
        given = message(shape, step=step, kind=LENT, loan=loan)
    if source.random() < 0.3:
        parts = [made_up(source, step) for _ in range(source.randrange(4))]
        given = batch(*parts, sender=source.choice((1, 1, 1, 2)))
        return drawing.spoilt(source, given) if source.random() < 0.3 else given
    if source.random() < 0.5:
        return given
    if source.random() < 0.3:
        return drawing.spoilt(source, given)
    fields = list(ENVELOPE.unpack_from(given))
    for _ in range(source.choice((1, 1, 2))):
        i = source.randrange(len(fields))
        most = (2**64, 2**64, *[2**32] * 4, 256, 256, 2**32, 2**32, 2**64, 2**32)[i]
        small = source.random() < 0.5
        fields[i] = source.randrange(5) if small else drawing.number(source) % most
    extents = [
        drawing.number(source) % 2**64 if source.random() < 0.2 else each
        for each in struct.unpack_from(f"<{len(shape)}Q", given, ENVELOPE.size)
    ]
    rest = given[ENVELOPE.size + 8 * len(shape) :]
    return ENVELOPE.pack(*fields) + struct.pack(f"<{len(extents)}Q", *extents) + rest


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer(compile_library(Path(__file__).with_name("mpi_stand_in.c"), folder))
