"""What C has to know to make calls by itself: `native.Quick`.

It knows array types and arguments that Python has seen before, so that Python alone decides what
is right, and C sees that a call is like another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from dlbridge._core import native
from dlbridge.exchange import adapter

QUICK = native.Quick()
"""Calls over all processes of the job."""

UNKNOWN = native.Quick()
"""Calls over a communicator of which nothing is known yet: it makes none."""

GOING_ON: dict[str, Callable[..., Any]] = {}
"""What goes on with a call that C has begun, given the channel, its state and arguments."""
# The arguments of calls that have none, or the same as another call.
ALLGATHER, ALLTOALL, BARRIER = "allgather", "alltoall", "barrier"
REDUCE_SCATTER = "reduce_scatter"
GATHER, SCATTER = "gather", "scatter"  # with the root
TREE = "tree"  # with the op: native.TreePlans
_MOST = 64  # array types that are known; each stays as long as the process


def over(
    channel: Any, peers: native.Peers, active: Any, go_on: Callable[[], None], request: type
) -> native.Quick:
    """Return what makes calls over a channel, None for that of all processes.

    It refers to the channel weakly, as the channel refers to it.
    """
    made = QUICK if channel is None else native.Quick(QUICK)
    made.active, made.go_on, made.request = active, go_on, request
    made.resume = partial(_resume, None if channel is None else weakref.ref(channel))
    made.peers = peers
    return made


def _resume(channel: Any, name: str, state: Any, *given: Any) -> Any:
    # The user may have freed the communicator meanwhile: then the channel is all there is.
    return GOING_ON[name](None if channel is None else channel(), state, *given)


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
