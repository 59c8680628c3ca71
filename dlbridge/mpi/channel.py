"""A communicator as dlbridge uses it: private copies of it, and whose turn it is."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, MPIError, MPITimeoutError, UnsupportedTypeError
from dlbridge.mpi import quick
from dlbridge.mpi.engine import (
    CLOSING,
    LOOK,
    Deadline,
    Engine,
    Operation,
    Request,
    Steps,
    deadline,
    engine,
)
from dlbridge.mpi.job import VAIN, Nap, named
from dlbridge.signals import not_from_handler

P = ParamSpec("P")
MOST_DIRECT = 16
"""Ranks up to which collectives that copy send straight from rank to rank: among more, MPI's own
need fewer messages."""


class Channel:
    """Private communicators over the processes of one that the user has.

    Attributes:
        collective, messages: copies of it, the second for sent tensors with what they are, which
            are received by any tag.
        payloads: for large sent tensors alone: the first copy, under tags of their own.
        rank, size: of this process in it, and its number of processes.
        everybody: its ranks in the job.
        peers: its processes, for C.
        is_near: whether all of them are on this host.
        key: 16 bytes that all of them have of it, and of no other.
        quick: the calls that C makes over it.
    """

    def __init__(
        self, engine: Engine, comm: Any, copies: Sequence[Any], is_near: bool, key: bytes
    ) -> None:
        self.engine = engine
        self.mpi: Any = engine.job.mpi
        self.collective, self.messages = copies
        self.payloads = self.collective
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.members = _members(engine, comm)
        self.everybody = frozenset(self.members)
        self.highest_tag: int = self.mpi.COMM_WORLD.Get_attr(self.mpi.TAG_UB)
        self.peers = native.Peers(
            self.mpi.__file__,
            self._handle(self.collective),
            self._handle(self.messages),
            self._handle(self.payloads),
            self._handle(self.mpi.BYTE),
            self.rank,
            self.size,
            self.highest_tag,
            self.mpi.ANY_TAG,
            self.size <= MOST_DIRECT,
            is_near,
        )
        self.is_near = is_near
        self.key = key
        self.quick = quick.UNKNOWN
        self._queue: deque[Operation] = deque()
        engine.job.watched.append(self.messages)
        engine.channels.append(self)

    def _handle(self, of: Any) -> int:
        handle: int = self.mpi._handleof(of) & (1 << 64) - 1
        return handle

    def operation(self, call: str, peers: frozenset[int] | None = None) -> Operation:
        """Return a new operation that needs `peers`, without them everybody."""
        made = Operation(call, self.everybody if peers is None else peers)
        made.channel = self
        return made

    def close(self) -> None:
        """Free the copies when the user frees the communicator, as MPI has few of them.

        While calls are in progress they stay: waiting for the last of these frees them.
        """
        if self.engine.uses(self):
            CLOSING.append(self)
        else:
            self.free()

    def free(self) -> None:
        """Free the copies, when no call is in progress; MPI libraries do so without other ranks."""
        self.engine.job.watched.remove(self.messages)
        self.engine.channels.remove(self)
        self.engine.freed.append((self.key, self.peers.calls))
        for each in (self.collective, self.messages):
            each.Free()

    def in_turn(self, operation: Operation, steps: Steps) -> Steps:
        """Run a collective that may post another one: those are posted in the order of calls.

        All ranks make the calls in one order, but learn in any order that they agree.
        """
        self._queue.append(operation)
        self.peers.turns = len(self._queue)
        try:
            return (yield from steps)
        finally:
            self.pass_turn(operation)

    def turn(self, operation: Operation) -> Steps:
        """Wait until all calls before have posted what they post."""
        while self._queue[0] is not operation:
            yield self._queue[0]

    def pass_turn(self, operation: Operation) -> None:
        """Say that nothing more will be posted."""
        if operation in self._queue:
            self._queue.remove(operation)
            self.peers.turns = len(self._queue)

    def memory(self, tensor: native.TensorBase, start: int = 0, count: int | None = None) -> Any:
        """Return the bytes of a compact tensor for mpi4py, without a Python buffer in between."""
        nbytes = tensor.nbytes - start if count is None else count
        return self.mpi.buffer.fromaddress(tensor.data_ptr + start if nbytes else 0, nbytes)


_KEYS: list[int] = []  # of the channel that a communicator has, and of the copies for it
_COPIES = 2
_MAKING = registry.lock()


class _Making:
    """What a channel is made of, step by step: copies of a communicator, then hosts and a key.

    Attributes:
        copies: those that are complete.
    """

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self._next: Any = None  # the next copy, or what all ranks say
        self._said = np.frombuffer(_HOST.tobytes() + os.urandom(_HOST.size), np.uint8)
        self._request: Any = None
        self._is_complete = False

    def advance(self, mpi: Any, comm: Any) -> bool:
        """Advance; return whether everything is complete."""
        if self._request is not None:
            if not self._request.Test():
                return False
            self._request = None
            if len(self.copies) == _COPIES:
                self._is_complete = True
            else:
                self.copies.append(self._next)
        if self._is_complete:
            return True
        if len(self.copies) < _COPIES:
            self._next, self._request = comm.Idup()
            return False
        self._next = np.empty((comm.Get_size(), self._said.size), np.uint8)
        self._request = self.copies[0].Iallgather([self._said, mpi.BYTE], [self._next, mpi.BYTE])
        return False

    @property
    def is_near(self) -> bool:
        """Whether all ranks are on this host."""
        return bool((self._next[:, : _HOST.size] == _HOST).all())

    @property
    def key(self) -> bytes:
        """What no other channel of these ranks has."""
        return bytes(self._next[0, _HOST.size :])


def _host() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return 16 bytes that differ between hosts."""
    name = os.uname().nodename
    try:
        name += Path("/proc/sys/kernel/random/boot_id").read_text()
    except not_from_handler(OSError):
        pass  # not Linux
    return np.frombuffer(blake2b(name.encode(), digest_size=16).digest(), np.uint8)


_HOST = _host()


def _go_on_making(running: Engine, comm: Any) -> Channel | None:
    """Return the channel of a communicator, None: its copies are not complete.

    Threads that need it at once make it together, and what an interrupt ends, a later call goes on
    with: all ranks make the copies once.
    """
    mpi = running.job.mpi
    with _MAKING:
        if not _KEYS:
            _KEYS.append(mpi.Comm.Create_keyval(delete_fn=_close))
            _KEYS.append(mpi.Comm.Create_keyval())
        found: Channel | None = comm.Get_attr(_KEYS[0])
        if found is not None:
            return found
        making: _Making | None = comm.Get_attr(_KEYS[1])
        if making is None:
            running.free_unused()
            comm.Set_attr(_KEYS[1], making := _Making())
        try:
            if not making.advance(mpi, comm):
                return None
        except mpi.Exception as error:
            comm.Delete_attr(_KEYS[1])
            for copy in making.copies:
                copy.Free()
            raise MPIError(
                f"mpi: MPI has no more communicators, of which dlbridge needs {_COPIES} for each "
                "that it is given; call Free() of those that are not needed, on all their ranks, "
                f"and make the call again ({error})"
            ) from error
        found = Channel(running, comm, making.copies, making.is_near, making.key)
        comm.Set_attr(_KEYS[0], found)
        if mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            of = None if comm == mpi.COMM_WORLD else found
            found.quick = quick.over(of, found.peers, running.active, running.go_on, Request)
        return found


def channel(call: str, comm: Any = None, limit: Deadline | None = None) -> Channel:
    """Return the channel over a communicator of mpi4py, None for all processes of the job.

    A channel is returned as it is.

    Raises:
        UnsupportedTypeError: it is no intracommunicator of mpi4py.
        MPIError: this process was forked from a member of the job, or MPI was finalised; or
            another one has ended without a call over the communicator.
        MPITimeoutError: other processes have not made a call over it in time.
    """
    running = engine()
    running.job.check_process(call)
    mpi = running.job.mpi
    if isinstance(comm, Channel):
        return comm
    if comm is None:
        comm = mpi.COMM_WORLD
    elif not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise UnsupportedTypeError(
            f"{call}: comm must be an intracommunicator of mpi4py of which this process is a "
            f"member, or None for all processes, got {comm!r}"
        )
    found = comm.Get_attr(_KEYS[0]) if _KEYS else None
    nap = Nap(0.001)
    began = time.monotonic()
    next_look = began + LOOK
    while found is None:
        found = native.defer_signals(_go_on_making, running, comm)
        if found is None and nap.rest() and time.monotonic() > next_look:
            _look_for_members(call, running, comm, began, limit)
            next_look = time.monotonic() + LOOK
    assert isinstance(found, Channel)
    return found


def call_of(comm: Any, name: str) -> Callable[..., Any]:
    """Return the call of this name that C makes over a communicator."""
    made = quick.UNKNOWN
    if _KEYS and isinstance(comm, engine().job.mpi.Intracomm) and comm:
        found = comm.Get_attr(_KEYS[0])
        if found is not None:
            made = found.quick
    call: Callable[..., Any] = getattr(made, name)
    return call


def in_time(call: str, comm: Any, timeout: Any) -> Deadline | None:
    """Return until when a call has to be over, with the channel made by then.

    Raises:
        ArgumentError: `timeout` is no number of seconds.
    """
    limit = deadline(call, timeout)
    if limit is not None:
        channel(call, comm, limit)
    return limit


def _members(running: Engine, comm: Any) -> tuple[int, ...]:
    world = running.job.mpi.COMM_WORLD.Get_group()
    return tuple(comm.Get_group().Translate_ranks(None, world))


def _look_for_members(
    call: str, running: Engine, comm: Any, began: float, limit: Deadline | None
) -> None:
    """Give up where the first use of a communicator waits in vain; a later call goes on."""
    job = running.job
    native.defer_signals(job.notice)
    others = frozenset(_members(running, comm)) - {job.rank}
    gone = job.gone(others)  # a rank that has come to its end takes no part any more
    gone |= {rank for rank in others if job.waits_in_vain(frozenset((rank,)), began, VAIN)}
    if gone:
        raise MPIError(
            f"{call}: the first use of a communicator waits for {named(gone)}, which has ended; "
            "let every rank of it make the same calls"
        )
    if limit is not None and time.monotonic() > limit.end:
        raise MPITimeoutError(
            f"{call}: not all ranks of comm have made their first call with it after "
            f"{limit.seconds} s; nothing of this call is under way, and a later one goes on"
        )


def begins(
    call: str,
) -> Callable[[Callable[Concatenate[Channel, P], Request]], Callable[Concatenate[Any, P], Request]]:
    """Decorate what begins a call: for a communicator, it gets the channel.

    An interrupt comes before or after it: of what is half begun, other ranks would wait for the
    rest.
    """

    def decorate(
        begin: Callable[Concatenate[Channel, P], Request],
    ) -> Callable[Concatenate[Any, P], Request]:
        @wraps(begin)
        def run(comm: Any, /, *args: P.args, **kwargs: P.kwargs) -> Request:
            return native.defer_signals(begin, channel(call, comm), *args, **kwargs)

        return run

    return decorate


def _close(comm: Any, _key: int, found: Channel) -> None:
    """Follow a communicator that is freed; that of all processes ends with MPI."""
    if comm != found.mpi.COMM_WORLD:
        found.close()


def check_rank(call: str, name: str, rank: Any, size: int) -> int:
    """Return a rank that exists.

    Raises:
        ArgumentError: it does not.
    """
    if isinstance(rank, bool) or not hasattr(rank, "__index__"):
        raise ArgumentError(f"{call}: {name} must be a rank, an integer, got {rank!r}")
    number = int(rank.__index__())
    if not 0 <= number < size:
        raise ArgumentError(f"{call}: {name} must be a rank from 0 to {size - 1}, got {number}")
    return number
