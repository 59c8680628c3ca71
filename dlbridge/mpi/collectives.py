"""The collectives: agreement, then one call of MPI on the compact memory, then the result.

Each begins on every rank, also on one that cannot take part: that is how the others learn of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, MPIError
from dlbridge.exchange import adapter
from dlbridge.mpi import reductions
from dlbridge.mpi.agreement import Ballot, Values, agree, copy, digest
from dlbridge.mpi.channel import Channel, begins, check_rank
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.quick import (
    ALLGATHER,
    ALLTOALL,
    BARRIER,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
    learn_call,
)
from dlbridge.mpi.values import Destination, Kind, Source, give, take
from dlbridge.signals import not_from_handler
from dlbridge.tensor.values import raw_bytes

Post = Callable[[Any, Any], Any]
State = native.Ballot | None
"""What C has begun of a call, which Python goes on with."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


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

    def ballot(
        self,
        over: Channel,
        payload: Any = b"",
        combine: Any = None,
        kind: Kind | None = None,
        state: native.Ballot | None = None,
        values: Values | None = None,
        takes: bool = False,
        scatters: bool = False,
        gathers: bool = False,
    ) -> Ballot:
        """Return what this rank says of the call; `kind` is expected where it has no source."""
        kind = kind if self.source is None else self.source.kind
        said = self.name, self.arguments, kind, payload, combine, self.error, state, values, takes
        return Ballot(over.peers, *said, scatters=scatters, gathers=gathers)


def prepare(
    name: str,
    x: Any,
    out: Any,
    result: Callable[[Kind], Kind | None],
    arguments: str = "",
    framework: str = "numpy",
) -> Call:
    """Check what this rank passes; `result` names the kind of the result, or refuses."""
    source = kind = destination = error = None
    try:
        source = None if x is None else take(name, x)
        kind = None if source is None else result(source.kind)
        destination = None if out is None else Destination(name, out)
        if destination is not None and kind is not None:
            destination.check(kind)
    except not_from_handler(DLBridgeError, TypeError, ValueError) as refused:
        error = refused
    return Call(name, arguments, source, kind, destination, framework, error)


def with_target(call: Call, state: State = None) -> tuple[Call, native.TensorBase | None]:
    """Return memory for the result; without it this rank cannot take part, as others have to know.

    That comes before they agree: then each of them makes the call of MPI. What C has begun has it.
    """
    if state is not None and state.result is not None:
        return call, state.result
    if call.error is not None or call.kind is None:
        return call, None
    try:
        return call, call.receive(call.kind)
    except not_from_handler(MemoryError) as error:
        return call._replace(error=error), None


def start(
    call: Call,
    over: Channel,
    steps: Callable[[Operation], Steps],
    *,
    posts: bool = False,
) -> Request:
    """Begin a collective; `posts`: it may post one of MPI, which has to be in its turn."""
    operation = over.operation(call.name)
    operation.nbytes = 0 if call.source is None else call.source.tensor.nbytes
    made = steps(operation)
    if posts or not over.peers.is_direct:
        made = over.in_turn(operation, made)
    return over.engine.start(operation, made)


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


@begins("allreduce")
def iallreduce(over: Channel, x: Any, op: str, out: Any, state: State = None) -> Request:
    """Begin an allreduce, or go on with one."""
    return _reduce("allreduce", over, x, op, None, out, state)


@begins("reduce")
def ireduce(over: Channel, x: Any, op: str, root: int, out: Any, state: State = None) -> Request:
    """Begin a reduce, or go on with one."""
    return _reduce("reduce", over, x, op, root, out, state)


def _reduce(
    name: str, over: Channel, x: Any, op: str, root: int | None, out: Any, state: State
) -> Request:
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
    call = require_tensor(prepare(name, x, out if is_root else None, result, arguments))
    kind = call.kind

    def finish(made: native.TensorBase) -> Any:
        if not is_root:
            return None
        assert dtype is not None
        reductions.finish(op, dtype, made, over.size)
        return call.finish(made)

    def small(operation: Operation) -> Steps:
        assert kind is not None
        assert call.source is not None
        assert dtype is not None
        combine = partial(reductions.combine_in_order, reductions.find(name, op).ufunc, dtype)
        payload = np.asarray(raw_bytes(call.source.tensor))
        ballot = call.ballot(over, payload, combine, state=state)
        yield from agree(over, operation, ballot)
        if not is_root:
            return None
        made = call.receive(kind)
        np.asarray(raw_bytes(made))[:] = np.frombuffer(ballot.payload, np.uint8)
        return finish(made)

    def large(operation: Operation) -> Steps:
        assert kind is not None
        assert call.source is not None
        assert dtype is not None
        known, target = with_target(call) if is_root else (call, None)
        yield from agree(over, operation, known.ballot(over))
        count = call.source.tensor.size
        datatype, operator = reductions.operators(over).get(op, kind, dtype)

        def post(send: Any, receive: Any) -> Any:
            sent = [send, count, datatype]
            if root is None:
                return over.collective.Iallreduce(sent, [receive, count, datatype], operator)
            received = [receive, count, datatype] if is_root else None
            return over.collective.Ireduce(sent, received, operator, root)

        yield from exchange(over, operation, post, call.source.tensor, target)
        return finish(target) if target is not None else None

    if call.error is None:
        assert call.source is not None
        said, key = digest(name, arguments), reductions.known_as(op, root)
        how = reductions.learn(key, op, said, call.source.kind.dtype)
        tensor = call.source.tensor
        is_moved = reductions.follow_ballot(over, tensor)
        if not is_moved or (root is not None and tensor.nbytes > native.REDUCED_MOST):
            is_small = tensor.nbytes <= native.BALLOT_MOST
            return start(call, over, small if is_small else large, posts=not is_small)
        receive = partial(call.receive, call.source.kind)
        call, state = _add_values(call, over, how, state, receive)
    ballot = call.ballot(over, state=state)
    return start(call, over, partial(_reduce_values, over, ballot, finish))


def _add_values(
    call: Call, over: Channel, how: Any, state: State, receive: Callable[[], native.TensorBase]
) -> tuple[Call, State]:
    """Return a call whose values follow the ballot, with that."""
    assert call.source is not None
    if state is not None:
        return call, state
    try:
        source = reductions.aligned(call.source.tensor)
        call = call._replace(source=call.source._replace(tensor=source))
        values = source, receive(), how
    except not_from_handler(MemoryError) as error:
        return call._replace(error=error), None
    return call, call.ballot(over, values=values).state


def _reduce_values(
    over: Channel,
    ballot: Ballot,
    finish: Callable[[native.TensorBase], Any],
    operation: Operation,
) -> Steps:
    """Agree; the values are reduced by then."""
    yield from agree(over, operation, ballot)
    result = ballot.state.result
    assert result is not None
    return finish(result)


def require_tensor(call: Call) -> Call:
    """Return a call that cannot be made where this rank has no tensor."""
    if call.source is None and call.error is None:
        error = ArgumentError(f"{call.name}: a tensor is required, got None")
        return call._replace(error=error)
    return call


@begins("reduce_scatter")
def ireduce_scatter(
    over: Channel, x: Any, op: str, out: Any, state: State | native.Collective = None
) -> Request:
    """Begin a reduce_scatter, or go on with one."""
    dtype = None

    def result(kind: Kind) -> Kind:
        nonlocal dtype
        reductions.find("reduce_scatter", op)
        dtype = reductions.numpy_dtype("reduce_scatter", op, kind)
        _check_rows("reduce_scatter", kind, over.size)
        return Kind(kind.shape[1:], kind.dtype)

    call = require_tensor(prepare("reduce_scatter", x, out, result, f"op={op!r}"))

    def divide(target: native.TensorBase) -> None:
        assert dtype is not None
        reductions.finish(op, dtype, target, over.size)

    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state, settle=divide)
    if call.error is not None or call.source is None:
        ballot = call.ballot(over, state=state)
        return start(call, over, lambda operation: agree(over, operation, ballot))
    said, key = digest("reduce_scatter", f"op={op!r}"), reductions.known_as(op, REDUCE_SCATTER)
    how = reductions.learn(key, op, said, call.source.kind.dtype)
    nbytes = call.source.tensor.nbytes
    if nbytes > native.ROWS_MOST and over.peers.is_direct:
        return _copy(over, call, state, how=how, settle=divide)
    call, target = with_target(call)

    def small(operation: Operation) -> Steps:
        """Reduce it with the agreement."""
        assert call.source is not None
        assert target is not None
        assert dtype is not None
        ufunc = reductions.find("reduce_scatter", op).ufunc
        combine = partial(reductions.combine_in_order, ufunc, dtype)
        payload = np.asarray(raw_bytes(call.source.tensor))
        ballot = call.ballot(over, payload, combine, state=state, scatters=True)
        yield from agree(over, operation, ballot)
        rows = np.frombuffer(ballot.payload, np.uint8).reshape(over.size, -1)
        np.asarray(raw_bytes(target))[:] = rows[over.rank]
        divide(target)
        return call.finish(target)

    def large(operation: Operation) -> Steps:
        yield from agree(over, operation, call.ballot(over, state=state))
        assert call.source is not None
        assert call.kind is not None
        assert target is not None
        assert dtype is not None
        datatype, operator = reductions.operators(over).get(op, call.kind, dtype)
        part = target.size

        def post(send: Any, receive: Any) -> Any:
            return over.collective.Ireduce_scatter_block(
                [send, part, datatype], [receive, part, datatype], operator
            )

        if target.nbytes:
            yield from exchange(over, operation, post, call.source.tensor, target)
        divide(target)
        return call.finish(target)

    is_small = 0 < nbytes <= native.ROWS_MOST
    return start(call, over, small if is_small else large, posts=not is_small)


def _check_rows(name: str, kind: Kind, size: int) -> None:
    if not kind.shape or kind.shape[0] != size:
        raise ArgumentError(
            f"{name}: the first dimension must be the number of ranks, {size}, got {kind}"
        )
    if kind.is_packed:
        raise ArgumentError(f"{name}: {kind} has several elements in a byte; convert it first")


# ---- copies -------------------------------------------------------------------------------------


@begins("bcast")
def ibcast(
    over: Channel,
    x: Any,
    root: int,
    to: str,
    out: Any,
    state: State | native.Collective = None,
) -> Request:
    """Begin a bcast, or go on with one."""
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        return kind

    call = prepare("bcast", x, out, result, f"root={root}", to)
    try:
        check_rank("bcast", "root", root, over.size)
        adapter.target(to, "bcast")
    except DLBridgeError as error:
        call = call._replace(error=error)

    def own() -> Any:
        """Return the result of the root."""
        return x if call.out is None or call.source is None else call.finish(call.source.tensor)

    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state, own)
    if is_root:
        call = require_tensor(call)
    if call.error is None:
        learn_call(int(root), partial(digest, "bcast", f"root={root}"))
    known = call.out.kind if call.out is not None and call.source is None else None

    def steps(operation: Operation) -> Steps:
        ballot = _announce(call, over, is_root, known, state)
        yield from agree(over, operation, ballot)
        if is_root:
            assert call.source is not None
            made = call.source.tensor
        else:
            kind, small = _read_announced(call.name, ballot)
            made = call.receive(kind)
            _check_announced(call, over, kind, small.size, made.nbytes)
            np.asarray(raw_bytes(made))[: small.size] = small
        operation.nbytes = made.nbytes
        if made.nbytes > native.COPIED_MOST:
            source, target = (made, None) if is_root else (None, made)
            yield from copy(over, operation, ballot.state, "bcast", source, target, root)
        return own() if is_root else call.finish(made)

    return start(call, over, steps)


def _sends_row(call: Call, over: Channel) -> bool:
    """Return whether the root sends the row of the other rank alone."""
    return call.name == "scatter" and over.size == 2


def _small_bytes(call: Call, over: Channel, nbytes: int) -> int:
    """Return how many bytes of the root's tensor travel with its ballot."""
    small = nbytes // 2 if _sends_row(call, over) else nbytes
    return small if small <= native.COPIED_MOST else 0


def _announce(
    call: Call, over: Channel, is_root: bool, known: Kind | None, state: State = None
) -> Ballot:
    """Return the ballot of a call in which the root says what comes.

    It sends that along if it is small. Others may have `known` before what they expect.
    """
    if call.source is None or not is_root:
        return call.ballot(over, kind=known, state=state, takes=True)
    tensor = call.source.tensor
    payload = call.source.kind.pack()
    if small := _small_bytes(call, over, tensor.nbytes):
        start = small * (1 - over.rank) if _sends_row(call, over) else 0
        payload += bytes(np.asarray(raw_bytes(tensor))[start : start + small])
    return call.ballot(over, payload, state=state, takes=True)


def _check_announced(call: Call, over: Channel, kind: Kind, came: int, nbytes: int) -> None:
    if came != _small_bytes(call, over, nbytes):
        raise MPIError(
            f"{call.name}: {kind} of {nbytes} bytes comes with {came}; run the same dlbridge on "
            "all ranks"
        )


def _read_announced(name: str, ballot: Ballot) -> tuple[Kind, np.ndarray[Any, Any]]:
    """Return what the root says of its tensor, and the contents that come with that.

    Raises:
        MPIError: it is nothing that `_announce` writes.
    """
    kind, start = Kind.unpack(ballot.payload)
    if not ballot.state.is_of(kind):
        raise MPIError(
            f"{name}: the root announces {kind}, and the ranks have agreed on something else; run "
            "the same dlbridge on all ranks"
        )
    return kind, np.frombuffer(ballot.payload, np.uint8)[start:]


@begins("scatter")
def iscatter(
    over: Channel,
    x: Any,
    root: int,
    to: str,
    out: Any,
    state: State | native.Collective = None,
) -> Request:
    """Begin a scatter, or go on with one."""
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        _check_rows("scatter", kind, over.size)
        return Kind(kind.shape[1:], kind.dtype)

    call = prepare("scatter", x, out, result, f"root={root}", to)
    try:
        check_rank("scatter", "root", root, over.size)
        adapter.target(to, "scatter")
    except DLBridgeError as error:
        call = call._replace(error=error)
    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state)
    known = target = None
    if is_root:
        call, target = with_target(require_tensor(call), state)
    elif call.source is None and call.out is not None:
        row = call.out.kind
        known = Kind((over.size, *row.shape), row.dtype)
    if call.error is None:
        learn_call((SCATTER, int(root)), partial(digest, "scatter", f"root={root}"))

    def steps(operation: Operation) -> Steps:
        ballot = _announce(call, over, is_root, known, state)
        yield from agree(over, operation, ballot)
        kind, small = _read_announced(call.name, ballot)
        made = call.receive(result(kind)) if target is None else target
        part = made.nbytes
        _check_announced(call, over, kind, small.size, part * over.size)
        operation.nbytes = part
        source = call.source.tensor if is_root and call.source is not None else None
        if small.size:
            if source is not None and _sends_row(call, over):
                small = np.asarray(raw_bytes(source))
            start = part * over.rank if len(small) > part else 0
            np.asarray(raw_bytes(made))[:] = small[start : start + part]
        elif part:
            yield from copy(over, operation, ballot.state, "scatter", source, made, root)
        return call.finish(made)

    return start(call, over, steps)


@begins("gather")
def igather(
    over: Channel, x: Any, root: int, out: Any, state: State | native.Collective = None
) -> Request:
    """Begin a gather, or go on with one."""
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        check_rank("gather", "root", root, over.size)
        made = Kind((over.size, *kind.shape), kind.dtype)
        _check_rows("gather", made, over.size)
        return made

    out = out if is_root else None
    call = require_tensor(prepare("gather", x, out, result, f"root={root}"))
    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state)
    if call.error is None:
        learn_call((GATHER, int(root)), partial(digest, "gather", f"root={root}"))
    if call.source is not None and call.source.tensor.nbytes * over.size <= native.ROWS_MOST:
        return start(call, over, partial(_gather, call, over, state, is_root))
    return _copy(over, call, state, root=root, gets_result=is_root)


@begins("allgather")
def iallgather(over: Channel, x: Any, out: Any, state: State | native.Collective = None) -> Request:
    """Begin an allgather, or go on with one."""

    def result(kind: Kind) -> Kind:
        made = Kind((over.size, *kind.shape), kind.dtype)
        _check_rows("allgather", made, over.size)
        return made

    call = require_tensor(prepare("allgather", x, out, result))
    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state)
    if call.error is not None or call.source is None:
        ballot = call.ballot(over, state=state)
        return start(call, over, lambda operation: agree(over, operation, ballot))
    learn_call(ALLGATHER, partial(digest, "allgather", ""))
    part = call.source.tensor.nbytes
    if part * over.size > native.GATHERED_MOST:
        return _copy(over, call, state)
    return start(call, over, partial(_gather, call, over, state, True))


def _gather(
    call: Call, over: Channel, state: State, gets_result: bool, operation: Operation
) -> Steps:
    """Gather small tensors with the agreement."""
    assert call.source is not None
    own = np.asarray(raw_bytes(call.source.tensor))
    rows = yield from _gather_rows(call, over, state, own, operation)
    if not gets_result:
        return None
    assert call.kind is not None
    target = call.receive(call.kind)
    np.asarray(raw_bytes(target))[:] = rows.reshape(-1)
    return call.finish(target)


def _gather_rows(
    call: Call, over: Channel, state: State, row: Bytes, operation: Operation
) -> Steps:
    """Gather one row of bytes from each rank with the agreement."""
    rows = np.zeros((over.size, row.size), np.uint8)
    rows[over.rank] = row
    ballot = call.ballot(over, rows.reshape(-1), state=state, gathers=True)
    yield from agree(over, operation, ballot)
    return np.frombuffer(ballot.payload, np.uint8, rows.size).reshape(rows.shape)


@begins("alltoall")
def ialltoall(over: Channel, x: Any, out: Any, state: State | native.Collective = None) -> Request:
    """Begin an alltoall, or go on with one."""

    def result(kind: Kind) -> Kind:
        _check_rows("alltoall", kind, over.size)
        return kind

    call = require_tensor(prepare("alltoall", x, out, result))
    if isinstance(state, native.Collective):
        return _go_on_copying(over, call, state)
    if call.error is None and call.source is not None:
        learn_call(ALLTOALL, partial(digest, "alltoall", ""))
        swaps = over.size == 2
        gathered = call.source.tensor.nbytes * (1 if swaps else over.size)
        if 0 < gathered <= native.GATHERED_MOST:
            steps = _swap if swaps else _gather_own_rows
            return start(call, over, partial(steps, call, over, state))
    return _copy(over, call, state)


def _swap(call: Call, over: Channel, state: State, operation: Operation) -> Steps:
    """Make a small alltoall of two ranks: each contributes the row for the other."""
    assert call.source is not None
    assert call.kind is not None
    given = np.asarray(raw_bytes(call.source.tensor)).reshape(2, -1).copy()
    rows = yield from _gather_rows(call, over, state, given[1 - over.rank], operation)
    target = call.receive(call.kind)
    made = np.asarray(raw_bytes(target)).reshape(2, -1)
    made[1 - over.rank] = rows[1 - over.rank]
    made[over.rank] = given[over.rank]
    return call.finish(target)


def _gather_own_rows(call: Call, over: Channel, state: State, operation: Operation) -> Steps:
    """Make a small alltoall: gather whole tensors and select one's own rows."""
    assert call.source is not None
    assert call.kind is not None
    own = np.asarray(raw_bytes(call.source.tensor))
    rows = yield from _gather_rows(call, over, state, own, operation)
    target = call.receive(call.kind)
    found = rows.reshape(over.size, over.size, -1)[:, over.rank]
    np.asarray(raw_bytes(target))[:] = found.reshape(-1)
    return call.finish(target)


def _copy(
    over: Channel,
    call: Call,
    state: State = None,
    *,
    root: int = 0,
    gets_result: bool = True,
    how: native.Reduction | None = None,
    settle: Callable[[native.TensorBase], None] | None = None,
) -> Request:
    """Begin a collective that copies what is too large for the agreement.

    Of a reduce_scatter, `how` is the reduction, and `settle` completes the result in place.
    """
    target = made = None
    if gets_result:
        call, target = with_target(call, state)
    if over.peers.is_direct and call.error is None and call.source is not None:
        try:
            source = call.source.tensor
            if how is not None:
                source = reductions.aligned(source)
            made = native.Collective(over.peers, call.name, source, target, root, how)
        except not_from_handler(MemoryError) as error:
            call = call._replace(error=error)

    def steps(operation: Operation) -> Steps:
        ballot = call.ballot(over, state=state)
        yield from agree(over, operation, ballot)
        assert call.source is not None
        tensor = call.source.tensor
        if tensor.nbytes:
            yield from copy(over, operation, ballot.state, call.name, tensor, target, root, made)
        if settle is not None and target is not None:
            settle(target)
        return call.finish(target) if target is not None else None

    return start(call, over, steps)


def _go_on_copying(
    over: Channel,
    call: Call,
    posted: native.Collective,
    instead: Callable[[], Any] = lambda: None,
    settle: Callable[[native.TensorBase], None] | None = None,
) -> Request:
    """Go on with a collective that C has posted; `instead`: what is returned without a result."""

    def steps(operation: Operation) -> Steps:
        operation.kept.append(posted)
        while not posted.advance():
            yield None
        if settle is not None and posted.result is not None:
            settle(posted.result)
        return instead() if posted.result is None else call.finish(posted.result)

    return start(call, over, steps)


@begins("barrier")
def ibarrier(over: Channel, state: State = None) -> Request:
    """Begin a barrier, or go on with one: it is the agreement alone."""
    call = prepare("barrier", None, None, lambda kind: kind)
    learn_call(BARRIER, partial(digest, "barrier", ""))
    ballot = call.ballot(over, state=state)
    return start(call, over, lambda operation: agree(over, operation, ballot))
