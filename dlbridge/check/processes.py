"""Python processes for what may crash: how they find this dlbridge, and how they ended."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import dlbridge._core as core
from dlbridge.signals import not_from_handler


def environment() -> dict[str, str]:
    """Return the environment in which a new Python imports what this process imports."""
    root = str(Path(core.__file__).parents[2])
    paths = [root, *(path or str(Path.cwd()) for path in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def describe_end(status: int, printed: bytes) -> str:
    """Return how a process ended, with the line of its standard error that says why, or the last.

    Args:
        status: the exit status, or the negative number of a signal.
        printed: its standard error, or the end of it.
    """
    lines = printed.decode("utf-8", "backslashreplace").strip().splitlines()
    if status >= 0:
        return f"its process ended with status {status}{_reason(lines[-1:])}"
    try:
        name = signal.Signals(-status).name
    except not_from_handler(ValueError):
        name = f"signal {-status}"
    return f"its process ended by {name}{_reason(lines)}"


# What C++ and the C library print when they end a process; below it is a stack trace.
_REASONS = tuple(map(re.compile, (r"(Check failed: .*)", r"what\(\): +(.*)", r"(Assertion .*)")))


def _reason(lines: list[str]) -> str:
    found = (each.search(line) for each in _REASONS for line in lines)
    text = next((match.group(1) for match in found if match), "".join(lines[-1:]))
    return f": {text}" if text else ""
