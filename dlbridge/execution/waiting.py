"""Waits of nodes for what other runs do: they end when their own run has to.

A node that waits looks in turn at what it waits for and, with `check`, at its run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

TURN = 0.001  # seconds between two looks


class _Deadline(threading.local):
    """When the run of this thread must have ended, and the error that it raises then."""

    def __init__(self) -> None:
        self.end = math.inf
        self.late: Callable[[], Exception] | None = None


_DEADLINE = _Deadline()


@contextmanager
def until(end: float, late: Callable[[], Exception]) -> Iterator[None]:
    """Let waits of this thread raise `late()` from `end` on, in seconds of `time.monotonic`."""
    before = _DEADLINE.end, _DEADLINE.late
    try:
        _DEADLINE.end, _DEADLINE.late = end, late
        yield
    finally:
        _DEADLINE.end, _DEADLINE.late = before


def check() -> None:
    """Raise if the run of this thread has taken too long."""
    late = _DEADLINE.late
    if late is not None and monotonic() > _DEADLINE.end:
        raise late()
