"""The collectives: agreement, then one call of MPI on the compact memory, then the result.

Each begins on every rank, also on one that cannot take part: that is how the others learn of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, MPIError
from dlbridge.mpi import reductions
from dlbridge.mpi.agreement import MOST, Ballot, agree
from dlbridge.mpi.channel import Channel, channel, check_rank
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.values import Destination, Kind, Source, give, take
from dlbridge.tensor.values import raw_bytes

Post = Callable[[Any, Any], Any]


class Call(NamedTuple):
    """One collective call of this rank, checked as far as one rank can.

    Attributes:
        source: what goes out, None where this rank has nothing.
        kind: of the result, None where the others say it, or where there is none.
        out: where the result goes, None for a new array.
        framework: of the result, where there is no source.
        error: why this rank cannot take part.
    """

    name: str
    arguments: str
    source: Source | None
    kind: Kind | None
    out: Destination | None
    framework: str
    error: Exception | None

    def receive(self, kind: Kind) -> native.TensorBase:
        """Return memory for the result."""
        if self.out is None:
            return kind.empty()
        return self.out.memory(None if self.source is None else self.source.tensor)

    def finish(self, result: native.TensorBase) -> Any:
        """Return the result to the user."""
        if self.out is not None:
            return self.out.finish(result)
        source = self.source
        if source is None:
            return give(result, self.framework)
        return give(result, source.framework, source.device)

    def ballot(self, payload: Any = b"", combine: Any = None, kind: Kind | None = None) -> Ballot:
        """Return what this rank says of the call; `kind` is expected where it has no source."""
        kind = kind if self.source is None else self.source.kind
        return Ballot(self.name, self.arguments, kind, payload, combine, self.error)


def prepare(
    name: str,
    x: Any,
    out: Any,
    result: Callable[[Kind], Kind | None],
    arguments: str = "",
    framework: str = "numpy",
) -> Call:
    """Check what this rank passes; `result` tells the kind of the result, or refuses."""
    source = kind = destination = error = None
    try:
        source = None if x is None else take(name, x)
        kind = None if source is None else result(source.kind)
        destination = None if out is None else Destination(name, out)
        if destination is not None and kind is not None:
            destination.check(kind)
    except (DLBridgeError, TypeError, ValueError) as refused:
        error = refused
    return Call(name, arguments, source, kind, destination, framework, error)


def start(
    call: Call,
    over: Channel,
    steps: Callable[[Operation], Steps],
) -> Request:
    """Begin a collective."""
    operation = over.operation(call.name)
    operation.nbytes = 0 if call.source is None else call.source.tensor.nbytes
    return over.engine.start(operation, over.in_turn(operation, steps(operation)))


def exchange(over: Channel, operation: Operation, post: Post, source: Any, target: Any) -> Steps:
    """Make one call of MPI from tensor to tensor, in its turn."""
    operation.kept += [source, target]
    yield from over.turn(operation)
    empty = over.mpi.buffer.fromaddress(0, 0)
    send = empty if source is None else over.memory(source)
    request = post(send, empty if target is None else over.memory(target))
    over.pass_turn(operation)
    yield (request,)


# ---- reductions ---------------------------------------------------------------------------------


def iallreduce(x: Any, op: str, out: Any, comm: Any) -> Request:
    """Begin an allreduce."""
    return _reduce("allreduce", x, op, None, out, comm)


def ireduce(x: Any, op: str, root: int, out: Any, comm: Any) -> Request:
    """Begin a reduce."""
    return _reduce("reduce", x, op, root, out, comm)


def _reduce(name: str, x: Any, op: str, root: int | None, out: Any, comm: Any) -> Request:
    over = channel(name, comm)
    dtype = None

    def result(kind: Kind) -> Kind:
        nonlocal dtype
        reductions.find(name, op)
        dtype = reductions.numpy_dtype(name, op, kind)
        if root is not None:
            check_rank(name, "root", root, over.size)
        return kind

    is_root = root is None or root == over.rank
    arguments = f"op={op!r}" if root is None else f"op={op!r}, root={root}"
    call = _require_tensor(prepare(name, x, out if is_root else None, result, arguments))
    kind = call.kind

    def small(operation: Operation) -> Steps:
        assert kind is not None
        assert call.source is not None
        ufunc = reductions.find(name, op).ufunc

        def combine(target: Any, other: Any) -> None:
            reductions.combine(ufunc, target.view(dtype), other.view(dtype))

        ballot = call.ballot(raw_bytes(call.source.tensor), combine)
        yield from agree(over, operation, ballot)
        if not is_root:
            return None
        made = call.receive(kind)
        np.asarray(raw_bytes(made))[:] = ballot.payload
        return call.finish(made)

    def large(operation: Operation) -> Steps:
        assert kind is not None
        assert call.source is not None
        assert dtype is not None
        yield from agree(over, operation, call.ballot())
        count = call.source.tensor.size
        datatype, operator = reductions.operators(over).get(op, kind, dtype)
        target = call.receive(kind) if is_root else None

        def post(send: Any, receive: Any) -> Any:
            sent = [send, count, datatype]
            if root is None:
                return over.collective.Iallreduce(sent, [receive, count, datatype], operator)
            received = [receive, count, datatype] if is_root else None
            return over.collective.Ireduce(sent, received, operator, root)

        yield from exchange(over, operation, post, call.source.tensor, target)
        return call.finish(target) if target is not None else None

    if call.error is not None:
        return start(call, over, lambda operation: agree(over, operation, call.ballot()))
    assert call.source is not None
    return start(call, over, small if call.source.tensor.nbytes <= MOST else large)


def _require_tensor(call: Call) -> Call:
    if call.source is None and call.error is None:
        error = ArgumentError(f"{call.name}: a tensor is required, got None")
        return call._replace(error=error)
    return call


def ireduce_scatter(x: Any, op: str, out: Any, comm: Any) -> Request:
    """Begin a reduce_scatter."""
    over = channel("reduce_scatter", comm)
    dtype = None

    def result(kind: Kind) -> Kind:
        nonlocal dtype
        reductions.find("reduce_scatter", op)
        dtype = reductions.numpy_dtype("reduce_scatter", op, kind)
        _check_rows("reduce_scatter", kind, over.size)
        return Kind(kind.shape[1:], kind.dtype)

    call = _require_tensor(prepare("reduce_scatter", x, out, result, f"op={op!r}"))

    def steps(operation: Operation) -> Steps:
        yield from agree(over, operation, call.ballot())
        assert call.source is not None
        assert call.kind is not None
        assert dtype is not None
        target = call.receive(call.kind)
        datatype, operator = reductions.operators(over).get(op, call.kind, dtype)
        part = target.size

        def post(send: Any, receive: Any) -> Any:
            return over.collective.Ireduce_scatter_block(
                [send, part, datatype], [receive, part, datatype], operator
            )

        if target.nbytes:
            yield from exchange(over, operation, post, call.source.tensor, target)
        return call.finish(target)

    return start(call, over, steps)


def _check_rows(name: str, kind: Kind, size: int) -> None:
    if not kind.shape or kind.shape[0] != size:
        raise ArgumentError(
            f"{name}: the first dimension must be the number of ranks, {size}, got {kind}"
        )
    if kind.is_packed:
        raise ArgumentError(f"{name}: {kind} has several elements in a byte; convert it first")


# ---- copies -------------------------------------------------------------------------------------


def ibcast(x: Any, root: int, to: str, out: Any, comm: Any) -> Request:
    """Begin a bcast."""
    over = channel("bcast", comm)
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        return kind

    call = prepare("bcast", x, out, result, f"root={root}", to)
    try:
        check_rank("bcast", "root", root, over.size)
    except ArgumentError as error:
        call = call._replace(error=error)
    if is_root:
        call = _require_tensor(call)

    def steps(operation: Operation) -> Steps:
        ballot = _announce(call, is_root)
        yield from agree(over, operation, ballot)
        kind, start = Kind.unpack(ballot.payload.tobytes())
        small = ballot.payload[start:]
        if is_root:
            assert call.source is not None
            made = call.source.tensor
        else:
            made = call.receive(kind)
            if small.size != (made.nbytes if made.nbytes <= MOST else 0):
                raise MPIError(
                    f"bcast: {kind} of {made.nbytes} bytes comes with {small.size}; run the same "
                    "dlbridge on all ranks"
                )
            np.asarray(raw_bytes(made))[: small.size] = small
        operation.nbytes = made.nbytes
        if small.size != made.nbytes:

            def post(memory: Any, _: Any) -> Any:
                return over.collective.Ibcast([memory, made.nbytes, over.mpi.BYTE], root)

            yield from exchange(over, operation, post, made, None)
        return x if is_root and call.out is None else call.finish(made)

    return start(call, over, steps)


def _announce(call: Call, is_root: bool) -> Ballot:
    """Return the ballot of a bcast: the root says what comes, and sends it along if it is small."""
    if call.source is None or not is_root:
        known = call.out.kind if call.out is not None and call.source is None else None
        return call.ballot(kind=known)
    tensor = call.source.tensor
    payload = call.source.kind.pack()
    if tensor.nbytes <= MOST:
        payload += bytes(np.asarray(raw_bytes(tensor)))
    return call.ballot(payload)


def iallgather(x: Any, out: Any, comm: Any) -> Request:
    """Begin an allgather."""
    over = channel("allgather", comm)

    def result(kind: Kind) -> Kind:
        made = Kind((over.size, *kind.shape), kind.dtype)
        _check_rows("allgather", made, over.size)
        return made

    return _copy(over, prepare("allgather", x, out, result), "Iallgather", whole=True)


def ialltoall(x: Any, out: Any, comm: Any) -> Request:
    """Begin an alltoall."""
    over = channel("alltoall", comm)

    def result(kind: Kind) -> Kind:
        _check_rows("alltoall", kind, over.size)
        return kind

    return _copy(over, prepare("alltoall", x, out, result), "Ialltoall", whole=False)


def _copy(over: Channel, call: Call, function: str, *, whole: bool) -> Request:
    """Begin a collective that copies: the whole source to each rank, or one row of it."""
    call = _require_tensor(call)

    def steps(operation: Operation) -> Steps:
        yield from agree(over, operation, call.ballot())
        assert call.source is not None
        assert call.kind is not None
        target = call.receive(call.kind)
        part = call.source.tensor.nbytes // (1 if whole else over.size)

        def post(send: Any, receive: Any) -> Any:
            byte = over.mpi.BYTE
            return getattr(over.collective, function)([send, part, byte], [receive, part, byte])

        if part:
            yield from exchange(over, operation, post, call.source.tensor, target)
        return call.finish(target)

    return start(call, over, steps)


def ibarrier(comm: Any) -> Request:
    """Begin a barrier: it is the agreement alone."""
    over = channel("barrier", comm)
    call = prepare("barrier", None, None, lambda kind: kind)
    return start(call, over, lambda operation: agree(over, operation, call.ballot()))
