"""Ordering bugs to plant in the core: each is a mistake that somebody has made, or may make.

It is text of C on purpose: a mistake cannot be planted by behaviour.
`old` must stand in its file exactly once. Where a change of the core moves it, plant the same
mistake where it would be made now.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake: `old` of a C file of the core becomes `new`."""

    name: str
    why: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "no wait",
        "the event is recorded, but nobody waits for it",
        "cuda/stream.c",
        "    int status = wait(after, event);\n",
        "    int status = after == before ? wait(after, event) : 0;\n",
    ),
    Mutant(
        "event on the wrong stream",
        "the event is recorded on the stream that waits, instead of the one that is waited for",
        "cuda/stream.c",
        "    if (record(device, before, &event) < 0)\n",
        "    if (record(device, after, &event) < 0)\n",
    ),
    Mutant(
        "event used again too early",
        "the event at the end of a consumer's work is recorded again while it is still asked after",
        "cuda/access.c",
        "    if (!failed && event == NULL)\n        return false;\n",
        "    if (!failed && event == NULL)\n        return false;\n"
        "    dlb_cuda_reuse_event(access->device, event);\n",
    ),
    Mutant(
        "released without a guard",
        "memory goes back with its last reference, whatever runs",
        "cuda/access.c",
        "    return access->use_count == 0 && access->done_count == 0;\n",
        "    return true;\n",
    ),
    Mutant(
        "no event at the end of a use",
        "the consumer's deleter forgets its work without an event at its end",
        "cuda/access.c",
        "        if (!needs_event || mark_end(access, use))\n",
        "        if (!needs_event || use != NULL)\n",
    ),
    Mutant(
        "legacy synchronisation during a capture",
        "a captured stream is ordered after the outside as any other",
        "cuda/stream.c",
        "    if (captured != capturing)\n        return 1;\n",
        "",
    ),
    Mutant(
        "events asked for during a capture",
        "asking whether an event is over ends a capture in the global mode",
        "cuda/stream.c",
        "    int mode = dlb_cuda_relax();\n    int status = dlb_cuda_check(",
        "    int mode = 0;\n    int status = dlb_cuda_check(",
    ),
    Mutant(
        "ready and owner mixed up",
        "what has to be waited for is taken to be where the memory is used again",
        "cuda/access.c",
        "    access->ready = dlb_stream_identify_on(access->device, ready);\n"
        "    access->owner = dlb_stream_identify_on(access->device, owner);\n",
        "    access->ready = dlb_stream_identify_on(access->device, owner);\n"
        "    access->owner = dlb_stream_identify_on(access->device, ready);\n",
    ),
    Mutant(
        "writes not after reads",
        "a write waits for writes only",
        "cuda/access.c",
        "    if (use == own || !(writes || use->writes))\n",
        "    if (use == own || !use->writes)\n",
    ),
    Mutant(
        "writes not after reads that ended",
        "a write does not wait for the events of readers that are gone",
        "cuda/access.c",
        "(writes || access->done[i].writes))\n            continue;\n        if (!may_call)",
        "access->done[i].writes)\n            continue;\n        if (!may_call)",
    ),
    Mutant(
        "per-thread stream of another thread",
        "stream 2 is taken to be one stream, whichever thread means it",
        "cuda/stream.c",
        "    return (dlb_stream_id){stream, is_own ? own_number() : 0, 0};\n",
        "    return (dlb_stream_id){stream, is_own ? (uintptr_t)(own_number() != 0) : 0, 0};\n",
    ),
    Mutant(
        "wrong device",
        "the current context is used, whichever device the memory is on",
        "cuda/driver.c",
        "    device_t *known = &devices[device];\n    CUcontext found = ",
        "    device_t *known = &devices[device * 0];\n    CUcontext found = ",
    ),
    Mutant(
        "one use for two exports",
        "the first of two exports to one stream that comes back ends the use of both",
        "cuda/access.c",
        "    if (use != NULL && --use->borrowers == 0) {\n",
        "    if (use != NULL && --use->borrowers >= 0) {\n",
    ),
    Mutant(
        "consumer's stream ignored",
        "every consumer is ordered as if it worked on the legacy default stream",
        "tensor/capsule.c",
        "    dlb_stream_id borrowed;\n    int status =\n",
        "    dlb_stream_id borrowed;\n    to = worker = DLB_STREAM_LEGACY;\n    int status =\n",
    ),
)
