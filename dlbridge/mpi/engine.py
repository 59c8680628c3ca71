"""Operations under way: generators, the requests that users wait for, and the waiting itself.

An operation is a generator that yields requests of MPI and goes on when they are complete; what
it returns is its result. It may also yield an operation that has to go on first. A thread that
waits advances, under one lock, the operation that it waits for, and between two looks at that a few
of the others in turn: however many are under way, a look costs the same. Meanwhile signals are
deferred: an interrupt ends a wait, never a step.
"""

from __future__ import annotations

import math
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from dlbridge import registry
from dlbridge._core import native
from dlbridge.calls import with_advice
from dlbridge.errors import ArgumentError, DLBridgeError, MPIError, MPITimeoutError
from dlbridge.mpi.job import GRACE, SLOWEST, VAIN, Job, Nap, end_together, named
from dlbridge.signals import not_from_handler

LOOK = 0.01  # seconds after which a wait looks who has left,
_DEFERRED = 0.001  # and after which it sees an interrupt
_OTHERS = 16  # operations that go on between two looks at the one that is waited for,
_OTHERS_ASLEEP = 128  # and after a nap
_FREED = 2048  # communicators that are freed, of which others are told: MPI has about as many
_TOGETHER = 64  # operations that `wait_some` looks at between two looks at interrupts

Steps = Generator[Any, None, Any]

CLOSING: list[Any] = []
"""Channels whose communicator was freed while calls were in progress, to be freed after these."""


class Deadline(NamedTuple):
    """When a wait gives up.

    Attributes:
        seconds: how long it may take in total, for texts.
        end: the time of `time.monotonic` at which it is over.
    """

    seconds: float
    end: float


class Operation:
    """One call under way.

    Attributes:
        call: its name, for texts.
        channel: the communicator's, or None.
        peers: the ranks of the job without which it cannot end.
        nbytes: what it moves, for how long a wait stays awake.
        since: the time of `time.monotonic` at which it began.
        kept: memory that MPI may still read or write.
        requests: requests of MPI not known to be complete.
        after: an operation that has to go on before this one does, or None.
        may_cancel: whether its request is a receive that MPI can take back.
        receive: the part of it that may be such a receive, None for itself.
        parts: the operations that it waits for, without peers of its own.
        ballot: by which all ranks of its channel agree, or None.
        posted: a receive that C has posted, None where its request is in `requests`.
        any_peer: whether one of the peers is enough.
        status: what MPI writes of the request under way, or None.
        source, tag: of a received message.
    """

    __slots__ = (
        "after", "any_peer", "ballot", "call", "channel", "done", "error", "kept", "may_cancel",
        "nbytes", "parts", "peers", "posted", "receive", "requests", "result", "since", "source",
        "status", "steps", "tag",
    )  # fmt: skip

    def __init__(self, call: str, peers: frozenset[int]) -> None:
        self.call = call
        self.channel: Any = None
        self.peers = peers
        self.any_peer = self.may_cancel = False
        self.source = self.tag = -1
        self.nbytes = 0
        self.since = time.monotonic()
        self.kept: list[Any] = []
        self.requests: tuple[Any, ...] = ()
        self.after: Operation | None = None
        self.receive: Operation | None = None
        self.parts: tuple[Operation, ...] = ()
        self.ballot: native.Ballot | native.TreeBallot | None = None
        self.posted: native.Posted | None = None
        self.status: Any = None
        self.done = False
        self.error: BaseException | None = None
        self.result: Any = None
        self.steps: Steps | None = None

    def advance(self) -> bool:
        """Go on as far as completed requests allow; return whether it is over."""
        assert self.steps is not None
        try:
            while self._has_come():
                self.requests, self.after = (), None
                made = next(self.steps)
                if made is None or isinstance(made, Operation):  # not its turn yet
                    self.after = made
                    return False
                self.requests = made
        except StopIteration as end:  # never from a handler: see PEP 479
            self.result = end.value
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        else:
            return False
        self.done, self.steps = True, None
        return True

    def _has_come(self) -> bool:
        return all(each.Test(self.status) for each in self.requests)


class Engine:
    """All operations of this process.

    Attributes:
        active: what is under way; first what goes on next.
        others: functions that advance other messages, and return whether some are under way: a
            process that ends waits for them as well.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._lock = registry.lock()
        self.active: OrderedDict[Operation, None] = OrderedDict()
        self._broken: list[Operation] = []  # MPI may still use their memory
        self.others: list[Callable[[], bool]] = []
        self.channels: list[Any] = []  # those that are open
        self.freed: deque[tuple[bytes, int]] = deque(maxlen=_FREED)  # their keys and calls
        job.calls = self._calls
        end_together(job, self._advance_everything)

    def start(self, operation: Operation, steps: Steps) -> Request:
        """Begin an operation, in a function that `channel.begins` decorates."""
        made = self.request(operation, steps)  # if this raises MemoryError, nothing has begun
        self.begin(operation)
        return made

    def request(self, operation: Operation, steps: Steps) -> Request:
        """Return the request of an operation that `begin` begins."""
        self.job.check_process(operation.call)
        operation.steps = steps
        return Request(operation)

    def begin(self, operation: Operation) -> None:
        """Begin an operation that has a request."""
        with self._lock:
            self.active[operation] = None
            self._advance(operation)

    def _advance(self, operation: Operation) -> None:
        try:
            is_over = operation.advance()
        except BaseException:
            self._end(operation)
            raise
        if is_over:
            self._end(operation)

    def _end(self, operation: Operation) -> None:
        operation.done, operation.steps = True, None
        if operation.error is not None:
            operation.error = self.job.explain(operation.call, operation.error, operation.peers)
        del self.active[operation]
        if operation.error is not None and operation.requests:
            self._broken.append(operation)
        else:
            operation.kept, operation.ballot = [], None

    def _advance_due(self, operation: Operation) -> None:
        """Advance an operation, and what has to go on before it."""
        first: Operation | None = None
        while not operation.done:
            self._advance(operation)
            if operation.after is first or operation.after is None:
                return
            first = operation.after
            self._advance_due(first)

    def _advance_others(self, count: int) -> None:
        """Advance so many operations, those first that have waited longest."""
        for _ in range(min(count, len(self.active))):
            operation = next(iter(self.active))
            self.active.move_to_end(operation)
            self._advance(operation)
        native.advance_begun(count)

    def _look(self, operation: Operation, others: int) -> None:
        with self._lock:
            self._advance_due(operation)
            if not operation.done:
                self._advance_others(others)

    def _look_at_each(self, operations: Sequence[Operation]) -> None:
        with self._lock:
            for operation in operations:
                self._advance_due(operation)

    def _advance_all(self) -> bool:
        with self._lock:
            self._advance_others(len(self.active))
            return native.advance_begun(sys.maxsize) or bool(self.active)

    def go_on(self) -> None:
        """Advance some of what is under way, for calls that C makes meanwhile."""
        with self._lock:
            self._advance_others(_OTHERS)

    def uses(self, channel: Any) -> bool:
        """Return whether a call over a channel is under way."""
        with self._lock:
            is_active = any(each.channel is channel for each in self.active)
            return is_active or native.is_begun_over(channel.peers)

    def free_unused(self) -> None:
        """Free those of the closing channels over which no call is in progress."""
        if self.job.is_member():
            native.defer_signals(self._free_unused)

    def _free_unused(self) -> None:
        with self._lock:
            for each in tuple(CLOSING):
                if not self.uses(each):
                    CLOSING.remove(each)
                    each.free()

    def _advance_everything(self) -> bool:
        active = [advance() for advance in self.others]
        is_active = native.defer_signals(self._advance_all)
        if is_active and (self.job.is_ending or self.job.left):
            native.defer_signals(self._end_in_vain)
        return is_active or any(active)

    def _end_in_vain(self) -> None:
        """At the end of this process, end what other ranks do not make any more."""
        native.pass_on_begun()
        job = self.job
        everybody = frozenset(range(job.size)) - {job.rank}
        for operation in tuple(self.active):
            self._look_for_peers(operation)
            is_own = operation.peers <= {job.rank}
            if not is_own and not (operation.receive or operation).may_cancel:
                continue
            is_late = job.is_ending and job.waits_in_vain(everybody, operation.since, GRACE)
            if is_late and not self._cancel(operation) and is_own and not operation.done:
                self._end_with(operation, operation.peers)

    def test(self, operation: Operation) -> bool:
        """Advance what is under way; return whether this operation is over."""
        if not operation.done:
            self.job.check_process(operation.call)
            native.defer_signals(self._look, operation, _OTHERS)
        return operation.done

    def wait(self, operation: Operation, limit: Deadline | None = None) -> None:
        """Wait until an operation is over; an interrupt leaves it under way.

        Raises:
            MPIError: a process that it needs has left.
            MPITimeoutError: it is not over in time, and stays under way.
        """
        if not self._wait(operation, math.inf if limit is None else limit.end):
            assert limit is not None
            raise MPITimeoutError(
                f"{operation.call}: is not over after {limit.seconds} s, and stays under way "
                f"between this rank and {named(operation.peers)}"
            )

    def _wait(self, operation: Operation, end: float) -> bool:
        if self.test(operation):
            return True
        is_near = operation.channel is None or operation.channel.is_near
        nap = Nap(native.awake(is_near, operation.nbytes))
        next_look = time.monotonic() + LOOK
        while not operation.done:
            has_slept = native.defer_signals(self._wait_a_while, operation, nap)
            if has_slept and time.monotonic() > next_look:
                native.defer_signals(self._look_for_peers, operation)
                next_look = time.monotonic() + LOOK
            if time.monotonic() > end:
                return self.test(operation)
        return True

    def wait_some(self, operations: Sequence[Operation], limit: Deadline | None) -> bool:
        """Wait until operations are over, or one of them failed; return whether they were in time.

        Looking at many at once, however little each of them does, costs less than at each.
        """
        if not operations:
            return limit is None or time.monotonic() <= limit.end
        while True:
            if under_way := [each for each in operations if not each.done]:
                self.job.check_process(under_way[0].call)
                native.defer_signals(self._look_at_each, under_way)
            ends = (each for each in operations if not each.done or each.error is not None)
            first = next(ends, None)
            if first is None or first.done:
                return True
            if not self._wait(first, math.inf if limit is None else limit.end):
                return False

    def cancel(self, operation: Operation) -> bool:
        """Take back a receive for which no message has come; return whether that was done."""
        self.job.check_process(operation.call)
        return bool(native.defer_signals(self._cancel, operation))

    def _cancel(self, operation: Operation) -> bool:
        with self._lock:
            operation = operation.receive or operation
            if operation.done or not operation.may_cancel:
                return False
            if not _take_back(operation):  # its message has come
                self._advance(operation)
                return False
            operation.requests = ()
            operation.error = MPIError(f"{operation.call}: was cancelled")
            self._end(operation)
            return True

    def _wait_a_while(self, operation: Operation, nap: Nap) -> bool:
        """Wait for a millisecond at most; return whether it slept."""
        has_slept = False
        until = time.monotonic() + _DEFERRED
        while not operation.done and time.monotonic() < until:
            has_slept = nap.rest()
            waits_for = operation.requests
            self._look(operation, _OTHERS_ASLEEP if has_slept else _OTHERS)
            if operation.requests is not waits_for:  # the next step may not take long
                nap.restart()
        return has_slept

    def _look_for_peers(self, operation: Operation) -> None:
        with self._lock:
            self.job.notice()
            for each in operation.parts or (operation,):
                gone = frozenset[int]() if each.done else self._gone(each)
                if gone and not operation.done:
                    self._end_with(operation, gone)

    def _gone(self, operation: Operation) -> frozenset[int]:
        """Return the ranks that it waits for in vain."""
        job, ballot = self.job, operation.ballot
        others = operation.peers - {job.rank}
        if ballot is None:
            gone = job.gone(operation.peers)
            if operation.any_peer and gone != operation.peers:
                gone = frozenset()
        else:  # who has made the call may have ended before others have
            over = operation.channel
            begun = partial(over.peers.has_begun, ballot.tag)
            gone = job.never_make(others, over.key, begun) if ballot.tag >= 0 else frozenset()
        seconds = VAIN + operation.nbytes / SLOWEST
        if not gone and job.waits_in_vain(others, operation.since, seconds):
            return others
        return gone

    def _calls(self) -> list[tuple[bytes, int]]:
        return [*self.freed, *((each.key, each.peers.calls) for each in self.channels)]

    def _end_with(self, operation: Operation, gone: frozenset[int]) -> None:
        """End an operation that waits for ranks in vain."""
        operation.error = MPIError(
            f"{operation.call}: waits for {named(gone)}, which has ended; let every rank "
            "make the same calls, and none exit before the others are served"
        )
        self._end(operation)


def _take_back(operation: Operation) -> bool:
    """Take back the receive of an operation; return whether no message had come."""
    if operation.posted is not None:
        return operation.posted.cancel()
    for request in operation.requests:  # none where it is matched without MPI
        request.Cancel()
        while not request.Test(operation.status):  # which needs no other rank
            pass
        if not operation.status.Is_cancelled():
            return False
    return True


@with_advice
class Request(native.Begun):
    """A call of `dlbridge.mpi` that may still be under way.

    The tensors of the call must not be changed, nor the destination be read, before it is over. A
    request that is dropped still takes place.
    """

    __slots__ = ()

    @property
    def source(self) -> int:
        """The rank that sent what was received; -1 before that, and of other calls."""
        return super().source

    @property
    def tag(self) -> int:
        """The tag of what was received; -1 before that, and of other calls."""
        return super().tag

    def test(self) -> bool:
        """Return whether the call is over, well or not; never waits."""
        is_over = self._look()
        if is_over is None:
            is_over = engine().test(self.operation)
        if is_over and CLOSING:
            engine().free_unused()
        return is_over

    def cancel(self) -> bool:
        """Take back a receive for which no message has come; return whether that was done.

        Then `wait` raises MPIError, of `isendrecv` once its send is over. Sends and collectives
        stay under way, as other ranks rely on them, and so does a receive whose message has begun
        to come.
        """
        is_back = self._take_back()
        return engine().cancel(self.operation) if is_back is None else is_back

    def wait(self, timeout: float | None = None) -> Any:
        """Wait, and return what the blocking form of the call returns, each time the same.

        Args:
            timeout: seconds after which it gives up waiting; the call stays under way, and may be
                waited for again. None: it does not.

        The GIL is released; after 50 microseconds (300 between hosts, more for large tensors) the
        thread sleeps 20 to 200 microseconds between tests. Ctrl-C interrupts the wait, not the
        call.

        Raises:
            DLBridgeError: as the blocking form.
            MPITimeoutError: the call is not over after `timeout`.
        """
        return self._wait(None if timeout is None else deadline(self._call, timeout))

    def _wait(self, limit: Deadline | None) -> Any:
        try:
            if self._finish(limit is None):
                return self._outcome()
            operation = self.operation
            engine().wait(operation, limit)
        finally:
            if CLOSING:
                engine().free_unused()
        if operation.error is not None:
            _name(operation.error, operation.call)
            raise operation.error
        return operation.result

    def wait_since(self, begun: float, timeout: float) -> Any:
        """Wait as a blocking call does that C began at this time of `time.monotonic`."""
        seconds = float(timeout)
        return self.wait_or_cancel(Deadline(seconds, begun + seconds))

    def wait_or_cancel(self, limit: Deadline | None) -> Any:
        """Wait as a blocking call does: a receive for which nothing came is not left behind."""
        try:
            return self._wait(limit)
        except not_from_handler(MemoryError):  # for the wait, or for the result
            if self._is_over or self.cancel():
                raise
            return self._wait(limit)  # others rely on it
        except MPITimeoutError:
            if limit is None or not self.cancel():
                raise
        is_over = engine().test(self.operation)
        under_way = "nothing is under way" if is_over else "the send stays under way"
        raise MPITimeoutError(
            f"{self._call}: no message has come after {limit.seconds} s; {under_way}"
        )

    def __repr__(self) -> str:
        state = "over" if self._is_over else "under way"
        return f"<Request of {self._call}, {state}>"


def begin(call: str, function: Callable[..., Request], *args: Any) -> Request:
    """Begin a call that does not wait: its refusals, and those of its request, name it."""
    try:
        request = function(*args)
    except DLBridgeError as error:
        _name(error, call)
        raise
    request.operation.call = call
    return request


def _name(error: BaseException, call: str) -> None:
    """Let a refusal name the call of the user, where it names what that is made of."""
    inner, _, rest = str(error).partition(": ")
    if isinstance(error, DLBridgeError) and inner in (call.removeprefix("i"), "send", "recv"):
        error.args = (f"{call}: {rest}",)


def wait_all(requests: Iterable[Request], timeout: float | None) -> list[Any]:
    """Wait for requests of any calls; return what each of them returns."""
    if not isinstance(requests, Iterable):
        raise ArgumentError(f"waitall: requests must be a list of requests, got {requests!r}")
    made = list(requests)
    for each in made if {*map(type, made)} - {Request} else ():
        if not isinstance(each, Request):
            raise ArgumentError(
                f"waitall: requests must be those that dlbridge.mpi returned, got {each!r}"
            )
    limit = deadline("waitall", timeout)
    try:
        _wait_for_each(made, limit)
    finally:
        if CLOSING:
            engine().free_unused()
    return native.outcomes(made)  # which are over, up to the first that failed


def _wait_for_each(made: list[Request], limit: Deadline | None) -> None:
    """Wait for requests in order, until one fails."""
    at = 0
    while at < len(made) and not made[at]._has_failed:
        at = native.finish_begun(made, at)
        of_python = takewhile(lambda each: not each._is_begun, made[at : at + _TOGETHER])
        operations = [each.operation for each in of_python]
        if not engine().wait_some(operations, limit):
            under_way = [each for each in made if not each.test()]
            if under_way and limit is not None:
                raise _late(made, under_way, limit)
        for operation in operations:
            if operation.error is not None:
                break
            at += 1


def _late(
    requests: Sequence[Request], under_way: Sequence[Request], limit: Deadline
) -> MPITimeoutError:
    peers = frozenset[int]().union(*(each.operation.peers for each in under_way))
    return MPITimeoutError(
        f"waitall: {len(under_way)} of {len(requests)} calls are not over after "
        f"{limit.seconds} s, and stay under way between this rank and {named(peers)}; the first is "
        f"{under_way[0]._call}"
    )


def deadline(call: str, timeout: Any) -> Deadline | None:
    """Return when a wait that begins now gives up, None: it does not.

    Raises:
        ArgumentError: `timeout` is no number of seconds.
    """
    if timeout is None:
        return None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not timeout >= 0:
        raise ArgumentError(
            f"{call}: timeout must be a number of seconds from 0, or None, got {timeout!r}"
        )
    seconds = float(min(timeout, sys.float_info.max))  # an int may be larger
    return Deadline(seconds, time.monotonic() + seconds)


_ENGINES: list[Engine] = []
_STARTING = registry.lock()


def engine() -> Engine:
    """Return the engine of this process; the first call starts MPI."""
    if not _ENGINES:
        registry.load(native.defer_signals, _start)
    return _ENGINES[0]


def _start() -> None:
    with _STARTING:
        if not _ENGINES:
            _ENGINES.append(Engine(Job()))
