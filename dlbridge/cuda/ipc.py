"""CUDA memory for other processes of this machine: sent as a handle, without a copy where possible.

The sender's memory lives until the receiver lets go of it. The receiver's current stream waits for
what the sender had enqueued; the host of neither waits. Later work of
both on the memory is theirs to order.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from dlbridge import registry
from dlbridge._core import ffi, native
from dlbridge.cuda.driver import check, device_count, entered, relaxed
from dlbridge.errors import ArgumentError, CUDAError, DLBridgeError, ExchangeError
from dlbridge.signals import not_from_handler

Dims = tuple[int, ...]

_INVALID_VALUE = 1
_DEVICE, _LEGACY, _NONE = 2, 1, -1
_NO_TIMING, _INTERPROCESS = 2, 4
_RANGE_START, _RANGE_SIZE = 11, 12  # CUpointer_attribute
_LAZY_PEER_ACCESS = 1
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_OWN_REFERENCES = 2  # that of the tensor kept, that of the object that counts them


class Ticket(NamedTuple):
    """The address of memory in another process of the same user; plain numbers and bytes.

    The offset is in bytes, from the start of the allocation, which has `nbytes`. A ticket is data:
    `read_ticket` checks what it says by itself, `receive` compares it with what the ledger and the
    driver say.
    """

    origin: tuple[int, ...]
    device: bytes
    memory: bytes
    event: bytes
    offset: int
    nbytes: int


_HANDLE_SIZES = {"device": 16, "memory": 64, "event": 64}  # of CUuuid, CUipc…Handle
_MOST = (2**31, 2**63, 2**31, 2**31)  # of an _Origin's process, birth, file and row


def read_ticket(given: object) -> Ticket:
    """Return a ticket out of a pickle.

    Raises:
        ArgumentError: it is no ticket.
    """
    if type(given) is tuple and len(given) == len(Ticket._fields):
        ticket = Ticket(*given)
        origin = ticket.origin
        if (
            type(origin) is tuple
            and [type(n) for n in origin] == [int] * len(_MOST)
            and all(0 <= n < most for n, most in zip(origin, _MOST, strict=True))
            and all(_is_bytes(getattr(ticket, name), n) for name, n in _HANDLE_SIZES.items())
            and all(type(n) is int and 0 <= n < 2**63 for n in (ticket.offset, ticket.nbytes))
        ):
            return ticket
    raise ArgumentError(f"unpickling: no ticket of CUDA memory: {given!r}")


def _is_bytes(given: object, length: int) -> bool:
    return type(given) is bytes and len(given) == length


# ---- out -----------------------------------------------------------------------------------------


class _Sent:
    """Memory that was sent: the tensor, and the event after the work enqueued on it."""

    def __init__(self, tensor: native.TensorBase, device: int, event: Any) -> None:
        self.tensor, self._device, self._event = tensor, device, event

    def is_used_here(self) -> bool:
        """Return whether there are other tensors over the memory."""
        return self.tensor.buffer.refcount > _OWN_REFERENCES

    def __del__(self) -> None:
        with suppress(DLBridgeError), entered(self._device) as functions:
            functions.cuEventDestroy(self._event)


class _PlainMemory:
    """Memory of `cuMemAlloc`, which has handles, where that of pools has none."""

    def __init__(self, device: int, nbytes: int) -> None:
        self._device = device
        address = ffi.new("CUdeviceptr *")
        with entered(device) as functions, relaxed(functions):
            check("pickling", functions.cuMemAlloc(address, nbytes), "cuMemAlloc")
        self.address = int(address[0])

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _outside_of_captures(self._device, lambda it: it.cuMemFree(self.address))


def send(tensor: native.TensorBase) -> tuple[native.TensorBase, Ticket]:
    """Return a ticket for the memory of a tensor that has elements, and the tensor it is of.

    That is `tensor` itself, or a compact copy where its memory has no handle: that of pools, as
    dlbridge's own is, and managed memory.

    Raises:
        ExchangeError: with reason "stream", the current stream is being captured.
        CUDAError: the driver failed.
    """
    release()
    device = tensor._device_pair[1]
    stream = native.cuda_current_stream(device)
    _refuse_captured(device, stream)
    memory = _memory_handle(tensor, device)
    if memory is None:
        tensor = _plain_copy(tensor, device)
        memory = _memory_handle(tensor, device)
    if memory is None:
        raise CUDAError("pickling: the driver gives no handle for its own memory")
    native.cuda_begin(tensor, stream, False)
    event, handle = _event(device, stream)
    start, nbytes = _allocation(tensor.data_ptr, device)
    origin = _own_ledger().open(_Sent(tensor, device, event))
    offset = tensor.data_ptr - start
    return tensor, Ticket(tuple(origin), _uuid(device), memory, handle, offset, nbytes)


def _refuse_captured(device: int, stream: int) -> None:
    status = ffi.new("int *")
    if stream == _LEGACY:
        return
    with entered(device) as functions:
        code = functions.cuStreamIsCapturing(ffi.cast("CUstream", stream), status)
        check("pickling", code, "cuStreamIsCapturing")
    if status[0]:
        raise ExchangeError(
            "stream",
            "pickling: the current stream is being captured into a CUDA graph, and another process "
            "cannot wait for work of a graph; pickle after the capture",
        )


def _memory_handle(tensor: native.TensorBase, device: int) -> bytes | None:
    if tensor._device_pair[0] != _DEVICE:
        return None
    handle = ffi.new("CUipcMemHandle *")
    start, _ = _allocation(tensor.data_ptr, device)
    with entered(device) as functions, relaxed(functions):
        code = functions.cuIpcGetMemHandle(handle, start)
    if code == _INVALID_VALUE:
        return None
    check("pickling", code, "cuIpcGetMemHandle")
    return bytes(ffi.buffer(handle))


def _plain_copy(tensor: native.TensorBase, device: int) -> native.TensorBase:
    _, bits, lanes = tensor._dtype_triple
    memory = _PlainMemory(device, max(1, (tensor.size * bits * lanes + 7) // 8))
    flags = tensor.flags & ~1
    copy = native.take_object(
        memory, memory.address, tensor.shape, None, tensor._dtype_triple, (_DEVICE, device), flags
    )
    native.copy_into(copy, tensor)
    return copy


def _event(device: int, stream: int) -> tuple[Any, bytes]:
    event, handle = ffi.new("CUevent *"), ffi.new("CUipcEventHandle *")
    where = ffi.cast("CUstream", stream)
    with entered(device) as it, relaxed(it):
        check("pickling", it.cuEventCreate(event, _NO_TIMING | _INTERPROCESS), "cuEventCreate")
        check("pickling", it.cuEventRecord(event[0], where), "cuEventRecord")
        check("pickling", it.cuIpcGetEventHandle(handle, event[0]), "cuIpcGetEventHandle")
    return event[0], bytes(ffi.buffer(handle))


def _allocation(address: int, device: int) -> tuple[int, int]:
    """Return the start and the bytes of the allocation that holds an address."""
    found = ffi.new("unsigned long long[2]")
    with entered(device) as functions:
        for i, attribute in enumerate((_RANGE_START, _RANGE_SIZE)):
            code = functions.cuPointerGetAttribute(found + i, attribute, address)
            check("pickling", code, "cuPointerGetAttribute")
    return int(found[0]), int(found[1])


def _uuid(device: int) -> bytes:
    out = ffi.new("CUuuid *")
    with entered(device) as functions:
        check("pickling", functions.cuDeviceGetUuid(out, device), "cuDeviceGetUuid")
    return bytes(ffi.buffer(out))


# ---- in ------------------------------------------------------------------------------------------


class _Received:
    """Memory of another process; goes back when nothing here has it and no kernel uses it."""

    def __init__(self, ticket: Ticket, device: int, give_back: Callable[[], None]) -> None:
        self._device, self._give_back = device, give_back
        self.start = 0
        address = ffi.new("CUdeviceptr *")
        handle = ffi.from_buffer("CUipcMemHandle *", ticket.memory)[0]
        with entered(device) as functions, relaxed(functions):
            code = functions.cuIpcOpenMemHandle(address, handle, _LAZY_PEER_ACCESS)
        check("unpickling", code, "cuIpcOpenMemHandle")
        self.start = int(address[0])

    def __del__(self) -> None:
        if self.start:
            _outside_of_captures(self._device, lambda it: it.cuIpcCloseMemHandle(self.start))
        self._give_back()


def receive(
    ticket: Ticket,
    shape: Dims,
    strides: Dims,
    dtype: tuple[int, int, int],
    flags: int,
    reach: tuple[int, int],
) -> native.TensorBase:
    """Return a tensor over the memory that a ticket finds, in order on the current stream.

    `reach` is what the elements take, in bytes from the first one: the lowest byte, and the end.

    Raises:
        ArgumentError: the allocation, as the driver knows it, does not hold all of the elements.
        ExchangeError: with reason "device", the sender has ended or let go of it, or this process
            does not see its GPU.
        CUDAError: the driver failed.
    """
    origin = _Origin(*ticket.origin)
    if _own_ledger().owns(origin):
        return _found_here(origin, shape, strides, dtype, flags, reach)
    give_back = _take(origin)
    try:
        device = _device_of(ticket.device)
    except DLBridgeError:
        give_back()
        raise
    memory = _Received(ticket, device, give_back)
    _check_reach(memory.start, ticket.offset, device, reach)
    stream = native.cuda_current_stream(device)
    _wait(ticket, device, stream)
    address = memory.start + ticket.offset
    tensor = native.take_object(memory, address, shape, strides, dtype, (_DEVICE, device), flags)
    native.cuda_set_streams(tensor, stream, _NONE)
    return tensor


def _found_here(
    origin: _Origin,
    shape: Dims,
    strides: Dims,
    dtype: tuple[int, int, int],
    flags: int,
    reach: tuple[int, int],
) -> native.TensorBase:
    """Return what this process has sent itself: the same memory."""
    sent = _own_ledger().find(origin.row)
    if sent is None:
        raise ExchangeError(
            "device",
            "unpickling: this process has sent the tensor, and another one has taken it and given "
            "it back since; pickle it again",
        )
    _check_reach(sent.tensor.data_ptr, 0, sent.tensor._device_pair[1], reach)
    return sent.tensor._view(shape, strides, 0, dtype, flags | (sent.tensor.flags & _READ_ONLY))


def _check_reach(known: int, offset: int, device: int, reach: tuple[int, int]) -> None:
    """Refuse elements outside of the allocation of a known address, as the driver has it."""
    start, nbytes = _allocation(known, device)
    first, end = [known + offset + each - start for each in reach]
    if not 0 <= first <= end <= nbytes:
        raise ArgumentError(
            f"unpickling: the elements lie in bytes {first} to {end} of an allocation that has "
            f"{nbytes}"
        )


def _device_of(uuid: bytes) -> int:
    for device in range(device_count()):
        if _uuid(device) == uuid:
            return device
    raise ExchangeError(
        "device",
        "unpickling: the tensor is on a GPU that this process does not see; give both processes "
        "the same CUDA_VISIBLE_DEVICES",
    )


def _wait(ticket: Ticket, device: int, stream: int) -> None:
    event = ffi.new("CUevent *")
    handle = ffi.from_buffer("CUipcEventHandle *", ticket.event)[0]
    with entered(device) as it, relaxed(it):
        check("unpickling", it.cuIpcOpenEventHandle(event, handle), "cuIpcOpenEventHandle")
        code = it.cuStreamWaitEvent(ffi.cast("CUstream", stream), event[0], 0)
        it.cuEventDestroy(event[0])
    check("unpickling", code, "cuStreamWaitEvent")


def _outside_of_captures(device: int, call: Callable[[Any], int]) -> None:
    """Call a function that CUDA forbids during a capture, although it does not affect one.

    Failures are ignored: the memory or the driver is no longer there.
    """
    with suppress(DLBridgeError), entered(device) as functions, relaxed(functions):
        call(functions)


# ---- the ledger of memory that other processes still hold from this one -------------------------

# Each process that sends memory has one file, which lives in memory only and as long as the
# process: a byte for each thing that was sent, never used twice. Its holder has a lock on that
# byte. The system lets go of the locks of a process that dies, so that its sender always gets its
# memory back.
#
# A ticket names the file by its number in the sender. That number may be any, so nothing is opened
# but a file in memory, of this name and this user.
_SENT, _TAKEN, _GIVEN_BACK = b"\0", b"\1", b"\2"
_NAME = "dlbridge-ledger"
_LINK = f"/memfd:{_NAME} (deleted)"  # what /proc says of it
_PATIENCE = 2.0  # seconds that the lock of a byte may take; its sender has it for microseconds


class _Origin(NamedTuple):
    """The process that has sent something, and where: its id and birth, its file, the byte."""

    process: int
    born: int
    file: int
    row: int


def _born(process: int) -> int:
    """Return when a process started, in ticks since the machine did, or 0 without such a process.

    Ids of processes are used again.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except not_from_handler(OSError):
        return 0
    return int(fields[19])


class _Ledger:
    """The memory that this process has sent, kept until no other process has it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._born = _born(self.process)
        self._file = os.memfd_create(_NAME)
        self._lock = registry.lock()
        self._kept: dict[int, _Sent] = {}
        self._rows = 0

    def open(self, kept: _Sent) -> _Origin:
        """Keep something until it was taken and given back; returns what finds it again."""
        with self._lock:
            row = self._rows
            self._rows += 1
            os.pwrite(self._file, _SENT, row)
            self._kept[row] = kept
        return _Origin(self.process, self._born, self._file, row)

    def find(self, row: int) -> _Sent | None:
        """Return what was sent, for this process itself, if it is still kept."""
        with self._lock:
            if row in self._kept:
                os.pwrite(self._file, _TAKEN, row)
            return self._kept.get(row)

    def owns(self, origin: _Origin) -> bool:
        """Return whether it was sent by this process."""
        return (origin.process, origin.born) == (self.process, self._born)

    def collect(self) -> int:
        """Release what no process has any more; return how much is still kept."""
        with self._lock:
            gone = [self._kept.pop(row) for row in list(self._kept) if self._is_over(row)]
            count = len(self._kept)
        del gone  # not under the lock: it may come back here
        return count

    def _is_over(self, row: int) -> bool:
        if self._kept[row].is_used_here():
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except not_from_handler(OSError):
            return False  # somebody has it
        try:
            if os.pread(self._file, 1, row) == _SENT:
                return False  # no process has taken it yet
            os.pwrite(self._file, _GIVEN_BACK, row)
            return True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)


class _Neighbour:
    """The ledger of another process, and what this one has of it."""

    def __init__(self, origin: _Origin) -> None:
        self._lock = registry.lock()
        self._counts: dict[int, int] = {}
        path = f"/proc/{origin.process}/fd/{origin.file}"
        try:
            if not _is_ledger(path):
                raise _gone(origin, "it has no such ledger")
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except not_from_handler(OSError) as error:
            raise _gone(origin, str(error)) from None

    def take(self, origin: _Origin) -> Callable[[], None]:
        """Mark it as taken by this process; return the function that gives it back.

        Raises:
            ExchangeError: the sender has let go of it.
        """
        row = origin.row
        with self._lock:
            if row not in self._counts:
                self._claim(origin)
            self._counts[row] = self._counts.get(row, 0) + 1
        return lambda: self._give_back(row)

    def _claim(self, origin: _Origin) -> None:
        if not _lock_byte(self._file, origin.row):
            raise _gone(origin, f"another process has locked it for {_PATIENCE:g} seconds")
        if os.pread(self._file, 1, origin.row) not in (_SENT, _TAKEN):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, origin.row)
            raise _gone(origin, "it was taken and given back before; pickle it again")
        os.pwrite(self._file, _TAKEN, origin.row)

    def _give_back(self, row: int) -> None:
        with self._lock:
            self._counts[row] -= 1
            if self._counts[row] == 0:
                del self._counts[row]
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)


def _is_ledger(path: str) -> bool:
    """Return whether a link of /proc is to a ledger of this user; nothing is opened."""
    found = os.stat(path)
    return (
        stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and os.readlink(path) == _LINK
    )


def _lock_byte(file: int, row: int) -> bool:
    """Share the lock of a byte; False where that takes too long."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, row)
        except not_from_handler(OSError):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        else:
            return True


_ledgers: list[_Ledger] = []
_neighbours: dict[tuple[int, int, int], _Neighbour] = {}
_lock = registry.lock()


def _own_ledger() -> _Ledger:
    """Return the ledger of this process; a forked one has one of its own."""
    with _lock:
        if not _ledgers or _ledgers[-1].process != os.getpid():
            _ledgers[:] = [_Ledger()]
            _neighbours.clear()
        return _ledgers[-1]


def _take(origin: _Origin) -> Callable[[], None]:
    """Take what another process has sent; return the function that gives it back.

    Raises:
        ExchangeError: the sender has ended, or let go of it.
    """
    key = (origin.process, origin.born, origin.file)
    if origin.born == 0 or _born(origin.process) != origin.born:
        raise _gone(origin, "it has ended")
    with _lock:
        neighbour = _neighbours.get(key)
        if neighbour is None:
            neighbour = _neighbours[key] = _Neighbour(origin)
    return neighbour.take(origin)


def release() -> int:
    """Release what was sent and no process has any more; return how much is still kept."""
    return _ledgers[-1].collect() if _ledgers else 0


def _gone(origin: _Origin, why: str) -> ExchangeError:
    return ExchangeError(
        "device",
        f"unpickling: CUDA memory of process {origin.process} cannot be had: {why}; a pickled CUDA "
        'tensor is for other processes while its sender runs; pickle tensor.to("cpu") to keep it',
    )
