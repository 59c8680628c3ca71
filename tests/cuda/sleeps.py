"""How often this thread has slept: the count that shows a wait which is no call of the driver.

jaxlib waits for an array by a promise of its own. The kernel counts each time that a thread gives
its processor away to wait. The driver's own waits may spin instead; those calls are counted by the
machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from measuring import switches

ROUNDS = 5


def sleeps() -> int:
    """Return how often this thread has slept so far."""
    return switches(threading.get_native_id())


def fewest_sleeps(call: Callable[[Any], object], prepare: Callable[[], Any]) -> int:
    """Return how often the thread sleeps in `call(prepare())`, at least.

    A wait is there each time; a lock that another thread happened to hold is not.
    """
    found = []
    for _ in range(ROUNDS):
        argument = prepare()
        before = sleeps()
        result = call(argument)
        found.append(sleeps() - before)
        del result
    return min(found)
