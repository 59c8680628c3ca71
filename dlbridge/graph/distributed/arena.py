"""The memory that the tasks of one host share, in which large values pass between them uncopied.

Each task has a region of its own: an anonymous file in memory, which the others map. A value that a
step allocates there is lent to the task that takes it: what travels is where it lies. See
`_core/memory/arena.h`.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dlbridge import mpi
from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.signals import not_from_handler

_ADDRESS = 32  # bytes


def share(transport: native.Transport, rank: int) -> frozenset[int]:
    """Share memory with the tasks of this host, if all of them can; all tasks make this call.

    Returns:
        The ranks with which this one shares memory.

    Raises:
        ArgumentError: on all tasks: one of them has a variable DLBRIDGE_ARENA_BYTES that is no
            number.
    """
    wanted = os.environ.get("DLBRIDGE_ARENA_BYTES")
    is_number = wanted is None or (wanted.isascii() and wanted.isdecimal() and len(wanted) < 19)
    hosts = mpi.allgather(np.array([_host(), not is_number], np.uint64))
    if hosts[:, 1].any():
        raise ArgumentError(
            "Server: DLBRIDGE_ARENA_BYTES must be a number of bytes, 0 for no shared memory; rank "
            f"{int(hosts[:, 1].argmax())} has another value"
        )
    near = np.flatnonzero(hosts[:, 0] == hosts[rank, 0]).tolist()
    offered = None
    if len(near) > 1 and hosts[rank, 0]:
        offered = transport.offer(_size(wanted, len(near)))
    address = np.zeros(_ADDRESS, np.uint8)
    if offered is not None:
        address[:] = np.frombuffer(offered, np.uint8)
    addresses = mpi.allgather(address)
    has_all = offered is not None and all(
        transport.attach(each, addresses[each].tobytes()) for each in near if each != rank
    )
    agreed = mpi.allgather(np.array([has_all]))
    is_shared = bool(agreed[near].all())
    transport.share(is_shared)
    return frozenset(near) - {rank} if is_shared else frozenset()


def _size(wanted: str | None, count: int) -> int:
    """Return the bytes of a region; memory is taken only for what is used of it."""
    if wanted is not None:
        return int(wanted)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 * count)


def _host() -> int:
    """Return a number that processes have in common which see each other's files in /proc, or 0."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except not_from_handler(OSError):
        return 0
    digest = blake2b(boot + str(namespace).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
