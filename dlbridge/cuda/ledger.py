"""The ledger of memory that other processes of this machine still hold from this one.

Each process that sends memory has one file, which lives in memory only and as long as the process:
a byte for each thing that was sent, never used twice. Its holder has a lock on that byte. The
system lets go of the locks of a process that dies, so that its sender always gets its memory back.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dlbridge.errors import ExchangeError

_SENT, _TAKEN, _GIVEN_BACK = b"\0", b"\1", b"\2"


class Origin(NamedTuple):
    """The process that has sent something, and where: its id and birth, its file, the byte."""

    process: int
    born: int
    file: int
    row: int


def born(process: int) -> int:
    """Return when a process started, in ticks since the machine did, or 0 without such a process.

    Ids of processes are used again.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[19])


class Kept(Protocol):
    """Memory kept for other processes."""

    def is_used_here(self) -> bool:
        """Return whether this process still has it otherwise."""


class Ledger:
    """The memory that this process has sent, kept until no other process has it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._born = born(self.process)
        self._file = os.memfd_create("dlbridge")
        self._lock = threading.Lock()
        self._kept: dict[int, Kept] = {}
        self._rows = 0

    def open(self, kept: Kept) -> Origin:
        """Keep something until it was taken and given back; returns what finds it again."""
        with self._lock:
            row = self._rows
            self._rows += 1
            os.pwrite(self._file, _SENT, row)
            self._kept[row] = kept
        return Origin(self.process, self._born, self._file, row)

    def find(self, row: int) -> Kept | None:
        """Return what was sent, for this process itself, if it is still kept."""
        with self._lock:
            if row in self._kept:
                os.pwrite(self._file, _TAKEN, row)
            return self._kept.get(row)

    def owns(self, origin: Origin) -> bool:
        """Return whether it was sent by this process."""
        return (origin.process, origin.born) == (self.process, self._born)

    def collect(self) -> int:
        """Release what no process has any more; return how much is still kept."""
        with self._lock:
            gone = [self._kept.pop(row) for row in list(self._kept) if self._is_over(row)]
            count = len(self._kept)
        del gone  # not under the lock: it may come back here
        return count

    def _is_over(self, row: int) -> bool:
        if self._kept[row].is_used_here():
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except OSError:
            return False  # somebody has it
        try:
            if os.pread(self._file, 1, row) == _SENT:
                return False  # no process has taken it yet
            os.pwrite(self._file, _GIVEN_BACK, row)
            return True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)


class Neighbour:
    """The ledger of another process, and what this one has of it."""

    def __init__(self, origin: Origin) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        try:
            self._file = os.open(f"/proc/{origin.process}/fd/{origin.file}", os.O_RDWR)
        except OSError as error:
            raise _gone(origin, str(error)) from None

    def take(self, origin: Origin) -> Callable[[], None]:
        """Mark it as taken by this process; return the function that gives it back.

        Raises:
            ExchangeError: the sender has let go of it.
        """
        row = origin.row
        with self._lock:
            if row not in self._counts:
                self._claim(origin)
            self._counts[row] = self._counts.get(row, 0) + 1
        return lambda: self._give_back(row)

    def _claim(self, origin: Origin) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, origin.row)
        if os.pread(self._file, 1, origin.row) not in (_SENT, _TAKEN):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, origin.row)
            raise _gone(origin, "it was taken and given back before; pickle it again")
        os.pwrite(self._file, _TAKEN, origin.row)

    def _give_back(self, row: int) -> None:
        with self._lock:
            self._counts[row] -= 1
            if self._counts[row] == 0:
                del self._counts[row]
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)


_ledgers: list[Ledger] = []
_neighbours: dict[tuple[int, int], Neighbour] = {}
_lock = threading.Lock()


def own() -> Ledger:
    """Return the ledger of this process; a forked one has one of its own."""
    with _lock:
        if not _ledgers or _ledgers[-1].process != os.getpid():
            _ledgers[:] = [Ledger()]
            _neighbours.clear()
        return _ledgers[-1]


def take(origin: Origin) -> Callable[[], None]:
    """Take what another process has sent; return the function that gives it back.

    Raises:
        ExchangeError: the sender has ended, or let go of it.
    """
    key = (origin.process, origin.born)
    if born(origin.process) != origin.born:
        raise _gone(origin, "it has ended")
    with _lock:
        neighbour = _neighbours.get(key)
        if neighbour is None:
            neighbour = _neighbours[key] = Neighbour(origin)
    return neighbour.take(origin)


def collect() -> int:
    """Release what no process has any more; return how much is still kept."""
    return _ledgers[-1].collect() if _ledgers else 0


def _gone(origin: Origin, why: str) -> ExchangeError:
    return ExchangeError(
        "device",
        f"unpickling: CUDA memory of process {origin.process} cannot be had: {why}; a pickled CUDA "
        'tensor is for other processes while its sender runs; pickle tensor.to("cpu") to keep it',
    )
