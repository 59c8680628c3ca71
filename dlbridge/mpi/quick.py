"""What C has to know to make calls by itself: `native.Quick`.

It knows array types and arguments that Python has seen before, so that Python alone decides what
is right, and C sees that a call is like another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge._core import native
from dlbridge.exchange import adapter

QUICK = native.Quick()
# The arguments of calls that have none, or the same as another call.
ALLGATHER, ALLTOALL, BARRIER = "allgather", "alltoall", "barrier"
REDUCE_SCATTER = "reduce_scatter"
_MOST = 64  # array types that are known; each stays as long as the process


def learn_type(cls: type, framework: str) -> None:
    """Note to which framework the results for arrays of a type go, and whether they are written."""
    if cls in QUICK.types or len(QUICK.types) >= _MOST:
        return
    found = adapter.adapter(framework)
    adapter.start(found)
    converter = adapter.converter_of(found)
    if converter is not None or framework == "dlbridge":
        # A traced call becomes an operator, even where its values are known.
        QUICK.types[cls] = (converter, found.untraced(), not found.immutable)


def learn_call(arguments: Any, make: Callable[[], Any]) -> None:
    """Note the Reduction, or the digest, of a call with these arguments."""
    if arguments not in QUICK.calls:
        QUICK.calls[arguments] = make()
