"""This process as a member of an MPI job: mpi4py, when it is imported, and how a process leaves.

MPI is imported and started by the first call of `dlbridge.mpi`, not before. From then on an
uncaught exception ends the whole job, and a process that ends otherwise tells the others, so that
none of them waits for it forever.
"""

from __future__ import annotations

import atexit
import math
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import FrameworkMissingError, MPIError
from dlbridge.signals import not_from_handler

_LEFT = 1  # the tag by which a process says that it has left,
_ENDING = 2  # and that its script has ended, and what it has begun has not
_CALLS = struct.Struct("<16sI")  # of a communicator: its key, and how many collectives were begun
GRACE = 1.0  # seconds in which messages sent before may still arrive
PATIENCE = 10.0  # seconds after which a process says whose end it waits for; then twice as long
VAIN = 30.0  # seconds without end of a call whose other ranks make no calls any more,
SLOWEST = 1e7  # and one more for so many bytes of it
FORWARDING = 0.2  # seconds that mpiexec gets to pass on what an aborting rank has printed


class Job:
    """All processes that `mpiexec` started, and who of them has left.

    Attributes:
        mpi: the module mpi4py.MPI.
        rank, size: of this process, and their number.
        watched: communicators that receive from any rank, also after one was lost.
        lost: the ranks that were lost, where the others go on without them: MPI with ULFM.
        ending: functions that are called once, before this process leaves.
        calls: for each communicator, by its key, how many collectives this process has begun.
    """

    def __init__(self) -> None:
        self.ending: list[Callable[[], None]] = []
        self.calls: Callable[[], Iterable[tuple[bytes, int]]] = tuple
        self._has_ended = False
        self.mpi: Any = _import()
        world = self.mpi.COMM_WORLD
        self.rank: int = world.Get_rank()
        self.size: int = world.Get_size()
        self._process = os.getpid()
        self._control = world.Dup()
        self._left: dict[int, float] = {}
        self._ending: dict[int, float] = {}
        self._calls: dict[int, dict[bytes, int]] = {}
        self.lost: frozenset[int] = frozenset()
        self.watched = [self._control]

    def check_process(self, call: str) -> None:
        """Refuse a call in a forked child, and one after MPI was finalised."""
        if os.getpid() != self._process:
            raise MPIError(
                f"{call}: this process was forked from one that uses MPI and is not a member of "
                "the job; communicate in the parent, or start processes with mpiexec"
            )
        if self.mpi.Is_finalized():
            raise MPIError(f"{call}: MPI has been finalised; communicate before that")

    def is_member(self) -> bool:
        """Return whether this process may call MPI."""
        return os.getpid() == self._process and not self.mpi.Is_finalized()

    def notice(self) -> None:
        """Take note of the processes that say they have left, and of those that were lost."""
        try:
            self._read_marks()
        except self.mpi.Exception:
            if not self._find_lost():
                raise

    def _find_lost(self) -> bool:
        """Take note of the processes that were lost; return whether there are new ones."""
        try:
            group = self._control.Get_failed()
        except not_from_handler(NotImplementedError):  # MPI without ULFM
            return False
        world = self.mpi.COMM_WORLD.Get_group()
        lost = frozenset(group.Translate_ranks(None, world)) - self.lost
        for communicator in self.watched:
            with suppress(self.mpi.Exception):
                communicator.Ack_failed()
        self.lost |= lost
        self._left.update(dict.fromkeys(lost, -math.inf))
        return bool(lost)

    def explain(self, call: str, error: BaseException, ranks: frozenset[int]) -> BaseException:
        """Return the error of a call with these ranks that failed.

        Where MPI has lost one of them, it says so; an exception of mpi4py becomes an MPIError.
        """
        if not isinstance(error, MPIError | self.mpi.Exception):
            return error
        self._find_lost()
        if lost := self.lost & ranks:
            explained = MPIError(
                f"{call}: {named(lost)} was lost; go on without it, with "
                "comm=MPI.COMM_WORLD.Shrink() of mpi4py on all ranks that are left"
            )
        elif isinstance(error, self.mpi.Exception):
            explained = MPIError(f"{call}: MPI fails between this rank and {named(ranks)}: {error}")
        else:
            return error
        explained.__cause__ = error
        return explained

    def _read_marks(self) -> None:
        status = self.mpi.Status()
        while self._control.Iprobe(self.mpi.ANY_SOURCE, self.mpi.ANY_TAG, status):
            source, tag = status.Get_source(), status.Get_tag()
            said = bytearray(status.Get_count(self.mpi.BYTE))
            self._control.Recv([said, len(said), self.mpi.BYTE], source, tag)
            self._calls[source] = dict(_CALLS.iter_unpack(said))
            (self._left if tag == _LEFT else self._ending)[source] = time.monotonic()

    @property
    def left(self) -> frozenset[int]:
        """The ranks that have said that they leave."""
        return frozenset(self._left)

    def gone(self, ranks: frozenset[int]) -> frozenset[int]:
        """Return which of these ranks left so long ago that nothing of theirs can be on its way."""
        now = time.monotonic()
        return frozenset(rank for rank in ranks if now - self._left.get(rank, now) > GRACE)

    def never_make(
        self, ranks: frozenset[int], key: bytes, is_among: Callable[[int], bool]
    ) -> frozenset[int]:
        """Return which of these ranks never make a collective of a communicator.

        These have come to the end of their scripts, and it is not among the first so many that each
        of them has begun. One that has freed the communicator says nothing of it.
        """
        now = time.monotonic()
        ended = {**self._ending, **self._left}
        late = [rank for rank in ranks if now - ended.get(rank, now) > GRACE]
        counts = {rank: self._calls.get(rank, {}).get(key) for rank in late}
        return frozenset(
            rank
            for rank, calls in counts.items()
            if rank in self.lost or (calls is not None and not is_among(calls))
        )

    def waits_in_vain(self, ranks: frozenset[int], since: float, seconds: float) -> bool:
        """Return whether these ranks have made all their calls, and none of them is the one.

        That is so if all of them have come to the end of their scripts, and what began at `since`
        is not over so many seconds later: each goes on with what it has begun.
        """
        there = (self._left.get(rank, self._ending.get(rank, math.inf)) for rank in ranks)
        return time.monotonic() > max(since, *there) + seconds if ranks else False

    @property
    def is_ending(self) -> bool:
        """Whether the scripts of all ranks have ended."""
        return self._has_ended and len({*self._left, *self._ending}) >= self.size - 1

    def leave(self, progress: Any) -> None:
        """Finish what was sent, tell the others, and wait until they leave as well.

        MPI ends on all ranks together. `progress` advances what is under way, and what this process
        still does for the others. A second call returns at once.
        """
        if self._has_ended or not self.is_member():
            return
        self._has_ended = True
        for function in self.ending:
            function()
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = self._tell(others, _ENDING) if progress() else []
        nap = Nap(0.0)
        while progress() and len(self._left) < len(others):
            self.notice()
            nap.rest()
        self.notice()
        sent += self._tell(others, _LEFT)
        nap, patience = Nap(0.0), PATIENCE
        says_at = time.monotonic() + patience
        while len(self._left) < len(others) or not all(
            not self.is_there(rank) or request.Test() for rank, request in sent
        ):
            self.notice()
            progress()
            nap.rest()
            if time.monotonic() > says_at:
                patience *= 2
                says_at += patience
                waits_for = named(frozenset(others) - self.left)
                sys.stderr.write(
                    f"dlbridge.mpi: rank {self.rank} has come to the end of its script, and waits "
                    f"for {waits_for} to end as well\n"
                )
                sys.stderr.flush()

    def _tell(self, others: list[int], tag: int) -> list[tuple[int, Any]]:
        """Return the requests of what the others are told, with their ranks."""
        said = b"".join(_CALLS.pack(*each) for each in self.calls())
        sent = [said, len(said), self.mpi.BYTE]
        return [
            (rank, self._control.Isend(sent, rank, tag)) for rank in others if self.is_there(rank)
        ]

    def is_there(self, rank: int) -> bool:
        """Return whether messages of this process to a rank can arrive."""
        return rank not in self.lost and os.getpid() == self._process

    def abort(self, code: int) -> None:
        """End the job at once."""
        if self.is_member():
            self.mpi.COMM_WORLD.Abort(code)


class Nap:
    """How a wait spends its time: it yields for a while, then sleeps 20 to 200 microseconds.

    Args:
        seconds: how long a wait yields the processor between two tests before it sleeps.
    """

    __slots__ = ("_length", "_seconds", "_until")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Yield again at first: something has come."""
        self._until = time.monotonic() + self._seconds
        self._length = 0.0

    def rest(self) -> bool:
        """Let others run; return whether it slept."""
        if not self._length and time.monotonic() < self._until:
            os.sched_yield()
            return False
        self._length = min(max(2e-5, 1.5 * self._length), 2e-4)
        time.sleep(self._length)
        return True


def named(ranks: frozenset[int]) -> str:
    """Return ranks as texts have them."""
    return f"rank {', '.join(map(str, sorted(ranks)))}"


def _import() -> Any:
    if "mpi4py.MPI" not in sys.modules:
        _check_start()
    try:
        return registry.load(import_module, "mpi4py.MPI")
    except not_from_handler(ImportError) as error:
        raise FrameworkMissingError(
            f"dlbridge.mpi: mpi4py is not installed here, or finds no MPI library ({error}); "
            "pip install 'dlbridge[mpi]'"
        ) from error
    except not_from_handler(RuntimeError) as error:
        # what mpi4py of some builds raises without a library
        raise FrameworkMissingError(
            f"dlbridge.mpi: mpi4py finds no MPI library ({error}); pip install 'dlbridge[mpi]'"
        ) from error


def _check_start() -> None:
    """Refuse to be the member that started this process, as MPI would take it for that one.

    The environment says which member of a job a process is, and processes that a member starts
    inherit it. Under PMI (MPICH's mpiexec, Slurm) they lack the connection that it speaks of, and
    MPI would end the process.
    """
    place = _place()
    member, _, its_place = os.environ.get("DLBRIDGE_MPI_MEMBER", "").partition(" ")
    if place is None or (place and place == its_place and member != str(os.getpid())):
        raise MPIError(
            "dlbridge.mpi: this process was started by a member of an MPI job and is not a member "
            "of the job; communicate in that process, or start processes with mpiexec"
        )
    os.environ["DLBRIDGE_MPI_MEMBER"] = f"{os.getpid()} {place}"


def _place() -> str | None:
    """Return what no two members have in common, "" where there is no job.

    None: the environment is that of a member, whose connection this process does not have.
    """
    number = os.environ.get("PMI_FD")
    if number is None:
        hydra = os.environ.get("PMI_PORT", ""), os.environ.get("PMI_ID", "")
        pmix = os.environ.get("PMIX_NAMESPACE", ""), os.environ.get("PMIX_RANK", "")
        return " ".join((*hydra, *pmix)).strip()
    try:
        found = os.fstat(int(number))
    except not_from_handler(OSError, ValueError):
        return None
    return str(found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def end_together(job: Job, progress: Any) -> None:
    """Make this process end the job when it fails, and say so when it ends."""
    before = sys.excepthook

    def end(kind: type[BaseException]) -> None:
        if job.size == 1 or hasattr(sys, "ps1") or not job.is_member():
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(FORWARDING)
        finally:
            job.abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            before(kind, error, traceback)
        finally:
            try:
                native.defer_signals(end, kind)
            finally:  # once more, for an interrupt of the first time
                native.defer_signals(end, kind)

    def leave() -> None:
        try:
            job.leave(progress)
        except BaseException as error:  # MPI would wait for the others, and for no signal
            hook(type(error), error, error.__traceback__)
            raise

    atexit.register(leave)  # before mpi4py's own, which finalises MPI
    # A script may call MPI.Finalize itself, which first deletes the attributes of MPI_COMM_SELF.
    key = job.mpi.Comm.Create_keyval(delete_fn=lambda *_: leave())
    job.mpi.COMM_SELF.Set_attr(key, None)
    sys.excepthook = hook
