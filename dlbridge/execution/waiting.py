"""Waits of nodes for what other runs do: they end when their own run has to.

A node that waits looks in turn at what it waits for and, with `check`, at its run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

TURN = 0.001  # seconds between two looks


class _Deadline(threading.local):
    """When the run of this thread must have ended, and what makes the error that it raises then."""

    limit: tuple[float, Callable[[], Exception]] | None = None


_DEADLINE = _Deadline()


def call_until(
    end: float, late: Callable[[], Exception], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function whose waits in this thread raise `late()` after `end`; return its result.

    `end` is in seconds of `time.monotonic`. An earlier limit of an enclosing call stays in force.
    """
    before = _DEADLINE.limit
    limit = before if before is not None and before[0] <= end else (end, late)
    try:
        try:
            _DEADLINE.limit = limit
            return function(*arguments)
        finally:
            _DEADLINE.limit = before
    finally:  # once more, for an interrupt of the first time
        _DEADLINE.limit = before


def check() -> None:
    """Raise if the run of this thread has taken too long."""
    if _DEADLINE.limit is None:
        return
    end, late = _DEADLINE.limit
    if monotonic() > end:
        raise late()
