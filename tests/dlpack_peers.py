"""What the tests need beside `dlbridge.check.faults`: the peer written in C, and many threads.

    NativePeer    `peer.c`: what must happen without the GIL, on foreign threads, or after Python

All names of `faults` are here too.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dlbridge.check.faults import *  # noqa: F403
from dlbridge.check.faults import Consumer, Description, DLTensor, make_struct

# ---- peer.c ------------------------------------------------------------------------------------


class Record(ctypes.Structure):
    """The counts of the deleters of `peer.c`."""

    _fields_: ClassVar = [
        ("calls", ctypes.c_long),
        ("calls_with_gil", ctypes.c_long),
        ("calls_after_python", ctypes.c_long),
        ("thread", ctypes.c_ulong),
    ]


_TABLE_SIGNATURES: dict[str, list[Any]] = {
    "peer_table_allocate": [
        ctypes.c_void_p,
        ctypes.POINTER(DLTensor),
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_char_p,
    ],
    "peer_table_from_py": [ctypes.c_void_p, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p)],
    "peer_table_to_py": [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)],
    "peer_table_borrow": [ctypes.c_void_p, ctypes.py_object, ctypes.POINTER(DLTensor)],
    "peer_table_stream": [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
    ],
    "peer_table_churn": [ctypes.c_void_p, ctypes.py_object, ctypes.c_int64],
}


def compile_peer(directory: Path) -> Path:
    """Compile `peer.c` into `directory`, unless it is there already; return the shared object."""
    target = directory / "peer.so"
    if not target.exists():
        source = Path(__file__).with_name("peer.c")
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-O1", "-g", "-fPIC", "-shared"]
        made = directory / f"peer-{os.getpid()}.so"
        command = [*compiler.split(), *flags, "-o", str(made), str(source), "-lpthread"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(target)
    return target


class NativePeer:
    """`peer.c`, loaded twice: `free` releases the GIL around a call, `held` keeps it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.free = ctypes.CDLL(str(path))
        self.held = ctypes.PyDLL(str(path))
        self.held.peer_lend.restype = ctypes.c_void_p
        self.held.peer_lend.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        ]
        self.held.peer_managed.restype = ctypes.c_void_p
        self.held.peer_managed.argtypes = [ctypes.c_void_p]
        self.held.peer_free.argtypes = [ctypes.c_void_p]
        self.held.peer_capsule.restype = ctypes.py_object
        self.held.peer_capsule.argtypes = [ctypes.c_int, ctypes.c_void_p]
        for name, signature in _TABLE_SIGNATURES.items():
            getattr(self.held, name).argtypes = signature

    def lend(self, what: Description, *, versioned: bool = True, forget: bool = False) -> int:
        """Return the address of a Record, which is the caller's to free unless `forget`.

        The data that `what` points to must outlive the loan: nothing here keeps it.
        """
        struct, *arrays = make_struct(what, versioned)
        ndim = len(what.shape or ())
        record = self.held.peer_lend(
            versioned, ctypes.addressof(struct), ndim, forget, not what.has_deleter
        )
        del arrays
        return int(record)

    def capsule(self, record: int, *, versioned: bool = True) -> Any:
        """Return a capsule over a Record's managed tensor, with a destructor in C."""
        return self.held.peer_capsule(versioned, self.held.peer_managed(record))

    def disposable(self, what: Description, *, versioned: bool = True) -> Any:
        """Return a capsule whose deleter frees everything and counts nothing."""
        return self.capsule(self.lend(what, versioned=versioned, forget=True), versioned=versioned)

    def delete_on_threads(
        self, consumers: Sequence[Consumer], *, threads: int = 1, times: int = 1
    ) -> None:
        """Call the deleters, without the GIL, on threads that Python never saw, and wait."""
        addresses = self._addresses(consumers)
        failed = self.free.peer_delete_on_threads(
            consumers[0].versioned, addresses, len(addresses), threads, times
        )
        assert failed == 0

    def delete_in_background(self, consumers: Sequence[Consumer], *, pause: int) -> None:
        """Call the deleters on a foreign thread, `pause` microseconds apart; do not wait."""
        addresses = self._addresses(consumers)
        failed = self.free.peer_delete_in_background(
            consumers[0].versioned, addresses, len(addresses), pause
        )
        assert failed == 0

    def delete_after_python(self, consumers: Sequence[Consumer], *, at_exit: bool) -> None:
        """Call the deleters after Py_Finalize, or later still, when the process ends."""
        addresses = self._addresses(consumers)
        failed = self.free.peer_delete_after_python(
            consumers[0].versioned, addresses, len(addresses), at_exit
        )
        assert failed == 0

    def _addresses(self, consumers: Sequence[Consumer]) -> Any:
        for consumer in consumers:
            assert not consumer.released
            assert consumer.versioned == consumers[0].versioned
            consumer.released = True
        return (ctypes.c_void_p * len(consumers))(*(c.address for c in consumers))

    def address_of(self, name: str) -> int:
        """Return where a C function is, to put it into a Table."""
        address = ctypes.cast(getattr(self.held, name), ctypes.c_void_p).value
        assert address is not None
        return address


def on_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(count - 1)` at once on Python threads; raise what one raised."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
