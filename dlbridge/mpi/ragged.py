"""Collectives in which ranks have different numbers of rows: the counts travel with the values.

The ranks agree on dtype and shape of a row, exchange the counts, say whether each has memory for
what comes, and exchange the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from itertools import accumulate
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, MPIError
from dlbridge.mpi.agreement import Ballot, agree
from dlbridge.mpi.channel import Channel, begins
from dlbridge.mpi.collectives import Call, exchange, prepare, require_tensor, start
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.values import Kind
from dlbridge.signals import not_from_handler

_COUNT = np.dtype(np.int64)


def _row(name: str, kind: Kind) -> Kind:
    """Return the kind of a row."""
    if not kind.shape:
        raise ArgumentError(f"{name}: a tensor of rows is required, got {kind}; reshape it")
    if kind.is_packed:
        raise ArgumentError(f"{name}: {kind} has several elements in a byte; convert it first")
    return Kind(kind.shape[1:], kind.dtype)


def _read_counts(name: str, counts: Any, kind: Kind, size: int) -> list[int]:
    """Return how many rows go to each rank."""
    try:
        made = [count.__index__() for count in counts]
    except not_from_handler(AttributeError, TypeError) as error:
        raise ArgumentError(
            f"{name}: counts must be integers, one for each rank, got {counts!r}"
        ) from error
    if len(made) != size or min(made) < 0 or sum(made) != kind.shape[0]:
        raise ArgumentError(
            f"{name}: counts must be {size} numbers from 0, one for each rank, whose sum is the "
            f"number of rows, {kind.shape[0]}, got {made}"
        )
    return made


@begins("allgatherv")
def iallgatherv(over: Channel, x: Any) -> Request:
    """Begin an allgatherv."""
    call = require_tensor(prepare("allgatherv", x, None, lambda kind: _row("allgatherv", kind)))

    def steps(operation: Operation) -> Steps:
        row = yield from _agree_on_row(over, operation, call)
        assert call.source is not None
        sent = [call.source.kind.shape[0]]
        post = over.collective.Iallgather
        came, target = yield from _exchange_counts(over, operation, call, row, sent, post)
        source, byte = call.source.tensor, over.mpi.BYTE
        received = _in_bytes(row, source.itemsize, came)

        def post_rows(send: Any, receive: Any) -> Any:
            return over.collective.Iallgatherv(
                [send, source.nbytes, byte], [receive, received, byte]
            )

        yield from exchange(over, operation, post_rows, source, target)
        return call.finish(target), came

    return start(call, over, steps, posts=True)


@begins("alltoallv")
def ialltoallv(over: Channel, x: Any, counts: Any) -> Request:
    """Begin an alltoallv."""
    sent: list[int] = []

    def result(kind: Kind) -> Kind:
        row = _row("alltoallv", kind)
        sent[:] = _read_counts("alltoallv", counts, kind, over.size)
        return row

    call = require_tensor(prepare("alltoallv", x, None, result))

    def steps(operation: Operation) -> Steps:
        row = yield from _agree_on_row(over, operation, call)
        assert call.source is not None
        post = over.collective.Ialltoall
        came, target = yield from _exchange_counts(over, operation, call, row, sent, post)

        source, byte = call.source.tensor, over.mpi.BYTE
        gone, received = (_in_bytes(row, source.itemsize, each) for each in (sent, came))

        def post_rows(send: Any, receive: Any) -> Any:
            return over.collective.Ialltoallv([send, gone, byte], [receive, received, byte])

        yield from exchange(over, operation, post_rows, source, target)
        return call.finish(target), came

    return start(call, over, steps, posts=True)


def _agree_on_row(over: Channel, operation: Operation, call: Call) -> Generator[Any, None, Kind]:
    yield from agree(over, operation, _ballot(over, call, call.error))
    assert call.kind is not None
    return call.kind


def _ballot(over: Channel, call: Call, error: Exception | None, follows: bool = False) -> Ballot:
    return Ballot(over.peers, call.name, "", call.kind, error=error, follows=follows)


def _exchange_counts(
    over: Channel,
    operation: Operation,
    call: Call,
    row: Kind,
    counts: list[int],
    post: Callable[[Any, Any], Any],
) -> Generator[Any, None, tuple[list[int], native.TensorBase]]:
    """Return how many rows come from each rank, and memory for them, once all ranks have that."""
    yield from over.turn(operation)
    sent, received = np.array(counts, _COUNT), np.zeros(over.size, _COUNT)
    operation.kept += [sent, received]
    byte = over.mpi.BYTE
    yield (post([sent, _COUNT.itemsize, byte], [received, _COUNT.itemsize, byte]),)
    came: list[int] = received.tolist()
    target: native.TensorBase | None = None
    error: Exception | None = None
    try:
        if min(came) < 0:
            raise MPIError(f"{call.name}: ranks announce {came} rows; run the same dlbridge there")
        target = call.receive(Kind((sum(came), *row.shape), row.dtype))
    except not_from_handler(MPIError, MemoryError, ValueError) as refused:
        error = refused
    yield from agree(over, operation, _ballot(over, call, error, follows=True))
    assert target is not None
    return came, target


def _in_bytes(row: Kind, itemsize: int, counts: list[int]) -> tuple[list[int], list[int]]:
    """Return how many bytes these rows have, and where those of each rank begin."""
    sizes = [count * math.prod(row.shape) * itemsize for count in counts]
    return sizes, list(accumulate(sizes[:-1], initial=0))
