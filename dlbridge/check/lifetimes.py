"""The ledger: exports and owners that are still alive, never consumed, or consumed twice."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlbridge._core import native
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.text import escape_controls

_MISUSES = ("never consumed", "consumed twice", "deleted twice")


@dataclass(frozen=True)
class Entry:
    """A buffer or an export of dlbridge.

    Attributes:
        kind: "export" is a managed tensor that dlbridge handed out, in a capsule or by the exchange
            table. The others are memory that dlbridge holds: "managed" is a tensor of another
            producer, "object" memory that a Python object keeps, "allocator" memory of dlbridge's
            own, "loan" memory lent for the time of a call.
        place: "file:line in function" of the code outside of dlbridge that was running; None where
            no Python was, as in a thread of a framework.
        nbytes: of the memory, where dlbridge allocated it, else 0.
        dtype, shape, device: of an export, else None. Of a shape with more than 16 dimensions the
            first 16.
    """

    kind: str
    place: str | None
    nbytes: int = 0
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None
    device: Device | None = None

    def __str__(self) -> str:
        said = self.kind
        if self.shape is not None:
            said += f" of {self.dtype} {self.shape} on {self.device}"
        elif self.nbytes:
            said += f" of {self.nbytes} bytes"
        return f"{said}, made {_at(self.place)}"


@dataclass(frozen=True)
class Misuse:
    """Something that a consumer or a user did wrong.

    Attributes:
        what: "never consumed" (a capsule of dlbridge was dropped as it was), "consumed twice" (one
            was given to dlbridge that had been consumed before) or "deleted twice" (a consumer
            called the deleter of an export again).
        entry: the export. Where it is gone, or another producer's, its place and shape are None.
        place: as of an Entry, where it happened.
    """

    what: str
    entry: Entry
    place: str | None

    def __str__(self) -> str:
        return f"{self.entry}, {self.what} {_at(self.place)}"


class Ledger(native.Recording):
    """The record that `ledger` returns: a context manager, to be asked in the block and after it.

    Attributes are read afresh each time, so that after the block `alive` shrinks when what was made
    in it is released.
    """

    @property
    def made(self) -> int:
        """How many buffers and exports were made in the block."""
        return self._made()

    @property
    def alive(self) -> list[Entry]:
        """Exports and owners made in the block and not released, oldest first."""
        return [_entry(row) for row in self._alive()]

    @property
    def misuses(self) -> list[Misuse]:
        """Misuses of exports that were made in the block, and misuses in the block."""
        return [Misuse(_MISUSES[row[4]], _entry(row), _place(row[5])) for row in self._misuses()]

    @property
    def never_consumed(self) -> list[Misuse]:
        """Capsules that were dropped as they were."""
        return self._misused(0)

    @property
    def consumed_twice(self) -> list[Misuse]:
        """Capsules that were given to dlbridge after they had been consumed."""
        return self._misused(1)

    @property
    def deleted_twice(self) -> list[Misuse]:
        """Exports whose deleter was called again. Only the last 64 that were deleted are known."""
        return self._misused(2)

    def _misused(self, number: int) -> list[Misuse]:
        return [each for each in self.misuses if each.what == _MISUSES[number]]

    def report(self) -> str:
        """Return what is known as text: one line for what is alike, with how often it was seen."""
        alive, misuses, lost = self.alive, self.misuses, self._lost()
        lines = [f"ledger: {self.made} made, {len(alive)} alive, {len(misuses)} misused"]
        lines += _lines("alive", map(str, alive))
        lines += _lines("misused", map(str, misuses))
        if lost:
            lines.append(f"{lost} more could not be recorded")
        return "\n".join(lines)

    __str__ = report


def ledger() -> Ledger:
    """Record every buffer and export that dlbridge makes in a `with` block, with its place.

    An export is a managed tensor of DLPack that dlbridge hands out, in a capsule or by the exchange
    table; a buffer is memory that dlbridge holds, its own or a producer's. All threads of the
    process are recorded. Blocks nest, each sees what was made in it. One that is forgotten ends
    with its Ledger. While no ledger is open, recording costs the load of a flag; while one is, up
    to a microsecond for each exchange.

    Set the environment variable DLBRIDGE_LEDGER to 1 to record a whole process, from the import of
    dlbridge to its end, when the report is written to standard error.

    The source of "never consumed" and "consumed twice" is the DLPack Python specification: a
    consumer renames the capsule to "used_…", and the capsule's destructor calls the deleter only
    where nobody did.

    Example:
        >>> import numpy, dlbridge
        >>> x = dlbridge.ones((2, 3), "float32")
        >>> with dlbridge.ledger() as found:
        ...     array = numpy.from_dlpack(x)
        ...     capsule = x.__dlpack__()
        ...     del capsule
        >>> [(each.kind, each.shape) for each in found.alive]
        [('export', (2, 3))]
        >>> len(found.never_consumed)
        1
        >>> del array
        >>> found.alive
        []
    """
    return Ledger()


def watch_process() -> None:
    """Record from now on, and write the report to standard error at the end of the process."""
    book = ledger().__enter__()
    atexit.register(lambda: sys.stderr.write(f"{book.report()}\n"))


def _at(place: str | None) -> str:
    return f"at {place}" if place else "at an unknown place"


def _place(row: tuple[str, int, str] | None) -> str | None:
    return escape_controls(f"{row[0]}:{row[1]} in {row[2]}") if row else None


def _entry(row: tuple[Any, ...]) -> Entry:
    kind, nbytes, place, tensor = row[1], row[2], _place(row[3]), row[6]
    if tensor is None:
        return Entry(kind, place, nbytes)
    dtype, device, shape, _ = tensor
    return Entry(kind, place, 0, DType(dtype), shape, Device(device))


def _lines(title: str, items: Iterable[str]) -> list[str]:
    counts = Counter(items).most_common()
    return [f"{title}:"] * bool(counts) + [f"  {count} x {item}" for item, count in counts]
