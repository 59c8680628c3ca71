"""Sending and receiving one tensor.

A message says what the tensor is: dtype, shape, who sends. Up to 8 KiB of contents follow in the
same message, larger contents in a second one, which goes straight into the memory of the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, MPIError
from dlbridge.exchange import adapter
from dlbridge.mpi import matching
from dlbridge.mpi.channel import Channel, begins, channel, check_rank
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.values import MOST_DIMENSIONS, Destination, Kind, Source, give, take
from dlbridge.tensor.values import raw_bytes

_FORM = struct.Struct("<IIQ")  # tag of the contents' own message, sender, user's tag
_SPACE = _FORM.size + 8 * (MOST_DIMENSIONS + 1) + native.MESSAGE_MOST


def _check_tag(call: str, tag: Any, highest: int) -> int:
    if isinstance(tag, bool) or not hasattr(tag, "__index__"):
        raise ArgumentError(f"{call}: tag must be an integer, got {tag!r}")
    number = int(tag.__index__())
    if not 0 <= number <= highest:
        raise ArgumentError(f"{call}: tag must be from 0 to {highest}, got {number}")
    return number


@begins("send")
def isend(over: Channel, x: Any, dest: int, tag: int) -> Request:
    """Begin a send."""
    return _begin_send(over, x, dest, tag)


Prepared = tuple[Operation, Steps]
"""A message that is checked, with its memory: to begin it, only MPI has to take it."""


def _begin_send(over: Channel, x: Any, dest: int, tag: int) -> Request:
    return over.engine.start(*_prepare_send(over, take("send", x), dest, tag))


def _is_nobody(over: Channel, rank: Any) -> bool:
    """Return whether it is MPI's rank of no process, a neighbour beyond an edge of a grid."""
    return type(rank) is int and bool(rank == over.mpi.PROC_NULL)


def _nothing(over: Channel, call: str, result: Any) -> Prepared:
    """Return an exchange with nobody, which is over at once."""

    def steps() -> Steps:
        yield from ()
        return result

    return over.operation(call, frozenset()), steps()


def _prepare_send(
    over: Channel, source: Source, dest: int, tag: int, call: str = "send"
) -> Prepared:
    tag = _check_tag(call, tag, over.highest_tag)
    if _is_nobody(over, dest):
        return _nothing(over, "send", None)
    dest = check_rank(call, "dest", dest, over.size)
    tensor = source.tensor
    operation = over.operation("send", frozenset((over.members[dest],)))
    operation.nbytes = tensor.nbytes
    byte, number = over.mpi.BYTE, over.peers.next_payload()
    head = _FORM.pack(number, over.rank, tag)
    head += Kind(tensor.shape, tensor._dtype_triple).pack()
    is_small = tensor.nbytes <= native.MESSAGE_MOST
    if is_small:
        head += bytes(np.asarray(raw_bytes(tensor)))
    contents = None if is_small else [over.memory(tensor), tensor.nbytes, byte]
    operation.kept += [head, tensor]

    def steps() -> Steps:
        if contents is not None:  # first, as a rank that gets the head waits for them
            operation.requests = (over.payloads.Isend(contents, dest, number),)
        head_request = over.messages.Isend([head, len(head), byte], dest, tag)
        yield (head_request, *operation.requests)

    return operation, steps()


@begins("send")
def go_on_sending(over: Channel, posted: native.Posted, dest: int) -> Request:
    """Go on with a send that C has posted."""
    return over.engine.start(*_prepare_posted(over, posted, dest))


def _prepare_posted(over: Channel, posted: native.Posted, dest: int) -> Prepared:
    operation = over.operation("send", frozenset((over.members[dest],)))
    operation.kept.append(posted)
    operation.nbytes = posted.nbytes
    return operation, _until(posted)


def _until(posted: native.Posted) -> Steps:
    while not posted.advance():
        yield None


def explain(comm: Any, error: BaseException, call: str, peer: int) -> BaseException:
    """Return the error of a call that C has begun, with one rank, or -1: with all."""
    over = channel(call, comm)
    peers = over.everybody if peer < 0 else frozenset((over.members[peer],))
    return over.engine.job.explain(call, error, peers)


@begins("recv")
def irecv(
    over: Channel,
    source: int | None,
    tag: int | None,
    to: str,
    out: Any,
) -> Request:
    """Begin a receive."""
    return over.engine.start(*_prepare_receive(over, source, tag, to, out))


@begins("recv")
def go_on_receiving(
    over: Channel, posted: native.Posted, source: int, tag: int | None, to: str, out: Any
) -> Request:
    """Go on with a receive that C has posted."""
    return over.engine.start(*_prepare_receive(over, source, tag, to, out, posted))


def _prepare_receive(
    over: Channel,
    source: int | None,
    tag: int | None,
    to: str,
    out: Any,
    posted: native.Posted | None = None,
    call: str = "recv",
) -> Prepared:
    if tag is not None:
        tag = _check_tag(call, tag, over.highest_tag)
    if posted is None:
        to = adapter.target(to, call).name
    destination = None if out is None else Destination(call, out)
    adapter.adapter(to)
    if source is not None and _is_nobody(over, source):
        return _nothing(over, "recv", out)
    if source is not None:
        source = check_rank(call, "source", source, over.size)
    peers = over.everybody - {over.members[over.rank]}
    if source is not None:
        peers = frozenset((over.members[source],))
    operation = over.operation("recv", peers)
    operation.any_peer = source is None
    if posted is not None and posted.nbytes:
        operation.kept.append(posted)
        operation.nbytes = posted.nbytes
        _, operation.source, operation.tag = _FORM.unpack_from(posted.data)
        return operation, _receive_posted(posted, to, out)
    space = np.empty(_SPACE if posted is None else 0, np.uint8)
    head = _await_head(over, operation, source, tag, posted, space)
    return operation, _receive(over, operation, head, to, destination)


def _receive_posted(posted: native.Posted, to: str, out: Any) -> Steps:
    """Wait for large contents, which C receives into `out` or into new memory."""
    yield from _until(posted)
    return out if posted.result is None else give(posted.result, to)


def _await_head(
    over: Channel,
    operation: Operation,
    source: int | None,
    tag: int | None,
    posted: native.Posted | None,
    space: np.ndarray[Any, Any],
) -> Generator[Any, None, tuple[memoryview, int]]:
    """Receive the first message; return it, and who sent it."""
    if posted is not None:
        assert source is not None
        operation.kept.append(posted)
        operation.posted, operation.may_cancel = posted, True
        yield from _until(posted)
        operation.may_cancel = False
        return memoryview(posted.data), source
    mpi = over.mpi
    operation.kept.append(space)
    memory = [space, _SPACE, mpi.BYTE]
    status = mpi.Status()  # before anything is posted
    if matching.must_wait(over, source):
        message = yield from matching.Receive(over, operation, source, tag).wait()
        request = message.Irecv(memory)
    else:
        request = over.messages.Irecv(memory, source, mpi.ANY_TAG if tag is None else tag)
        operation.may_cancel = True
    operation.status = status
    yield (request,)
    operation.status = None
    operation.may_cancel = False
    return space.data[: status.Get_count(mpi.BYTE)], status.Get_source()


def _receive(
    over: Channel,
    operation: Operation,
    head: Generator[Any, None, tuple[memoryview, int]],
    to: str,
    out: Destination | None,
) -> Steps:
    mpi = over.mpi
    data, peer = yield from head
    number, sender, operation.tag, kind, contents = _read_head(data, peer, over.highest_tag)
    operation.source = sender
    operation.peers = frozenset((over.members[sender],))  # from here on it needs that one
    operation.any_peer = False
    fits = out is None or out.kind == kind
    try:
        made = out.memory() if out is not None and fits else kind.empty()
    except MemoryError:
        if not len(contents) and 0 not in kind.shape:  # they come by themselves
            yield from _receive_nothing(over, operation, sender, number, kind)
        raise
    nbytes = made.nbytes
    if len(contents) != (nbytes if nbytes <= native.MESSAGE_MOST else 0):
        raise MPIError(
            f"recv: rank {sender} announces {kind} of {nbytes} bytes and sends {len(contents)} "
            "with that; run the same dlbridge on all ranks"
        )
    if nbytes > native.MESSAGE_MOST:
        operation.nbytes = nbytes
        operation.kept.append(made)
        operation.status = status = mpi.Status()
        yield (over.payloads.Irecv([over.memory(made), nbytes, mpi.BYTE], sender, number),)
        operation.status = None
        if status.Get_count(mpi.BYTE) != nbytes:
            raise MPIError(
                f"recv: rank {sender} announces {nbytes} bytes and sends "
                f"{status.Get_count(mpi.BYTE)}; run the same dlbridge on all ranks"
            )
    elif fits:
        np.asarray(raw_bytes(made))[:] = contents
    if out is None:
        return give(made, to)
    out.check(kind)  # the message is received all the same, or its sender would wait
    return out.finish(made)


def _receive_nothing(
    over: Channel, operation: Operation, sender: int, number: int, kind: Kind
) -> Steps:
    """Receive and discard large contents that cannot be allocated, so that their sender goes on.

    All their blocks are received into the same buffer. With MPICH a shorter receive would do, but
    OpenMPI 5.0.11 writes past the end of a receive that is too short.
    """
    block = bytearray(native.MESSAGE_MOST)
    _, bits, lanes = kind.dtype
    most = math.prod(kind.shape) * -(-bits * lanes // 8)
    sizes = [native.MESSAGE_MOST] * -(-most // native.MESSAGE_MOST)
    datatype = over.mpi.BYTE.Create_hindexed(sizes, [0] * len(sizes)).Commit()
    operation.kept.append(block)
    request = over.payloads.Irecv([block, 1, datatype], sender, number)
    datatype.Free()  # MPI keeps it until the receive is over
    yield (request,)


def _read_head(
    data: memoryview, sender: int, highest: int
) -> tuple[int, int, int, Kind, memoryview]:
    """Return what a message says: tag of the contents, sender, tag, kind, and what is left of it.

    Raises:
        MPIError: it is nothing that `_send` writes.
    """
    if len(data) < _FORM.size:
        raise MPIError(f"recv: rank {sender} sends {len(data)} bytes; run the same dlbridge there")
    number, said, tag = _FORM.unpack_from(data)
    if said != sender or number > highest or tag > highest:
        raise MPIError(
            f"recv: rank {sender} sends a message of rank {said} with the tags {number} and {tag}; "
            "run the same dlbridge there"
        )
    kind, size = Kind.unpack(data[_FORM.size :])
    return number, sender, tag, kind, data[_FORM.size + size :]


@begins("sendrecv")
def isendrecv(
    over: Channel,
    x: Any,
    dest: int,
    source: int | None,
    tags: tuple[int, int | None],
    to: str | None,
    out: Any,
) -> Request:
    """Begin a send and a receive: both are checked before either is posted."""
    taken = take("sendrecv", x)
    framework = taken.framework if to is None else to
    receive = _prepare_receive(over, source, tags[1], framework, out, call="sendrecv")
    return _exchange(over, _prepare_send(over, taken, dest, tags[0], "sendrecv"), receive)


@begins("sendrecv")
def go_on_exchanging(
    over: Channel,
    posted: tuple[native.Posted, native.Posted],
    x: Any,
    dest: int,
    source: int,
    _: int,
    tag: int | None,
    to: str | None,
    out: Any,
) -> Request:
    """Go on with a send and a receive that C has posted."""
    framework = take("sendrecv", x).framework if to is None else to
    receive = _prepare_receive(over, source, tag, framework, out, posted[1])
    return _exchange(over, _prepare_posted(over, posted[0], dest), receive)


def _exchange(over: Channel, send: Prepared, receive: Prepared) -> Request:
    """Begin a send and a receive, and what waits for both, for which there is memory before."""
    sent, received = send[0], receive[0]
    operation = over.operation("sendrecv", received.peers | sent.peers)

    def steps() -> Steps:
        for part in (sent, received):
            while not part.done:
                yield part
        for part in (sent, received):
            if part.error is not None:
                raise part.error
        return received.result

    operation.nbytes = received.nbytes + sent.nbytes
    operation.receive = received
    operation.parts = sent, received
    made = over.engine.request(operation, steps())
    first = over.engine.start(*send)  # where it fails, no receive may take a message
    if sent.error is not None:
        return first
    over.engine.start(*receive)
    over.engine.begin(operation)
    return made
