"""What other ranks say of a collective, and heads of messages, made up, for the calls that C makes.

The rank is any of two, three, five or six, so that some have a partner that speaks for them. What
comes late is taken in by Python, as after a call that takes long.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.mpi import collectives, messages, reductions
from dlbridge.mpi.agreement import digest
from dlbridge.mpi.engine import Operation
from dlbridge.mpi.quick import ALLGATHER, ALLTOALL, BARRIER, QUICK, REDUCE_SCATTER, learn_type
from dlbridge.mpi.values import Kind
from tests.fuzz import drawing
from tests.fuzz.compiling import compile_library

BYTE, COLLECTIVE, HEADS, CONTENTS = 3, 4, 5, 6  # handles; those of the stand-in that take messages
HIGHEST_TAG = 1000
HEAD = 64  # bytes of a ballot before its payload
SIZES = (2, 3, 5, 6)
OPS = ("sum", "max", "prod")
SMALL, LARGE = 4, 2000  # elements of float32: in the ballot, and behind it
FLOAT32 = (2, 32, 1)
CALLS = (
    "allreduce",
    "reduce",
    "reduce_scatter",
    "alltoall",
    "allgather",
    "bcast",
    "barrier",
    "recv",
)


class RestError(Exception):
    """The ranks do not agree, or the values are too large: MPI itself has to do the rest."""


class _Over:
    """What a Channel is to a call that Python goes on with, without MPI."""

    def __init__(self, peers: native.Peers, rank: int, size: int, late: list[bytes], put: Any):
        self.peers, self.rank, self.size = peers, rank, size
        self.highest_tag = HIGHEST_TAG
        self.members = tuple(range(size))
        self.everybody = frozenset(self.members)
        self.engine = self
        self._late, self._put = late, put
        self._steps: Any = None

    def operation(self, call: str, peers: frozenset[int] | None = None) -> Operation:
        return Operation(call, self.everybody if peers is None else peers)

    def in_turn(self, _operation: Operation, steps: Any) -> Any:
        return steps

    def turn(self, _operation: Operation) -> Any:
        raise RestError

    def memory(self, _tensor: Any) -> Any:
        raise RestError

    def start(self, _operation: Operation, steps: Any) -> Any:
        self._steps = steps
        return self

    mpi = payloads = SimpleNamespace(BYTE=None, Status=SimpleNamespace, PROC_NULL=-1)

    def wait_or_cancel(self, _timeout: float | None) -> Any:
        """Take in what is late, and then an empty message: requests of MPI must end."""
        try:
            while True:
                next(self._steps)
                self._put(self._late.pop(0) if self._late else b"")
        except StopIteration as end:
            return end.value


class Calls:
    """Calls of one rank that C makes, over the stand-in.

    Attributes:
        quick: makes them.
        late: messages that come when C has given up waiting.
    """

    def __init__(self, library: ctypes.CDLL, rank: int, size: int) -> None:
        library.stand_in_clear()
        library.stand_in_set(1, 0)
        library.stand_in_set_ranks(size)
        self._library, self.rank, self.size = library, rank, size
        self.late: list[bytes] = []
        learn_type(np.ndarray, "numpy")
        self.quick = native.Quick()
        self.quick.peers = native.Peers(
            library._name, COLLECTIVE, HEADS, CONTENTS, BYTE, rank, size, HIGHEST_TAG, -1
        )
        self.quick.types.update(QUICK.types)
        known = self.quick.calls
        for op in OPS:
            known[op] = reductions.learn(op, op, digest("allreduce", f"op={op!r}"))
            scatter = digest("reduce_scatter", f"op={op!r}")
            known[op, REDUCE_SCATTER] = reductions.learn((op, REDUCE_SCATTER), op, scatter)
            for root in range(size):
                said = digest("reduce", f"op={op!r}, root={root}")
                known[op, root] = reductions.learn((op, root), op, said)
        for root in range(size):
            known[root] = digest("bcast", f"root={root}")
        for name in (ALLGATHER, ALLTOALL, BARRIER):
            known[name] = digest(name, "")
        over = _Over(self.quick.peers, rank, size, self.late, self.put)
        begin = {
            "allreduce": collectives.iallreduce,
            "reduce": collectives.ireduce,
            "reduce_scatter": collectives.ireduce_scatter,
            "allgather": collectives.iallgather,
            "alltoall": collectives.ialltoall,
            "bcast": collectives.ibcast,
            "barrier": collectives.ibarrier,
            "recv": messages.go_on_receiving,
        }
        self.quick.resume = partial(_resume, begin, over)

    def put(self, message: bytes) -> None:
        """Let a message be there."""
        self._library.stand_in_put(message, len(message))


def _resume(begin: dict[str, Any], over: _Over, name: str, state: Any, *given: Any) -> Any:
    function = begin[name].__wrapped__
    if name == "recv":
        return function(over, state, *given)
    if name == "barrier":
        return function(over, state)
    if name in ("bcast", "reduce"):
        return function(over, *given[:-1], out=given[-1], state=state)
    return function(over, *given, state=state)


def ballot(
    call: str, arguments: str = "", kind: Kind | None = None, payload: bytes = b"", **changes: int
) -> bytes:
    """Return what a rank says that makes this call, but for some fields of the header."""
    said = native.Ballot(None, digest(call, arguments), kind, payload, takes=True).sealed()
    agreed, known, size = struct.unpack_from("<BBI", said)
    fields = {"agreed": agreed, "known": known, "size": size} | changes
    return struct.pack("<BBI", *fields.values()) + said[6:]


def head(kind: Kind, contents: bytes, *, sender: int = 0, number: int = 1, tag: int = 0) -> bytes:
    """Return the first message of a send."""
    return messages._FORM.pack(number, sender, tag) + kind.pack() + contents


class Fuzzer:
    """One call of one rank, with what the others say of it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, source: random.Random) -> str:
        size = source.choice(SIZES)
        calls = Calls(self.library, source.randrange(size), size)
        x = np.full(source.choice((SMALL, SMALL, 1, LARGE)), 1.5, np.float32)
        name, op, root = source.choice(CALLS), source.choice(OPS), source.randrange(size)
        if name in ("alltoall", "reduce_scatter"):
            x = np.full((size, x.size // size), 1.5, np.float32)
        for made in self._said(source, calls, name, op, root, x):
            if source.random() < 0.1 or calls.late:
                calls.late.append(made)
            else:
                calls.put(made)
        try:
            result = self._call(source, calls, name, op, root, x)
        except (DLBridgeError, MemoryError, RestError) as error:
            return f"refused: {type(error).__name__}"
        if isinstance(result, np.ndarray):
            assert name in ("bcast", "recv") or result.dtype == np.float32
            assert name not in ("allreduce", "alltoall") or result.shape == x.shape
            assert name != "reduce_scatter" or result.shape == x.shape[1:]
            assert name != "allgather" or result.shape == (size, *x.shape)
            result.tobytes()
        return "declined" if result is False else f"made: {name}"

    @staticmethod
    def _call(source: random.Random, calls: Calls, name: str, op: str, root: int, x: Any) -> Any:
        quick = calls.quick
        if name == "recv":
            out = x if source.random() < 0.5 else None
            return quick.recv(0, source.choice((0, None)), "numpy", out)
        if name == "bcast":
            given = x if calls.rank == root or source.random() < 0.5 else None
            return quick.bcast(given, root, "numpy", None)
        shape = {"allgather": (calls.size, *x.shape), "reduce_scatter": x.shape[1:]}
        out = source.choice((None, np.empty(shape.get(name, x.shape), np.float32), x))
        given = {
            "allreduce": (x, op, out),
            "reduce": (x, op, root, None),
            "reduce_scatter": (x, op, out, REDUCE_SCATTER),
            "allgather": (x, out, ALLGATHER),
            "alltoall": (x, out, ALLTOALL),
            "barrier": (BARRIER,),
        }[name]
        return getattr(quick, name)(*given)

    def _said(
        self, source: random.Random, calls: Calls, name: str, op: str, root: int, x: Any
    ) -> Iterator[bytes]:
        kind = Kind(x.shape, FLOAT32)
        if name == "recv":
            small = x.tobytes() if x.nbytes <= native.MESSAGE_MOST else b""
            yield self._spoilt(source, head(kind, small))
            return
        arguments, payload = "", b""
        if name in ("allreduce", "reduce", "reduce_scatter"):
            arguments = f"op={op!r}" + (f", root={root}" if name == "reduce" else "")
            is_large = calls.quick.peers.moves_values(x.nbytes)
            if name == "reduce_scatter":
                is_large = x.nbytes > native.ROWS_MOST
            payload = b"" if is_large else x.tobytes()
        elif name in ("allgather", "alltoall"):
            row = x[0] if name == "alltoall" and calls.size == 2 else x
            rows = calls.size * row.nbytes
            payload = bytes(rows if rows <= native.GATHERED_MOST else 0)
        elif name == "bcast":
            arguments, payload = f"root={root}", kind.pack() + x.tobytes()
        for _ in range(source.randrange(1, 5)):
            payload_ = payload if name != "bcast" or source.random() < 0.5 else b""
            if name in ("reduce_scatter", "allgather", "alltoall"):  # some rows, in each round
                count = source.randrange(1, calls.size + 1)
                payload_ = payload_[: count * (len(payload) // calls.size)]
            known = None if name == "barrier" else kind
            made = self._spoilt(source, ballot(name, arguments, known, payload_))
            yield made[: x.nbytes] if x.size == LARGE else made
        for _ in range(3):  # values; MPI keeps the memory of longer ones
            yield bytes(max(0, x.nbytes - source.choice((0, 0, 0, 0, 4))))

    @staticmethod
    def _spoilt(source: random.Random, said: bytes) -> bytes:
        """Return a message, most of the time with the header as it should be."""
        how = source.randrange(12)
        made = bytearray(said)
        if how == 0:
            return drawing.spoilt(source, said)
        if how == 1 and len(made) >= HEAD:  # another size, which is there
            size = source.choice((0, 1, 3, 17, 1000, 17408))
            struct.pack_into("<I", made, 2, size)
            return bytes(made[:HEAD]) + b"\x41" * size
        if how == 2 and len(made) >= HEAD:  # and which is not
            struct.pack_into("<I", made, 2, drawing.number(source) % 2**32)
        elif how == 3:
            return bytes(made[: source.randrange(len(made) + 1)])
        elif how == 4 and len(made) > HEAD + 20:  # in a description
            struct.pack_into("<Q", made, HEAD + 8, drawing.number(source) % 2**64)
        return bytes(made)


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer(compile_library(Path(__file__).with_name("mpi_stand_in.c"), folder))
