"""Python processes for what may crash: how they find this dlbridge, and how they ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import dlbridge._core as core


def environment() -> dict[str, str]:
    """Return the environment in which a new Python imports what this process imports."""
    root = str(Path(core.__file__).parents[2])
    paths = [root, *(path or str(Path.cwd()) for path in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def describe_end(status: int, printed: bytes) -> str:
    """Return how a process ended, with the last line of what it printed to standard error.

    Args:
        status: the exit status, or the negative number of a signal.
        printed: its standard error, or the end of it.
    """
    lines = printed.decode("utf-8", "backslashreplace").strip().splitlines() or [""]
    if status >= 0:
        return f"its process ended with status {status}: {lines[-1]}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process ended by {name}: {lines[-1]}"
