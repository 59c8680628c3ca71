"""Collectives and messages between the processes of an MPI job, with tensors of any framework.

    from dlbridge import mpi

    gradient = mpi.allreduce(gradient)      # torch in, torch out; JAX on another rank

Started by `mpiexec -n 2 python script.py`. The first call on a rank imports mpi4py and starts MPI,
and waits for the first call of the other ranks. Results come in the framework of the caller's
tensor, in new memory of its own, on its device; tensors on a GPU travel through the host's memory.
Sources may be transposed or read-only. Nothing is pickled.

All ranks of a collective must make the same call with tensors of the same shape and dtype, whatever
their frameworks. They settle that first, so where they differ all of them raise the same
ArgumentError and nothing is written.

`bcast`, `allreduce` and `gather` also take a tree: a container of tensors, such as a state dict, a
list of gradients or a pytree, with the same tensors in the same places on all ranks. The result is
such a container; small tensors of one dtype in it share a block of memory.

Each call has a form that does not wait, `iallreduce` for `allreduce`: it returns a `Request`;
`waitall` waits for many.

`bcast`, `allreduce`, `allgather`, `reduce_scatter` and `alltoall` are differentiable, and may stand
in `jax.jit`, `jax.grad`, `torch.compile` and torch's autograd: there they are operators that run in
the order of the program, with `out` left away. Of the reductions, sums and means have a gradient.

Arguments that all have:

- comm: an intracommunicator of mpi4py; None is all processes. dlbridge uses copies of it, so that
  its messages never meet those of others. Its first use is collective.
- timeout: of those that wait: seconds after which they raise `MPITimeoutError`; None waits as long
  as it takes. What is under way then takes place when the other ranks come, and its result is
  lost; a receive for which no message has come is taken back, that of `sendrecv` as well. The
  first call of all starts MPI, which waits for the other ranks whatever the timeout.
- out: a tensor of any framework to write the result to, of the result's shape and dtype, which is
  returned then. It must be writable.

Raised by all of them:

- ArgumentError: ranks do not agree; a rank, tag or op that does not exist; `out` does not fit.
- ExchangeError: a tensor cannot be had or given; its `reason` says why.
- FrameworkMissingError: mpi4py is not installed, or finds no MPI library.
- MPIError (of dlbridge.errors): another rank has ended while this one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any, cast

from dlbridge.calls import advised, public
from dlbridge.exchange.trees import is_tree
from dlbridge.mpi import buckets, collectives, messages, operators, ragged
from dlbridge.mpi.channel import call_of, channel, in_time
from dlbridge.mpi.engine import Request, begin, wait_all
from dlbridge.mpi.matching import UNMATCHED
from dlbridge.mpi.quick import (
    ALLGATHER,
    ALLTOALL,
    BARRIER,
    GATHER,
    GOING_ON,
    QUICK,
    REDUCE_SCATTER,
    SCATTER,
)

__all__ = [
    "Request",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "gather",
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibcast",
    "igather",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "iscatter",
    "isend",
    "isendrecv",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "sendrecv",
    "size",
    "waitall",
]


def rank(comm: Any = None) -> int:
    """Return the rank of this process, from 0."""
    return channel("rank", comm).rank


def size(comm: Any = None) -> int:
    """Return the number of processes."""
    return channel("size", comm).size


for _constant in (rank, size):  # torch.compile runs them, and what they return needs no guard
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]

# ---- calls that C makes ------------------------------------------------------------------------
#
# C makes a call with tensors of the CPU, or returns False. What it has begun, and takes long or is
# not agreed on, goes on here.


def _going_on(function: Any) -> Callable[..., Request]:
    """Return what goes on with a call, as a function does with its state."""
    return lambda comm, state, *given: function(comm, *given, state=state)


GOING_ON.update(
    send=messages.go_on_sending,
    recv=messages.go_on_receiving,
    isend=partial(begin, "isend", messages.go_on_sending),
    irecv=partial(begin, "irecv", messages.go_on_receiving),
    sendrecv=messages.go_on_exchanging,
    explain=messages.explain,
    barrier=collectives.ibarrier,
    bcast=_going_on(collectives.ibcast),
    allreduce=_going_on(collectives.iallreduce),
    tree=buckets.go_on,
    itree=lambda comm, state, name: begin(name, buckets.go_on, comm, state),
    reduce=_going_on(collectives.ireduce),
    reduce_scatter=_going_on(collectives.ireduce_scatter),
    allgather=_going_on(collectives.iallgather),
    alltoall=_going_on(collectives.ialltoall),
    gather=_going_on(collectives.igather),
    scatter=_going_on(collectives.iscatter),
)
_COLLECTIVES = (
    *("barrier", "bcast", "allreduce", "reduce", "reduce_scatter", "allgather", "alltoall"),
    *("gather", "scatter"),
)
GOING_ON.update({f"i{name}": partial(begin, f"i{name}", GOING_ON[name]) for name in _COLLECTIVES})
_CALLS = [
    _send := QUICK.send,
    _isend := QUICK.isend,
    _recv := QUICK.recv,
    _irecv := QUICK.irecv,
    _sendrecv := QUICK.sendrecv,
    _barrier := QUICK.barrier,
    _bcast := QUICK.bcast,
    _allreduce := QUICK.allreduce,
    _reduce := QUICK.reduce,
    _reduce_scatter := QUICK.reduce_scatter,
    _allgather := QUICK.allgather,
    _alltoall := QUICK.alltoall,
    _gather := QUICK.gather,
    _scatter := QUICK.scatter,
    _ibarrier := QUICK.ibarrier,
    _ibcast := QUICK.ibcast,
    _iallreduce := QUICK.iallreduce,
    _ireduce := QUICK.ireduce,
    _ireduce_scatter := QUICK.ireduce_scatter,
    _iallgather := QUICK.iallgather,
    _ialltoall := QUICK.ialltoall,
    _igather := QUICK.igather,
    _iscatter := QUICK.iscatter,
]
operators.substitute(_CALLS, call_of)

# ---- requests -----------------------------------------------------------------------------------


@public
def waitall(requests: Iterable[Request], *, timeout: float | None = None) -> list[Any]:
    """Wait for requests of any calls, and return what `Request.wait` of each returns, in order.

    Args:
        requests: what `irecv`, `iallreduce` and so on returned.
        timeout: seconds to wait for all of them; see `dlbridge.mpi`.

    As a loop over `wait`, it raises the error of the first one that failed, in their order; those
    behind it may be under way then, and be waited for again.
    """
    return wait_all(requests, timeout)


# ---- messages -----------------------------------------------------------------------------------


def isend(x: Any, dest: int, tag: int = 0, *, comm: Any = None) -> Request:
    """Begin to send a tensor; see `send`."""
    made = (_isend if comm is None else call_of(comm, "isend"))(x, dest, tag)
    if made is not False:
        return cast("Request", made)
    return begin("isend", messages.isend, comm, x, dest, tag)


def send(
    x: Any, dest: int, tag: int = 0, *, comm: Any = None, timeout: float | None = None
) -> None:
    """Send a tensor to one rank, which receives it with `recv`.

    Args:
        x: the tensor; shape and dtype travel with it.
        dest: the rank; `MPI.PROC_NULL` of mpi4py is nobody, and nothing is sent.
        tag: a number from 0, to tell messages apart.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.

    Small tensors are sent at once. Above some KiB it waits until the receiver has begun to receive:
    two ranks that send to each other use `sendrecv`.
    """
    result = (_send if comm is None else call_of(comm, "send"))(x, dest, tag, timeout)
    if result is not False:
        return
    limit = in_time("send", comm, timeout)
    messages.isend(comm, x, dest, tag).wait_or_cancel(limit)


def irecv(
    source: int | None = None,
    tag: int | None = None,
    *,
    to: str = "numpy",
    out: Any = None,
    comm: Any = None,
) -> Request:
    """Begin to receive a tensor; see `recv`. `Request.source` and `Request.tag` say which one."""
    if not UNMATCHED:
        made = (_irecv if comm is None else call_of(comm, "irecv"))(source, tag, to, out)
        if made is not False:
            return cast("Request", made)
    return begin("irecv", messages.irecv, comm, source, tag, to, out)


def recv(
    source: int | None = None,
    tag: int | None = None,
    *,
    to: str = "numpy",
    out: Any = None,
    comm: Any = None,
    timeout: float | None = None,
) -> Any:
    """Receive the next tensor that fits, of whatever shape and dtype.

    Args:
        source: the rank that sends it, None for any; of `MPI.PROC_NULL` nothing is received: the
            result is `out`, as it was, or None.
        tag: its tag, None for any.
        to: the framework of the result.
        out: a tensor to write it to, instead of a new one.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.

    Raises:
        ArgumentError: `out` has another shape or dtype; the message is lost.
        MemoryError: there is no memory for the result; the message is lost.
    """
    if not UNMATCHED:
        result = (_recv if comm is None else call_of(comm, "recv"))(source, tag, to, out, timeout)
        if result is not False:
            return result
    limit = in_time("recv", comm, timeout)
    return messages.irecv(comm, source, tag, to, out).wait_or_cancel(limit)


def isendrecv(
    x: Any,
    dest: int,
    source: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = None,
    *,
    to: str | None = None,
    out: Any = None,
    comm: Any = None,
) -> Request:
    """Begin to send and to receive; see `sendrecv`."""
    tags = sendtag, recvtag
    return begin("isendrecv", messages.isendrecv, comm, x, dest, source, tags, to, out)


def sendrecv(
    x: Any,
    dest: int,
    source: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = None,
    *,
    to: str | None = None,
    out: Any = None,
    comm: Any = None,
    timeout: float | None = None,
) -> Any:
    """Send `x` and receive a tensor at the same time.

    Args:
        x: the tensor to send, as in `send`.
        dest: the rank that it goes to.
        source: the rank to receive from, None for any, as in `recv`.
        sendtag: the tag of what is sent.
        recvtag: the tag of what is received, None for any.
        to: the framework of the result; None for that of `x`.
        out: a tensor to write it to.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.
    """
    if not UNMATCHED:
        exchange = _sendrecv if comm is None else call_of(comm, "sendrecv")
        result = exchange(x, dest, source, sendtag, recvtag, to, out, timeout)
        if result is not False:
            return result
    limit = in_time("sendrecv", comm, timeout)
    request = messages.isendrecv(comm, x, dest, source, (sendtag, recvtag), to, out)
    return request.wait_or_cancel(limit)


# ---- collectives --------------------------------------------------------------------------------


def ibarrier(*, comm: Any = None) -> Request:
    """Begin a barrier; see `barrier`."""
    made = (_ibarrier if comm is None else call_of(comm, "ibarrier"))(BARRIER)
    if made is not False:
        return cast("Request", made)
    return begin("ibarrier", collectives.ibarrier, comm)


def barrier(*, comm: Any = None, timeout: float | None = None) -> None:
    """Wait until all ranks have come here."""
    result = (_barrier if comm is None else call_of(comm, "barrier"))(BARRIER, timeout)
    if result is not False:
        return
    limit = in_time("barrier", comm, timeout)
    collectives.ibarrier(comm).wait_or_cancel(limit)


def ibcast(
    x: Any = None, root: int = 0, *, to: str = "numpy", out: Any = None, comm: Any = None
) -> Request:
    """Begin a bcast; see `bcast`."""
    made = (_ibcast if comm is None else call_of(comm, "ibcast"))(x, root, to, out)
    if made is not False:
        return cast("Request", made)
    return begin("ibcast", _begin_bcast(x), comm, x, root, to, out)


def _begin_bcast(x: Any) -> Callable[..., Request]:
    return buckets.ibcast if is_tree(x) else collectives.ibcast


def bcast(
    x: Any = None,
    root: int = 0,
    *,
    to: str = "numpy",
    out: Any = None,
    comm: Any = None,
    timeout: float | None = None,
) -> Any:
    """Return the tensor of the root on all ranks.

    Args:
        x: on the root, the tensor, which is returned there. On others a tensor whose framework the
            result gets and whose shape and dtype must be the root's, or None for any. Or a tree, on
            all ranks.
        root: the rank whose tensor it is.
        to: the framework of the result where `x` is None.
        out: a tensor to write it to.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.
    """
    result = (_bcast if comm is None else call_of(comm, "bcast"))(x, root, to, out, timeout)
    if result is not False:
        return result
    if (traced := operators.find(x, out, timeout)) is not None:
        return operators.call(traced, "bcast", x, "", root, out, comm, timeout)
    limit = in_time("bcast", comm, timeout)
    return _begin_bcast(x)(comm, x, root, to, out).wait_or_cancel(limit)


def iallreduce(x: Any, op: str = "sum", *, out: Any = None, comm: Any = None) -> Request:
    """Begin an allreduce; see `allreduce`."""
    made = (_iallreduce if comm is None else call_of(comm, "iallreduce"))(x, op, out)
    if made is not False:
        return cast("Request", made)
    return begin("iallreduce", _begin_allreduce(x), comm, x, op, out)


def _begin_allreduce(x: Any) -> Callable[..., Request]:
    return buckets.iallreduce if is_tree(x) else collectives.iallreduce


def allreduce(
    x: Any, op: str = "sum", *, out: Any = None, comm: Any = None, timeout: float | None = None
) -> Any:
    """Return the tensors of all ranks, reduced element by element, on all ranks.

    Args:
        x: this rank's tensor, or tree.
        op: "sum", "mean" (of floating-point and complex numbers: the sum, divided by the number of
            ranks), "prod", "min", "max" (not of complex numbers), or "and", "or", "xor" (of
            integers and bool). As in NumPy, the sum of bool is their "or", the product their
            "and", and a NaN stays one. Every step is rounded to the dtype, float16, bfloat16 and
            float8 included.
        out: a tensor to write it to; may be `x`.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.

    All ranks get the same bits.
    """
    result = (_allreduce if comm is None else call_of(comm, "allreduce"))(x, op, out, timeout)
    if result is not False:
        return result
    if (traced := operators.find(x, out, timeout)) is not None:
        return operators.call(traced, "allreduce", x, op, 0, out, comm, timeout)
    limit = in_time("allreduce", comm, timeout)
    return _begin_allreduce(x)(comm, x, op, out).wait_or_cancel(limit)


def ireduce(
    x: Any, op: str = "sum", root: int = 0, *, out: Any = None, comm: Any = None
) -> Request:
    """Begin a reduce; see `reduce`."""
    made = (_ireduce if comm is None else call_of(comm, "ireduce"))(x, op, root, out)
    if made is not False:
        return cast("Request", made)
    return begin("ireduce", collectives.ireduce, comm, x, op, root, out)


def reduce(
    x: Any,
    op: str = "sum",
    root: int = 0,
    *,
    out: Any = None,
    comm: Any = None,
    timeout: float | None = None,
) -> Any:
    """Return the tensors of all ranks, reduced element by element, on the root; else None.

    The arguments are those of `allreduce`; `out` is of use on the root alone.
    """
    result = (_reduce if comm is None else call_of(comm, "reduce"))(x, op, root, out, timeout)
    if result is not False:
        return result
    limit = in_time("reduce", comm, timeout)
    return collectives.ireduce(comm, x, op, root, out).wait_or_cancel(limit)


def iallgather(x: Any, *, out: Any = None, comm: Any = None) -> Request:
    """Begin an allgather; see `allgather`."""
    made = (_iallgather if comm is None else call_of(comm, "iallgather"))(x, out, ALLGATHER)
    if made is not False:
        return cast("Request", made)
    return begin("iallgather", collectives.iallgather, comm, x, out)


def allgather(x: Any, *, out: Any = None, comm: Any = None, timeout: float | None = None) -> Any:
    """Return the tensors of all ranks, stacked: [size, *x.shape]."""
    made_by_c = _allgather if comm is None else call_of(comm, "allgather")
    result = made_by_c(x, out, ALLGATHER, timeout)
    if result is not False:
        return result
    if (traced := operators.find(x, out, timeout)) is not None:
        return operators.call(traced, "allgather", x, "", 0, out, comm, timeout)
    limit = in_time("allgather", comm, timeout)
    return collectives.iallgather(comm, x, out).wait_or_cancel(limit)


def igather(x: Any, root: int = 0, *, out: Any = None, comm: Any = None) -> Request:
    """Begin a gather; see `gather`."""
    made = (_igather if comm is None else call_of(comm, "igather"))(x, root, out, GATHER)
    if made is not False:
        return cast("Request", made)
    return begin("igather", _begin_gather(x), comm, x, root, out)


def _begin_gather(x: Any) -> Callable[..., Request]:
    return buckets.igather if is_tree(x) else collectives.igather


def gather(
    x: Any, root: int = 0, *, out: Any = None, comm: Any = None, timeout: float | None = None
) -> Any:
    """Return the tensors of all ranks, stacked, on the root; else None.

    Args:
        x: this rank's tensor, or tree.
        root: the rank that gets [size, *x.shape].
        out: a tensor to write it to, of use on the root alone.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.
    """
    gathered = _gather if comm is None else call_of(comm, "gather")
    result = gathered(x, root, out, GATHER, timeout)
    if result is not False:
        return result
    limit = in_time("gather", comm, timeout)
    return _begin_gather(x)(comm, x, root, out).wait_or_cancel(limit)


def iscatter(
    x: Any = None, root: int = 0, *, to: str = "numpy", out: Any = None, comm: Any = None
) -> Request:
    """Begin a scatter; see `scatter`."""
    made_by_c = _iscatter if comm is None else call_of(comm, "iscatter")
    made = made_by_c(x, root, to, out, SCATTER)
    if made is not False:
        return cast("Request", made)
    return begin("iscatter", collectives.iscatter, comm, x, root, to, out)


def scatter(
    x: Any = None,
    root: int = 0,
    *,
    to: str = "numpy",
    out: Any = None,
    comm: Any = None,
    timeout: float | None = None,
) -> Any:
    """Return row `rank` of the root's tensor.

    Args:
        x: on the root, the tensor, of shape [size, ...]. On others a tensor whose framework the
            result gets and whose shape and dtype must be the root's, or None for any.
        root: the rank whose tensor it is.
        to: the framework of the result where `x` is None.
        out: a tensor to write the row to.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.
    """
    scattered = _scatter if comm is None else call_of(comm, "scatter")
    result = scattered(x, root, to, out, SCATTER, timeout)
    if result is not False:
        return result
    limit = in_time("scatter", comm, timeout)
    return collectives.iscatter(comm, x, root, to, out).wait_or_cancel(limit)


def ireduce_scatter(x: Any, op: str = "sum", *, out: Any = None, comm: Any = None) -> Request:
    """Begin a reduce_scatter; see `reduce_scatter`."""
    made_by_c = _ireduce_scatter if comm is None else call_of(comm, "ireduce_scatter")
    made = made_by_c(x, op, out, REDUCE_SCATTER)
    if made is not False:
        return cast("Request", made)
    return begin("ireduce_scatter", collectives.ireduce_scatter, comm, x, op, out)


def reduce_scatter(
    x: Any, op: str = "sum", *, out: Any = None, comm: Any = None, timeout: float | None = None
) -> Any:
    """Reduce tensors of shape [size, ...] as `allreduce` does; return row `rank` of that."""
    result = (_reduce_scatter if comm is None else call_of(comm, "reduce_scatter"))(
        x, op, out, REDUCE_SCATTER, timeout
    )
    if result is not False:
        return result
    if (traced := operators.find(x, out, timeout)) is not None:
        return operators.call(traced, "reduce_scatter", x, op, 0, out, comm, timeout)
    limit = in_time("reduce_scatter", comm, timeout)
    return collectives.ireduce_scatter(comm, x, op, out).wait_or_cancel(limit)


def ialltoall(x: Any, *, out: Any = None, comm: Any = None) -> Request:
    """Begin an alltoall; see `alltoall`."""
    made = (_ialltoall if comm is None else call_of(comm, "ialltoall"))(x, out, ALLTOALL)
    if made is not False:
        return cast("Request", made)
    return begin("ialltoall", collectives.ialltoall, comm, x, out)


def alltoall(x: Any, *, out: Any = None, comm: Any = None, timeout: float | None = None) -> Any:
    """Send row i of `x`, of shape [size, ...], to rank i; return the rows received, by rank."""
    result = (_alltoall if comm is None else call_of(comm, "alltoall"))(x, out, ALLTOALL, timeout)
    if result is not False:
        return result
    if (traced := operators.find(x, out, timeout)) is not None:
        return operators.call(traced, "alltoall", x, "", 0, out, comm, timeout)
    limit = in_time("alltoall", comm, timeout)
    return collectives.ialltoall(comm, x, out).wait_or_cancel(limit)


def iallgatherv(x: Any, *, comm: Any = None) -> Request:
    """Begin an allgatherv; see `allgatherv`."""
    return begin("iallgatherv", ragged.iallgatherv, comm, x)


def allgatherv(x: Any, *, comm: Any = None, timeout: float | None = None) -> tuple[Any, list[int]]:
    """Return the rows of all ranks, one behind the other, and how many are of each rank.

    Args:
        x: this rank's rows, [n, ...]; n may differ between ranks, and be 0.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.
    """
    limit = in_time("allgatherv", comm, timeout)
    made: tuple[Any, list[int]] = ragged.iallgatherv(comm, x).wait_or_cancel(limit)
    return made


def ialltoallv(x: Any, counts: Iterable[Any], *, comm: Any = None) -> Request:
    """Begin an alltoallv; see `alltoallv`."""
    return begin("ialltoallv", ragged.ialltoallv, comm, x, counts)


def alltoallv(
    x: Any, counts: Iterable[Any], *, comm: Any = None, timeout: float | None = None
) -> tuple[Any, list[int]]:
    """Send the next `counts[i]` rows of `x` to rank i; return the rows received, and their counts.

    Args:
        x: this rank's rows, [sum(counts), ...], those for rank 0 first.
        counts: how many go to each rank, numbers from 0; the other ranks need not know them.
        comm: the communicator.
        timeout: seconds to wait; see `dlbridge.mpi`.

    The rows received are in the order of the ranks. The same call with them and with their counts
    sends them back.
    """
    limit = in_time("alltoallv", comm, timeout)
    made: tuple[Any, list[int]] = ragged.ialltoallv(comm, x, counts).wait_or_cancel(limit)
    return made


for _name, _function in list(globals().items()):
    if _name in __all__ and isinstance(_function, FunctionType):
        globals()[_name] = advised(_function)
