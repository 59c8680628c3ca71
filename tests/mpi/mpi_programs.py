"""Programs that test_mpi.py runs on several ranks: `mpiexec -n 2 python mpi_programs.py a b`.

Each rank writes to `<folder>/<rank>` one line for each program: its name, and "ok" or what failed.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from measuring import lazily, pause, say_where_on_request, switches, until

import dlbridge
import dlbridge.graph as tf
from dlbridge import mpi
from dlbridge._core import native
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    MPIError,
    MPITimeoutError,
    UnsupportedTypeError,
)
from dlbridge.exchange.trees import tensors_of
from dlbridge.mpi import buckets as mpi_buckets
from dlbridge.mpi import collectives as mpi_collectives
from dlbridge.mpi import matching
from dlbridge.mpi import messages as mpi_messages
from dlbridge.mpi import reductions as reductions_of_mpi
from dlbridge.mpi.buckets import Bucket
from dlbridge.mpi.channel import channel
from dlbridge.mpi.collectives import Call
from dlbridge.mpi.engine import CLOSING, Engine, Operation, engine
from dlbridge.mpi.quick import GOING_ON, QUICK
from dlbridge.mpi.values import Kind

ml_dtypes = lazily("ml_dtypes")
pytest = lazily("pytest")  # few of the programs that run alone need it

FLOATS = ("float16", "float32", "float64", "bfloat16")
SMALL = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
COMPLEX = ("complex64", "complex128")
NARROW_COMPLEX = {"complex32": "float16", "bcomplex32": "bfloat16"}  # of ml_dtypes from 0.6
DTYPES = (*INTEGERS, *FLOATS, *SMALL, *COMPLEX, "bool")
SHAPES = ((), (0,), (3, 2), (5, 3001))  # of rank 0, empty, small, and too large for one message
OPS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return what a rank passes: small numbers, whose reductions are exact in every dtype."""
    made = np.random.default_rng(rank).integers(0, 3, shape)
    return np.asarray(made).astype(dlbridge.DType(dtype).numpy)


def takes(op: str, dtype: str) -> bool:
    if op in ("and", "or", "xor"):
        return dtype in INTEGERS or dtype == "bool"
    return op in ("sum", "prod") or dtype not in COMPLEX


def check(got: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert got.tobytes() == expected.tobytes(), (got, expected)


def refused(kind: Any, text: str, call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    assert text in str(caught.value), str(caught.value)
    return str(caught.value)


def reductions() -> None:
    rank, size = mpi.rank(), mpi.size()
    for dtype in DTYPES:
        for op, ufunc in OPS.items():
            if not takes(op, dtype):
                continue
            for shape in SHAPES:
                all_ = [values(r, shape, dtype) for r in range(size)]
                expected = all_[0]
                for other in all_[1:]:
                    expected = np.asarray(ufunc(expected, other)).astype(expected.dtype)
                check(mpi.allreduce(all_[rank], op), expected)
    for dtype in ("float32", "bfloat16", "bool"):
        for shape in SHAPES:
            all_ = [values(r, shape, dtype) for r in range(size)]
            total = all_[0]
            for other in all_[1:]:
                total = np.asarray(total + other)
            result = mpi.reduce(all_[rank], root=size - 1)
            assert (result is None) == (rank != size - 1)
            if result is not None:
                check(result, total)
            rows = [values(10 + r, (size, *shape), dtype) for r in range(size)]
            total = rows[0]
            for other in rows[1:]:
                total = total + other
            check(mpi.reduce_scatter(rows[rank]), total[rank])


def means() -> None:
    """The sum, divided in the dtype; small floats are divided in float32."""
    rank, size = mpi.rank(), mpi.size()
    for dtype in (*FLOATS, *SMALL, *COMPLEX):
        for shape in (*SHAPES, (1000,)):
            all_ = [values(r, shape, dtype) for r in range(size)]
            total = mpi.allreduce(all_[rank])
            if dtype in COMPLEX:
                mean = np.asarray(total.real / size + 1j * (total.imag / size))
            else:
                mean = np.asarray(total.astype(np.float64) / size)
            mean = mean.astype(total.dtype)
            for _ in range(2):
                check(mpi.allreduce(all_[rank], "mean"), mean)
            check(mpi.allreduce(all_[rank]), total)  # C has not learnt the one for the other
            if takes("and", dtype) or 0 in shape:
                continue
            out = all_[rank].copy()
            assert mpi.allreduce(out, "mean", out=out) is out
            check(out, mean)
            got = mpi.reduce(all_[rank], "mean", size - 1)
            assert (got is None) == (rank != size - 1)
            if got is not None:
                check(got, mean)
            check(mpi.reduce_scatter(np.stack([all_[rank]] * size), "mean"), mean)
    for dtype in ("int32", "bool"):
        refused(ArgumentError, "mean of", mpi.allreduce, values(rank, (3,), dtype), "mean")
    refused(ArgumentError, "op='sum'", mpi.allreduce, np.ones(3), "sum" if rank else "mean")


def mean_of(total: Any, size: int) -> np.ndarray[Any, Any]:
    """Return a sum divided by NumPy: small floats in float32, parts of complex numbers."""
    part = NARROW_COMPLEX.get(total.dtype.name)
    parts = total.view(total.real.dtype if part is None else dlbridge.DType(part).numpy)
    with np.errstate(all="ignore"):
        if parts.dtype.itemsize <= 2:
            made = (parts.astype(np.float32) / np.float32(size)).astype(parts.dtype)
        else:
            made = parts / parts.dtype.type(size)
    return np.asarray(made.view(total.dtype))


def means_by_c() -> None:
    """C makes every mean, with the bits of the Python path, also beside it."""
    rank, size = mpi.rank(), mpi.size()
    rng = np.random.default_rng(rank)
    narrow = [name for name in NARROW_COMPLEX if hasattr(ml_dtypes, name)]
    for dtype in (*FLOATS, *SMALL, *COMPLEX, *narrow):
        number = dlbridge.DType(dtype).numpy
        for count in (7 * size, 5000 * size):
            bits = rng.integers(0, 256, count * number.itemsize, np.uint8)  # every number
            x = bits.view(number) if rank == 0 else np.zeros(count, number)
            rows = x.reshape(size, -1)
            with np.errstate(all="ignore"):
                total = mpi.allreduce(x)
            mean = mean_of(total, size)
            check(by_python.iallreduce(x, "mean").wait(), mean)
            by_python.ireduce(x, "mean", size - 1).wait()
            by_python.ireduce_scatter(rows, "mean").wait()
            check(QUICK.allreduce(x, "mean", None), mean)
            check(QUICK.iallreduce(x, "mean", None).wait(), mean)
            out = np.zeros_like(x)
            assert QUICK.allreduce(x, "mean", out) is out
            check(out, mean)
            out = x.copy()
            assert QUICK.allreduce(out, "mean", out) is out
            check(out, mean)
            for call in (QUICK.reduce, lambda *given: QUICK.ireduce(*given).wait()):
                got = call(x, "mean", size - 1, None)
                assert got is not False
                check(mean if got is None and rank < size - 1 else got, mean)
            own = mean.reshape(size, -1)[rank]
            check(QUICK.reduce_scatter(rows, "mean", None, "reduce_scatter"), own)
            check(QUICK.ireduce_scatter(rows, "mean", None, "reduce_scatter").wait(), own)
            # A wait that is too long for C goes on in Python.
            for late in range(size) if dtype in ("float32", "bfloat16") else ():
                for is_here in (True, rank == 0, rank != 0):
                    mpi.barrier()
                    if late == rank:
                        pause(0.003)
                    check(mpi.allreduce(x, "mean") if is_here
                          else by_python.iallreduce(x, "mean").wait(), mean)  # fmt: skip
                    mpi.barrier()
                    if late == rank:
                        pause(0.003)
                    check(mpi.reduce_scatter(rows, "mean") if is_here
                          else by_python.ireduce_scatter(rows, "mean").wait(), own)  # fmt: skip
            tree = {"a": x, "b": [rows[0], x[:3].copy(), np.ones(70000, number)]}
            mpi.allreduce(tree, "mean")
            got = QUICK.allreduce(tree, "mean", None)
            assert got is not False
            again = mpi.allreduce(tree, "mean", out={"a": x.copy(), "b": [
                np.zeros_like(each) for each in tree["b"]]})  # fmt: skip
            for each in (got, again):
                check(each["a"], mean)
                check(each["b"][0], mpi.allreduce(rows[0], "mean"))
                check(each["b"][1], mean[:3])
                check(each["b"][2], mpi.allreduce(tree["b"][2], "mean"))
    unaligned = at(1, np.full(5001, 3.0))
    assert QUICK.allreduce(np.full(5001, 1.0 + rank), "mean", unaligned) is unaligned
    check(unaligned, np.full(5001, 1.0 + (size - 1) / 2))
    for op in ("mean", "sum"):
        text = refused(ArgumentError, "nothing was exchanged", mpi.allreduce,
                       np.ones(3 + rank, "float16"), op)  # fmt: skip
        assert f"op='{op}'" in text
    for x in (np.ones(3, "int32"), np.ones(9000, "uint8"), np.ones(3, bool)):
        assert QUICK.allreduce(x, "mean", None) is False
        refused(ArgumentError, f"mean of {x.dtype} is not defined", mpi.allreduce, x, "mean")
    check(mpi.allreduce(np.ones(3, "float16"), "mean"), np.ones(3, "float16"))


def copies() -> None:
    rank, size = mpi.rank(), mpi.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            all_ = [values(r, shape, dtype) for r in range(size)]
            check(mpi.allgather(all_[rank]), np.stack(all_))
            check(mpi.bcast(all_[rank] if rank == 1 else None, 1), all_[1])
            rows = [values(10 + r, (size, *shape), dtype) for r in range(size)]
            check(mpi.alltoall(rows[rank]), np.stack([row[rank] for row in rows]))
            check(mpi.sendrecv(all_[rank], (rank + 1) % size, (rank - 1) % size), all_[rank - 1])
    nibbles = dlbridge.DType("int4").numpy
    got = mpi.bcast(np.arange(5).astype(nibbles) if rank == 0 else None)
    assert got.dtype == nibbles
    assert got.tolist() == [0, 1, 2, 3, 4]
    got = mpi.bcast(np.ones((1,) * 40, "int8") if rank == 0 else None)
    assert got.shape == (1,) * 40


def gathered_and_scattered() -> None:
    """On every root, in every dtype and size, into new memory and into `out`."""
    rank, size = mpi.rank(), mpi.size()
    for root in range(size):
        for dtype in (*DTYPES, "int4"):
            for shape in SHAPES:
                all_ = [values(r, shape, dtype) for r in range(size)]
                if dtype == "int4":
                    refused(ArgumentError, "several", mpi.gather, all_[rank], root)
                    continue
                got = mpi.gather(all_[rank], root)
                rows = np.stack(all_)
                assert (got is None) == (rank != root)
                if rank == root:
                    check(got, rows)
                    out = np.zeros_like(rows.T).T  # not compact
                    assert mpi.gather(all_[rank], root, out=out) is out
                    check(out, rows)
                else:
                    assert mpi.gather(all_[rank], root, out=np.zeros(1)) is None
                given = rows if rank == root else None
                check(mpi.scatter(given, root), all_[rank])
                check(mpi.scatter(rows, root), all_[rank])
                row = np.zeros_like(all_[rank])
                assert mpi.scatter(given, root, out=row) is row
                check(row, all_[rank])
        assert type(mpi.scatter(given, root, to="dlbridge")).__name__ in ("Tensor", "ndarray")
        scatter_in_python = import_module("dlbridge.mpi.collectives").iscatter
        for count in (1, 2047, 2048, 2049, 4095, 4096, 4097, 8192):  # bytes of a row
            rows = np.resize(np.arange(251, dtype="u1"), (size, count))
            given = rows if rank == root else None
            for late in (None, *range(size)):  # any rank by Python, or waiting in Python
                if late == rank:
                    pause(0.001)
                row = np.zeros(count, "u1") if late == root else None
                check(mpi.scatter(given, root, out=row, to="numpy"), rows[rank])
                got = scatter_in_python(None, given, root, "numpy", row) if late == rank else None
                check(got.wait() if got else mpi.scatter(given, root, out=row), rows[rank])
    requests = []
    for count in (3, 40000):
        x = np.full((size, count), float(rank))
        requests += [mpi.igather(x[0], 1), mpi.iscatter(x if rank == 1 else None, 1)]
    for request in reversed(requests):
        got = request.wait()
        assert got is None or (got == np.arange(size)[:, None]).all() or (got == 1).all()
    x = np.ones((size, 3))
    for count in (
        3,
        30000,
    ):  # nothing is exchanged where ranks do not agree, and the next call works
        odd = np.ones(count + (rank == size - 1))
        refused(ArgumentError, f"gather(float64[{count}]", mpi.gather, odd)
        refused(ArgumentError, f"gather(float64[{count}]", mpi.igather(odd).wait)
        wrong = np.ones((size + 1, count))
        refused(ArgumentError, "number of ranks", mpi.scatter, wrong if rank == 0 else None)
        wrong = np.ones((size, count + 1))
        given = wrong[:, :count] if rank == 0 else wrong if rank == 1 else None
        refused(ArgumentError, f"scatter(float64[{size}, {count}]", mpi.scatter, given)
        out = np.zeros(count + 1) if rank == 1 else None
        given = wrong[:, :count] if rank == 0 else None
        refused(ArgumentError, f"scatter(float64[{size}, {count}]", mpi.scatter, given, out=out)
        check(mpi.scatter(x if rank == 0 else None), x[0])
    refused(ArgumentError, "root must be a rank", mpi.gather, x, size)
    refused(ArgumentError, "root must be a rank", mpi.scatter, x, -1)
    refused(ArgumentError, "root=", mpi.gather, x, int(rank == 0))
    refused(ArgumentError, "a tensor is required", mpi.scatter)
    refused(ArgumentError, "", mpi.scatter, x) if rank else refused(
        ArgumentError, "", mpi.gather, x
    )
    check(mpi.allreduce(np.ones(3)), np.full(3, float(size)))


class by_python:
    """Collectives as Python begins them, for mixtures with those that C begins."""

    @staticmethod
    def iallreduce(x: Any, op: str = "sum", out: Any = None) -> mpi.Request:
        return mpi_collectives.iallreduce(None, x, op, out)

    @staticmethod
    def ireduce(x: Any, op: str = "sum", root: int = 0) -> mpi.Request:
        return mpi_collectives.ireduce(None, x, op, root, None)

    @staticmethod
    def ireduce_scatter(x: Any, op: str = "sum", out: Any = None) -> mpi.Request:
        return mpi_collectives.ireduce_scatter(None, x, op, out)

    @staticmethod
    def iallgather(x: Any, out: Any = None) -> mpi.Request:
        return mpi_collectives.iallgather(None, x, out)

    @staticmethod
    def ialltoall(x: Any, out: Any = None) -> mpi.Request:
        return mpi_collectives.ialltoall(None, x, out)

    @staticmethod
    def ibcast(x: Any, root: int = 0) -> mpi.Request:
        return mpi_collectives.ibcast(None, x, root, "numpy", None)

    @staticmethod
    def igather(x: Any, root: int = 0, out: Any = None) -> mpi.Request:
        return mpi_collectives.igather(None, x, root, out)

    @staticmethod
    def iscatter(x: Any, root: int = 0, out: Any = None) -> mpi.Request:
        return mpi_collectives.iscatter(None, x, root, "numpy", out)

    @staticmethod
    def ibarrier() -> mpi.Request:
        return mpi_collectives.ibarrier(None)


def roots_of_smaller_communicators() -> None:
    """A root that C has learned from all processes need not exist in fewer."""
    size, x = mpi.size(), np.arange(3.0)
    rows = np.ones((size, 3))
    calls = [
        (mpi.bcast, (x,)),
        (mpi.gather, (x,)),
        (mpi.scatter, (rows,)),
        (mpi.reduce, (x, "sum")),
    ]
    begun = [
        (mpi.ibcast, (x,)),
        (mpi.igather, (x,)),
        (mpi.iscatter, (rows,)),
        (mpi.ireduce, (x, "sum")),
    ]
    for call, args in calls:
        call(*args, size - 1)
    half = engine().job.mpi.COMM_WORLD.Split(mpi.rank() == size - 1, 0)
    mpi.barrier(comm=half)
    for call, args in calls:
        refused(ArgumentError, "root must be a rank from 0 to", call, *args, size - 1, comm=half)
    for call, args in begun:
        request = call(*args, size - 1, comm=half)
        refused(ArgumentError, "root must be a rank from 0 to", request.wait)
    check(mpi.allreduce(x, comm=half), x * half.size)
    half.Free()


def freed_with_calls_under_way() -> None:
    """The communicator is gone for the user, and what is under way goes on."""
    rank, size, x = mpi.rank(), mpi.size(), np.ones(3)
    copy = engine().job.mpi.COMM_WORLD.Dup()
    mpi.allreduce(x, comm=copy), mpi.sendrecv(x, (rank + 1) % size, (rank - 1) % size, comm=copy)
    if rank == 0:
        mpi.recv(1, tag=7)  # the others have begun theirs by then
    begun = [mpi.iallreduce(x, comm=copy), mpi.irecv((rank - 1) % size, comm=copy)]
    begun.append(mpi.isend(x * rank, (rank + 1) % size, comm=copy))
    if rank == 1:
        mpi.send(x, 0, tag=7)
    copy.Free()
    check(begun[0].wait(timeout=60), x * size)
    check(begun[1].wait(timeout=60), x * ((rank - 1) % size))
    begun[2].wait(timeout=60)
    mpi.barrier()


def copies_of_freed_communicators() -> None:
    """They go once the calls over them are over, whoever waits for these, and in which way."""
    rank, size, x = mpi.rank(), mpi.size(), np.ones(3)
    left, right = (rank - 1) % size, (rank + 1) % size
    mpi4py = engine().job.mpi
    world = mpi4py.COMM_WORLD

    def free_amid(begin: Any) -> list[mpi.Request]:
        comm = world.Dup()
        mpi.barrier(comm=comm)
        requests = begin(comm)
        comm.Free()
        return requests  # type: ignore[no-any-return]

    def receive(comm: Any) -> list[mpi.Request]:
        return [mpi.irecv(left, comm=comm), mpi.isend(x, right, comm=comm)]

    def receive_from_any(comm: Any) -> list[mpi.Request]:
        return [mpi.irecv(comm=comm), mpi.isend(x, right, comm=comm)]

    def reduce(comm: Any) -> list[mpi.Request]:
        return [mpi.iallreduce(np.ones(200000), comm=comm), mpi.ibarrier(comm=comm)]

    def reduce_tree(comm: Any) -> list[mpi.Request]:
        return [mpi.iallreduce([x, x.copy()], comm=comm)]

    def poll(requests: list[mpi.Request]) -> None:
        while not all(each.test() for each in requests):
            pass

    def one_by_one(requests: list[mpi.Request]) -> None:
        for each in reversed(requests):
            each.wait(timeout=60)

    few: list[Any] = []  # are left, so that copies that stayed would use them up
    try:
        with suppress(mpi4py.Exception):
            while len(few) < 3000:  # OpenMPI has more
                few.append(mpi4py.COMM_SELF.Dup())
        for each in few[-20:]:
            each.Free()
        del few[-20:]
        for i in range(24):
            begin = (receive, receive_from_any, reduce, reduce_tree)[i % 4]
            (mpi.waitall, one_by_one, poll)[i % 3](free_amid(begin))
            assert not CLOSING
        # Those that nobody waits for go when there is something else to wait for.
        for _ in range(12):
            free_amid(reduce)
            mpi.ibarrier().wait()
        while mpi.iallreduce(np.asarray(len(CLOSING))).wait():
            pass
        assert not CLOSING
    finally:
        for each in few:
            each.Free()
    # A rank that learns that another has not come yet keeps them.
    comm = world.Dup()
    mpi.barrier(comm=comm)
    if rank == 0:
        begun = mpi.irecv(right, comm=comm)
        comm.Free()
        refused(MPITimeoutError, "", begun.wait, timeout=0.01)
        assert len(CLOSING) == 1
        mpi.barrier()
        check(begun.wait(timeout=60), x)
    else:
        mpi.barrier()
        if rank == 1:
            mpi.send(x, 0, comm=comm)
        comm.Free()
    assert not CLOSING
    mpi.barrier()


def no_tensors_to_exchange() -> None:
    """Arrays of objects that are not tensors, and results whose elements share an address."""
    objects, x = np.array([1, None], dtype=object), np.full(3, float(mpi.rank()))
    for call in (mpi.allreduce, mpi.bcast, mpi.gather, mpi.reduce, mpi.allgather):
        refused(ExchangeError, "no dtype for NumPy's dtype", call, objects)
    for out in (
        np.lib.stride_tricks.as_strided(np.zeros(3), (mpi.size(), 3), (0, 8)),
        np.lib.stride_tricks.as_strided(np.zeros(9), (mpi.size(), 3), (8, 8)),
    ):
        for _ in range(2):
            refused(ExchangeError, "an address of its own", mpi.allgather, x, out=out)
    out = np.zeros((3, mpi.size())).T
    check(mpi.allgather(x, out=out), np.arange(mpi.size())[:, None] * np.ones(3))
    tensors = np.empty(2, dtype=object)
    tensors[:] = [np.ones(2), np.ones((2, 2))]
    got = mpi.allreduce(tensors)
    check(got[1], np.full((2, 2), float(mpi.size())))


def rows_travel_with_the_agreement() -> None:
    """Of any size around the limits, by C and by Python in any mixture; a row holds each byte."""
    rank, size = mpi.rank(), mpi.size()
    most = native.GATHERED_MOST // size
    most_of_gather = native.ROWS_MOST // size
    sizes = (1, 8, 1000, most // size, most_of_gather, most_of_gather + 1, most, most + 1)
    for nbytes in sizes:
        one = [np.resize(np.arange(251, dtype="u1") + 17 * r, nbytes) for r in range(size)]
        each = [np.stack([one[r] + np.uint8(to) for to in range(size)]) for r in range(size)]
        mpi.allgather(one[0]), mpi.gather(one[0]), mpi.alltoall(each[0])  # C learns them
        for is_quick in (True, rank == 0, rank != 0, rank == size - 1, False):

            def call(name: str, *args: Any, by_c: bool = is_quick, **kwargs: Any) -> Any:
                if by_c:
                    return getattr(mpi, name)(*args, **kwargs)
                return getattr(by_python, f"i{name}")(*args, **kwargs).wait()

            check(call("allgather", one[rank]), np.stack(one))
            columns = np.stack([rows[rank] for rows in each])
            check(call("alltoall", each[rank]), columns)
            x = each[rank].copy()
            assert call("alltoall", x, out=x) is x
            check(x, columns)
            for root in {0, size - 1}:
                got = call("gather", one[rank], root)
                assert (got is None) == (rank != root)
                if rank == root:
                    check(got, np.stack(one))


def gathered_by_c() -> None:
    """Small tensors of a known type and root: C and Python in any mixture, whoever is late."""
    rank, size = mpi.rank(), mpi.size()
    x = np.arange(3.0) + rank
    stacked = np.arange(3.0) + np.arange(size)[:, None]
    for root in {0, size - 1}:
        rows = stacked if rank == root else None
        mpi.gather(x, root), mpi.scatter(rows, root)  # C learns them
        for late in (None, *range(size)):
            for is_quick in (True, rank == 0, rank != 0):
                mpi.barrier()
                if late == rank:
                    pause(0.003)
                got = mpi.gather(x, root) if is_quick else by_python.igather(x, root).wait()
                assert (got is None) == (rank != root)
                if rank == root:
                    check(got, stacked)
                row = mpi.scatter(rows, root) if is_quick else by_python.iscatter(rows, root).wait()
                check(row, x)
        out = np.zeros_like(stacked)
        got = QUICK.gather(x, root, out, "gather", 60)
        assert got is (out if rank == root else None)
        check(out, stacked if rank == root else np.zeros_like(stacked))
        row = np.zeros(3)
        assert QUICK.scatter(rows, root, "numpy", row, "scatter", 60) is row
        check(row, x)
        check(QUICK.scatter(stacked, root, "numpy", None, "scatter"), x)
        check(QUICK.scatter(stacked[:, 0].copy(), root, "numpy", None, "scatter"), x[0])
        first = np.array(x[0])
        got = (
            QUICK.gather(first, root, None, "gather")
            if rank
            else by_python.igather(first, root).wait()
        )
        assert (got is None) == (rank != root)
        if rank == root:
            check(got, stacked[:, 0])
        large = np.ones((size, 5000)) * np.arange(size)[:, None]  # the others see that in C
        check(mpi.scatter(large if rank == root else None, root), large[rank])
        if rank == root:
            assert QUICK.scatter(None, root, "numpy", None, "scatter") is False
            assert QUICK.gather(x, root, np.zeros(1), "gather") is False
            for odd in (np.ones((size + 1, 2)), np.ones(()), np.ones((size, 0)), [1.0]):
                assert QUICK.scatter(odd, root, "numpy", None, "scatter") is False, odd
        for other in (True, -1, size, 0.0):
            assert QUICK.gather(x, other, None, "gather") is False
            assert QUICK.scatter(rows, other, "numpy", None, "scatter") is False
        mpi.barrier()


def a_tree(rank: int) -> dict[str, Any]:
    """Return tensors of many dtypes and sizes; the largest of them go by themselves."""
    tied = values(rank, (4, 3), "float32")
    shapes = (*SHAPES, (7,), (1_100_000,))
    return {
        "layers": [values(rank + i, shape, "float32") for i, shape in enumerate(shapes)],
        "mixed": tuple(
            values(rank + 9, (5, 3), dtype) for dtype in ("bfloat16", "float16", "int8")
        ),
        "tied": {"a": tied, "b": tied, "name": "model", "steps": 3},
        "double": values(rank, (70, 90), "float64").T,
    }


def ragged_rows() -> None:
    """Numbers of rows that only their rank knows, in every dtype, none and many."""
    rank, size = mpi.rank(), mpi.size()
    for dtype in DTYPES:
        for row, most in (((), 3), ((2, 3), 1), ((0,), 2), ((7,), 4000)):
            counts = [[(r + 2 * to) % size * most for to in range(size)] for r in range(size)]
            rows = [values(r, (sum(counts[r]), *row), dtype) for r in range(size)]
            got, came = mpi.allgatherv(rows[rank])
            assert came == [len(each) for each in rows]
            check(got, np.concatenate(rows))
            got, came = mpi.alltoallv(rows[rank], np.array(counts[rank]))
            assert came == [counts[r][rank] for r in range(size)]
            starts = [sum(counts[r][:rank]) for r in range(size)]
            parts = [rows[r][at : at + counts[r][rank]] for r, at in enumerate(starts)]
            check(got, np.concatenate(parts))
            back, again = mpi.alltoallv(got, came)
            assert again == counts[rank]
            check(back, rows[rank])
    x = np.arange(6.0).reshape(2, 3).T + rank  # transposed, of another framework
    got, came = mpi.allgatherv(dlbridge.from_dlpack(x))
    assert type(got) is dlbridge.Tensor
    assert came == [3] * size
    check(got.numpy(), np.concatenate([x - rank + r for r in range(size)]))
    requests = []  # several at once, beside others that have turns
    for count in (0, 2, 5000):
        mine = np.full((count * rank, 2), float(rank))
        requests += [mpi.iallgatherv(mine), mpi.iallreduce(np.ones(30000))]
        requests += [mpi.ialltoallv(mine, [count * rank] + [0] * (size - 1))]
    for request in reversed(requests):
        request.wait()
    got, came = requests[-1].wait()
    assert came == ([5000 * r for r in range(size)] if rank == 0 else [0] * size)
    assert len(got) == sum(came)
    # Nothing is exchanged where one rank cannot take part, and the next call works.
    last = rank == size - 1
    refused(ArgumentError, "allgatherv(float64[3])", mpi.allgatherv, np.ones((2, 3 + last)))
    refused(ArgumentError, "rows is required", mpi.allgatherv, np.float64(1) if last else x)
    fits = [3] + [0] * (size - 1)
    for wrong in ([3], [2] + [0] * (size - 1), [4, -1] + [0] * (size - 2), 3, ["1"] * size):
        given = wrong if last else fits
        refused(ArgumentError, "counts must be", mpi.alltoallv, np.ones(3), given)
    refused(ArgumentError, "alltoallv", mpi.alltoallv if last else mpi.allgatherv, np.ones(3),
            *([fits] if last else []))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:

            def receive(*_: Any) -> Any:
                raise MemoryError("there is none")

            patch.setattr(Call, "receive", receive)
        refused(ArgumentError, "rank 1: there is none", mpi.allgatherv, np.ones(3))
        refused(ArgumentError, "rank 1: there is none", mpi.alltoallv, np.ones(3), fits)
    got, came = mpi.allgatherv(np.full(rank, float(rank)), timeout=60)
    assert came == list(range(size))
    assert not engine().active


def trees() -> None:
    """A tree is one call; its tensors are what they are in calls of their own."""
    rank, size = mpi.rank(), mpi.size()
    mine, before = a_tree(rank), engine().job.size
    paths = [path for path, _ in tensors_of(mine)]
    assert before == size

    def check_tree(got: Any, make: Any) -> None:
        assert type(got) is dict
        assert got["tied"]["a"] is got["tied"]["b"]
        assert (got["tied"]["name"], got["tied"]["steps"]) == ("model", 3)
        found = tensors_of(got)
        assert [path for path, _ in found] == paths
        for (_, x), (_, source) in zip(found, tensors_of(mine), strict=True):
            check(x, make(source))

    for op in ("sum", "max", "prod"):
        check_tree(mpi.allreduce(mine, op), partial(mpi.allreduce, op=op))
    for root in range(size):
        check_tree(mpi.bcast(mine, root), lambda x, root=root: mpi.bcast(x, root))
        got = mpi.gather(mine, root)
        expected = [mpi.gather(x, root) for _, x in tensors_of(mine)]
        assert (got is None) == (rank != root)
        if got is not None:
            for (_, x), y in zip(tensors_of(got), expected, strict=True):
                check(x, y)
    out = a_tree(rank)
    assert mpi.allreduce(out, out=out) is out
    check_tree(out, mpi.allreduce)
    assert mpi.bcast(mine, 1, out=out) is out
    check_tree(out, lambda x: mpi.bcast(x, 1))
    floats = {"w": values(rank, (3, 5), "float32"), "b": values(rank, (9000,), "float64")}
    got = mpi.allreduce(floats, "mean")
    for name, x in floats.items():
        check(got[name], mpi.allreduce(x, "mean"))
    requests = []
    for _ in range(3):  # begun between other calls, and waited for in another order
        requests += [mpi.iallreduce(mine), mpi.iallreduce(np.ones(9000)), mpi.ibcast(mine, 1)]
        requests += [mpi.igather(floats, 0), mpi.iallreduce(np.ones(3), "max")]
    for i in np.random.default_rng(rank).permutation(len(requests)):
        requests[i].wait()
    check_tree(requests[0].wait(), mpi.allreduce)
    assert mpi.allreduce({}) == {}
    assert mpi.allreduce([1.0, 2.0]).tolist() == [size, 2.0 * size]  # numbers are a tensor
    assert [x.tolist() for x in mpi.allreduce([np.ones(2), np.ones(3)])] == [[size] * 2, [size] * 3]


def trees_by_c() -> None:
    """C reduces trees that are made as one that Python has seen, with the same results."""
    rank, size = mpi.rank(), mpi.size()
    QUICK.calls.pop(("sum", "tree"), None)

    def make(seed: int) -> dict[str, Any]:
        tied = values(seed, (7, 3), "float32")
        return {
            "small": [values(seed + 1, (5,), "float32"), values(seed + 2, (), "float64")],
            "large": (values(seed + 3, (300, 300), "float64"), "text", None),
            "tied": {"a": tied, "b": tied, 3: values(seed + 4, (2, 2), "int8")},
            "plain": (1, 2.0, ("x",)),
            "huge": values(seed + 5, (1100, 1000), "float32"),
            "other": values(seed + 6, (80000,), "complex64"),
        }

    def check_all(got: Any, tree: Any, op: str) -> None:
        assert list(got) == list(tree)
        assert got["plain"] is tree["plain"]
        assert got["tied"]["a"] is got["tied"]["b"]
        assert got["large"][1:] == ("text", None)
        for (_, x), (_, source) in zip(tensors_of(got), tensors_of(tree), strict=True):
            check(x, mpi.allreduce(source, op))

    for op in ("sum", "prod"):
        tree = make(rank)
        assert QUICK.allreduce(tree, op, None) is False
        check_all(mpi.allreduce(tree, op), tree, op)
        for late in (None, *range(size)):  # what takes long is waited for in Python
            tree = make(rank + 10)
            if late == rank:
                pause(0.003)
            got = QUICK.allreduce(tree, op, None) if rank != 1 else mpi.allreduce(tree, op)
            check_all(got, tree, op)
    tree, out = make(rank), make(rank + 20)
    expected = mpi.allreduce(tree)
    assert QUICK.allreduce(tree, "sum", out) is out
    check_all(out, tree, "sum")
    assert QUICK.allreduce(tree, "sum", tree) is tree
    for (_, x), (_, y) in zip(tensors_of(tree), tensors_of(expected), strict=True):
        check(x, y)
    floats = [values(rank, (90000,), dtype) for dtype in ("float32", "float64", "complex64")]
    floats += [values(rank, (3,), dtype) for dtype in ("float32", "float64", "complex64")]
    mpi.allreduce(floats, "mean")
    got = QUICK.allreduce(floats, "mean", None)
    for x, source in zip(got, floats, strict=True):
        check(x, mpi.allreduce(source, "mean"))
    # Results that lie where another tensor is still sent from are written at the end.
    pair = [values(rank, (90000,), "float64"), values(rank + 9, (90000,), "float64")]
    expected = mpi.allreduce(pair)
    assert QUICK.allreduce(pair, "sum", pair[::-1]) is not False
    for x, y in zip(pair[::-1], expected, strict=True):
        check(x, y)
    shared = np.zeros(90100)
    shared[:90000], shared[100:] = 1.0, 2.0
    parts = [shared[:90000], shared[100:]]
    expected = mpi.allreduce([x.copy() for x in parts])
    assert QUICK.allreduce(parts, "sum", None) is not False
    outs = [np.empty(90000), np.empty(90000)]
    assert QUICK.allreduce(parts, "sum", outs) is outs
    for x, y in zip(outs, expected, strict=True):
        check(x, y)
    small = floats[3:]
    mpi.allreduce(small, "mean")
    assert QUICK.allreduce(small, "mean", None) is not False
    with dlbridge.receipts() as log:  # which Python writes
        assert QUICK.allreduce(small, "mean", None) is False
        mpi.allreduce(small, "mean")
    assert len(log) >= len(small)
    # Small arrays over memory that others have, of which no view may be kept.
    memory = bytearray(range(24))
    over = [np.frombuffer(memory, "u1"), np.frombuffer(memory, "u1")[4:8], np.ones(2, "u1")[::1]]
    over += [np.full(5, 3, "u1")[1:][1:], dlbridge.convert(np.full(2, 7, "u1"), "numpy")]
    mpi.allreduce(over, "max")
    got = QUICK.allreduce(over, "max", None)
    for y, source in zip(got, over, strict=True):
        check(y, np.array(source))
        y[...] = 1  # each result is writable, and lies beside the others
    assert not any(np.shares_memory(y, z) for y in got for z in got if y is not z)
    del got, y
    over[0], over[1] = np.ones(24, "u1"), np.ones(4, "u1")
    gc.collect()
    memory.extend(b"x")  # nothing keeps it
    kept = mpi.allreduce([np.full(6, rank), np.full(4, 2.0)])[1]
    mpi.allreduce([np.ones(6), np.ones(4)])
    check(kept, np.full(4, 2.0 * size))
    # Others are Python's.
    x = np.ones(3)
    mpi.allreduce([x, x + 1])
    for other in (
        [x, x],
        [x, np.ones(4)],
        [x, np.ones(3, "float32")],
        (x, x + 1),
        [x, x + 1, 1],
        {"a": x, "b": x},
        [x, np.ones((3, 2))[:, 0]],
        [np.ones(0), x],
        [x, x.view(Labelled)],
    ):
        assert QUICK.allreduce(other, "sum", None) is False, other
        got = mpi.allreduce(other)
        for (_, y), (_, source) in zip(tensors_of(got), tensors_of(other), strict=True):
            check(y, mpi.allreduce(source))
    for k in range(20):  # of many kinds of trees the last ones are known
        mpi.allreduce([x, np.ones(k + 2)])
    assert len(QUICK.calls["sum", "tree"]) == 8
    with pytest.MonkeyPatch.context() as patch:  # the results are made where it began
        mine = [x + k for k in range(3)]
        mpi.allreduce(mine)
        patch.setattr(mpi_buckets, "with_tensors", None)
        if rank == 0:
            pause(0.003)
        for k, y in enumerate(mpi.allreduce(mine)):
            check(y, (x + k) * size)
    copies_of_trees_by_c(make)
    ordered_dicts_by_c()
    bad = {**make(rank), "plain": make(rank)["plain"]}
    if rank == size - 1:
        bad["other"] = bad["other"][:-1]
    refused(ArgumentError, f"rank {size - 1}: allreduce(a tree of 7 tensors", mpi.allreduce, bad)
    finish()


def trees_copied_in_pieces() -> None:
    """Tensors of medium size are sent from copies, of which there is room for some at a time."""
    rank, size = mpi.rank(), mpi.size()
    shapes = [(6_000_001,), (300_000,), (7, 3), (2**18,), (2**24 + 1,), (5_000, 1_001), (0,)]
    shapes += [(2**20 + 1,)] * 12 + [(2**24,)]

    def make(seed: int) -> list[Any]:
        every = enumerate(shapes)
        return [np.resize(np.arange(seed + k, seed + k + 251, dtype="u1"), x) for k, x in every]

    def rows() -> list[Any]:
        return [np.stack(each) for each in zip(*map(make, range(size)), strict=True)]

    def check_all(got: Any, expected: Any) -> None:
        for x, y in zip(got, expected, strict=True):
            assert np.array_equal(x, y)

    for root in {0, size - 1}:
        gathered = rows() if rank == root else None
        for _ in range(2):  # by Python and by C
            check_all(mpi.bcast(make(rank), root), make(root))
            got = mpi.gather(make(rank), root)
            assert (got is None) == (gathered is None)
            if gathered is not None:
                check_all(got, gathered)
        mine, out = make(rank), make(size)
        mpi.bcast(mine, root, out=out)
        check_all(out, make(root))
        check_all(mine, make(rank))
        check_all(mpi.bcast(mine, root, out=mine), make(root))
    requests = [mpi.ibcast(make(rank), 0), mpi.igather(make(rank), 0), mpi.ibcast(make(rank), 1)]
    for i in np.random.default_rng(rank).permutation(len(requests)):
        requests[i].wait(60)
    check_all(requests[0].wait(), make(0))
    check_all(requests[2].wait(), make(1))
    if rank == 0:
        check_all(requests[1].wait(), rows())
    finish()


def copies_of_trees_by_c(make: Any) -> None:
    """C broadcasts and gathers trees, with the results that their tensors have one by one."""
    rank, size = mpi.rank(), mpi.size()

    def check_each(got: Any, tree: Any, call: Any, root: int) -> None:
        assert got["plain"] is tree["plain"]
        assert got["tied"]["a"] is got["tied"]["b"]
        assert got["large"][1:] == ("text", None)
        for (_, x), (_, source) in zip(tensors_of(got), tensors_of(tree), strict=True):
            check(x, call(source, root))

    def rows(tree: Any) -> Any:  # memory for what is gathered of it
        if isinstance(tree, np.ndarray):
            return np.zeros((size, *tree.shape), tree.dtype)
        if isinstance(tree, dict):
            return {key: rows(value) for key, value in tree.items()}
        made = [rows(value) for value in tree] if isinstance(tree, (list, tuple)) else tree
        return tuple(made) if isinstance(tree, tuple) else made

    for root in range(size):
        for call, by_c in (
            (mpi.bcast, lambda tree, root, out: QUICK.bcast(tree, root, "numpy", out)),
            (mpi.gather, lambda tree, root, out: QUICK.gather(tree, root, out, "gather")),
        ):
            QUICK.calls.pop((call.__name__, root, "tree"), None)
            assert by_c(make(rank), root, None) is False
            for late in (None, *range(size)):
                tree = make(rank + 10)
                if late == rank:
                    pause(0.003)
                got = call(tree, root) if rank == 1 or late is None else by_c(tree, root, None)
                if call is mpi.bcast or rank == root:
                    check_each(got, tree, call, root)
                else:
                    got_others = [call(x, root) for _, x in tensors_of(tree)]
                    assert got is None
                    assert not any(x is not None for x in got_others)
                if call is mpi.bcast and rank == root:
                    assert got is tree
        tree, out = make(rank), make(rank + 20)
        out["large"], out["plain"] = (*out["large"][:1], "text", None), tree["plain"]
        assert QUICK.bcast(tree, root, "numpy", out) is out
        expected = [mpi.bcast(x, root) for _, x in tensors_of(tree)]
        for (_, x), y in zip(tensors_of(out), expected, strict=True):
            check(x, y)
        assert QUICK.bcast(tree, root, "numpy", tree) is tree  # in place
        for (_, x), y in zip(tensors_of(tree), expected, strict=True):
            check(x, y)
        # Into tensors that others are still sent from.
        pair = [values(rank, (90000,), "float64"), values(rank + 9, (90000,), "float64")]
        pair += [values(rank, (3,), "float64"), values(rank + 9, (3,), "float64")]
        expected = [mpi.bcast(x.copy(), root) for x in pair]
        mpi.bcast(pair, root)
        swapped = [pair[1], pair[0], pair[3], pair[2]]
        assert QUICK.bcast(pair, root, "numpy", swapped) is swapped
        for x, y in zip(swapped, expected, strict=True):
            check(x, y)
        tree = make(rank)
        out = rows(tree)
        out["tied"]["b"] = out["tied"]["a"]
        given = out if rank == root else None
        assert QUICK.gather(tree, root, given, "gather") is given
        gathered = [mpi.gather(x, root) for _, x in tensors_of(tree)]
        for (_, x), y in zip(tensors_of(out), gathered, strict=True):
            assert (y is None) == (rank != root)
            if y is not None:
                check(x, y)
        # The tensor that is gathered lies in the result.
        both = np.zeros((size, 90000))
        both[rank] = rank + 1.0
        mine = [both[rank], np.ones(2)]
        mpi.gather(mine, root)
        outs = [both, np.zeros((size, 2))]
        got = QUICK.gather(mine, root, outs if rank == root else None, "gather")
        assert got is (outs if rank == root else None)
        if rank == root:
            assert both[:, 0].tolist() == both[:, -1].tolist() == [r + 1.0 for r in range(size)]
            assert outs[1].tolist() == [[1.0, 1.0]] * size
    # Without tensors, with empty ones, with parameters; and what Python makes.
    x = np.arange(3.0) + rank
    empty = [x, np.zeros((0, 3)), np.zeros(0, "int8"), None]
    for _ in range(2):
        got = mpi.bcast(empty, size - 1)
        assert [each.tolist() for each in got[:3]] == [(np.arange(3.0) + size - 1).tolist(), [], []]
        assert mpi.bcast({"a": None, "b": ()}, 0) == {"a": None, "b": ()}
        got = mpi.gather(empty, 0)
        assert got is None or [each.shape for each in got[:3]] == [
            (size, 3), (size, 0, 3), (size, 0)]  # fmt: skip
        assert [each.shape for each in mpi.allreduce(empty)[:3]] == [(3,), (0, 3), (0,)]
        only = mpi.bcast([np.zeros((2, 0))], 0)
        assert only[0].shape == (2, 0)
    frozen = x.copy()
    frozen.flags.writeable = False
    for other in ([x, frozen], [x[::-1], x.reshape(3, 1).T], [x.astype(">f8").astype("f8"), x]):
        for _ in range(2):
            got = mpi.bcast(other, size - 1)
            for y, source in zip(got, other, strict=True):
                check(y, mpi.bcast(source, size - 1))
    refused(DLBridgeError, "writable", mpi.bcast, [x, x + 1], out=[x.copy(), frozen])
    check(mpi.bcast(x, 0), np.arange(3.0))


def ordered_dicts_by_c() -> None:
    """An OrderedDict keeps its order and attributes, and what differs in them is Python's."""
    rank, size = mpi.rank(), mpi.size()

    def make() -> Any:
        made: Any = OrderedDict(a=np.arange(2.0) + rank, b=[np.ones(3)], c=4)
        made.move_to_end("a")
        made.more = {"x": np.full(2, rank + 1.0), "note": "hi"}
        return made

    mpi.allreduce(make())
    tree, got = make(), QUICK.allreduce(make(), "sum", None)
    assert type(got) is OrderedDict
    assert list(got) == list(tree) == ["b", "c", "a"]
    check(got["a"], mpi.allreduce(tree["a"]))
    check(got.more["x"], mpi.allreduce(tree.more["x"]))
    assert (got["c"], got.more["note"], got.more is tree.more) == (4, "hi", False)
    assert QUICK.allreduce(tree, "max", tree) is False
    mpi.allreduce(tree, "max")
    assert QUICK.allreduce(tree, "max", tree) is tree
    assert tree.more["x"].tolist() == [size, size]
    for change in ("order", "attribute", "none", "key", "class"):
        other = make()
        if change == "order":
            other.move_to_end("a", last=False)
        elif change == "attribute":
            other.again = np.ones(1)
        elif change == "none":
            del other.more
        elif change == "key":
            other["d"] = other.pop("a")
        else:
            other = dict(other)
        assert QUICK.allreduce(other, "sum", None) is False, change
        again = mpi.allreduce(other)
        assert list(again) == list(other)
        for (_, x), (_, y) in zip(tensors_of(again), tensors_of(other), strict=True):
            check(x, mpi.allreduce(y))


def trees_begun_by_c() -> None:
    """Trees are begun in C, by Python or blocking in any mixture, and waited for in any order."""
    rank, size = mpi.rank(), mpi.size()

    def make(seed: int) -> dict[str, Any]:
        small = [values(seed, (5,), "float32"), values(seed + 1, (), "float64")]
        return {"small": small, "large": values(seed + 2, (40_000,), "float64"), "text": "x"}

    def wanted(call: str, seeds: Sequence[int], root: int) -> Any:
        every = [make(seed) for seed in seeds]
        if call == "bcast":
            return every[root]
        how = sum if call == "allreduce" else np.stack
        if call == "gather" and rank != root:
            return None
        small = [how([each["small"][k] for each in every]) for k in range(2)]
        return {"small": small, "large": how([each["large"] for each in every]), "text": "x"}

    def check_all(got: Any, expected: Any) -> None:
        if expected is None:
            assert got is None
            return
        assert list(got) == list(expected)
        assert got["text"] == "x"
        for (_, x), (_, y) in zip(tensors_of(got), tensors_of(expected), strict=True):
            check(x, y)

    def arguments(call: str, root: int) -> tuple[Any, ...]:
        return () if call == "allreduce" else (root,)

    names = ("allreduce", "bcast", "gather")
    by_python_alone = {
        "allreduce": lambda tree: mpi_buckets.iallreduce(None, tree, "sum", None),
        "bcast": lambda tree, root: mpi_buckets.ibcast(None, tree, root, "numpy", None),
        "gather": lambda tree, root: mpi_buckets.igather(None, tree, root, None),
    }
    roads = (
        ROADS[0],
        lambda name, given: by_python_alone[name](*given).wait,
        ROADS[2],
    )
    for root in {0, size - 1}:
        for name in names:  # C learns them
            getattr(mpi, name)(make(rank), *arguments(name, root))
            request = getattr(mpi, "i" + name)(make(rank), *arguments(name, root))
            assert request._is_begun, name
            request.wait()
        for mixture in range(6):
            waits, expected = [], []
            for number in range(9):
                name = names[(number + mixture) % 3]
                seeds = [10 * number + each for each in range(size)]
                road = roads[(number // 2 + mixture * (rank + 1)) % 2 if number % 4 else 2]
                waits.append(road(name, (make(seeds[rank]), *arguments(name, root))))
                expected.append(wanted(name, seeds, root))
            for number in np.random.default_rng((rank, mixture)).permutation(len(waits)):
                check_all(waits[number](), expected[number])
    everyone = range(size)
    out, rows = make(50), wanted("gather", everyone, rank)
    requests = [
        mpi.iallreduce(make(rank), out=out),
        mpi.ibcast(make(rank), size - 1, out=make(60)),
        mpi.igather(make(rank), 0, out=rows if rank == 0 else None),
    ]
    assert all(each._is_begun for each in requests)
    assert not any(each.cancel() for each in requests)
    got = mpi.waitall(requests)
    assert got[0] is out
    assert got[2] is (rows if rank == 0 else None)
    check_all(out, wanted("allreduce", everyone, 0))
    check_all(got[1], make(size - 1))
    check_all(got[2], wanted("gather", everyone, 0))
    finish()
    mpi.barrier()
    for name in names:  # one rank is late
        late = rank == size - 1
        if late:
            hear_from(0)
        request = getattr(mpi, "i" + name)(make(rank), *arguments(name, 0))
        if rank == 0:
            if name != "bcast" or size == 2:  # to send a bcast, some need no other rank
                refused(MPITimeoutError, f"i{name}: is not over after", request.wait, 0.01)
            say_so(size - 1)
        check_all(request.wait(60), wanted(name, everyone, 0))
        check_all(request.wait(), wanted(name, everyone, 0))
        mpi.barrier()
    for name in names:  # one rank passes another tree
        tree = make(rank)
        if rank == size - 1:
            tree["large"] = tree["large"][1:]
        request = getattr(mpi, "i" + name)(tree)
        refused(ArgumentError, f"rank {size - 1}: {name}(a tree of 3 tensors", request.wait)
        mpi.igather(make(rank))  # which takes place all the same
        check(mpi.allreduce(np.ones(1)), np.full(1, float(size)))
    finish()


class Labelled(np.ndarray[Any, Any]):
    """A class of arrays that C has not seen."""


def trees_that_do_not_agree() -> None:
    """All ranks raise the same error, nothing is written, and the next call works."""
    rank, size = mpi.rank(), mpi.size()
    good = {"a": np.ones(3), "b": np.ones(30000)}
    for call in (mpi.allreduce, mpi.bcast, mpi.gather):
        for bad in (
            {"a": np.ones(4), "b": np.ones(30000)},
            {"a": np.ones(3, "float32"), "b": np.ones(30000)},
            {"a": np.ones(3), "c": np.ones(30000)},
            {"a": np.ones(3)},
            np.ones(3),
            {"a": np.ones(3), "b": {1, 2}, "c": object()},
        ):
            out = {"a": np.zeros(3), "b": np.zeros(30000)}
            given = bad if rank == size - 1 else good
            keep = out if rank == 0 and call is not mpi.gather else None
            text = refused(ArgumentError, f"rank {size - 1}", call, given, out=keep)
            assert mpi.bcast(np.frombuffer(text.encode(), np.uint8)).tobytes() == text.encode()
            assert not out["a"].any()
            assert not out["b"].any()
            assert mpi.allreduce(np.ones(1)).tolist() == [size]
    for bad, first in (
        (
            {"a": np.ones(3), "b": [np.ones(3, "float32")]},
            "['b']: float64[30000]; rank 1: ['b'][0]",
        ),
        (
            {"a": np.ones((3, 1)), "b": np.ones(5)},
            "['a']: float64[3]; rank 1: ['a']: float64[3, 1]",
        ),
        ({**good, "c": np.ones(0)}, "none; rank 1: ['c']: float64[0]"),
        ({}, "['a']: float64[3]; rank 1: none"),
    ):
        others = ", ".join(str(each) for each in range(size) if each != 1)
        text = f"the first tensor that differs is, of rank {others}: {first}"
        for call in (mpi.iallreduce, mpi.ibcast, mpi.igather):
            refused(ArgumentError, text, call(bad if rank == 1 else good).wait)
            assert mpi.allreduce(np.ones(1)).tolist() == [size]
    refused(ArgumentError, "op must be one of", mpi.allreduce, good, "plus")
    refused(ArgumentError, "root must be a rank", mpi.bcast, good, size)
    text = "is none instead of ['b']; a tensor that occurs twice counts once"
    refused(ArgumentError, text, mpi.allreduce, good, out={"a": np.zeros(3)})
    refused(ArgumentError, "is the whole instead of ['a']", mpi.allreduce, good, out=np.zeros(3))
    text = "mean of int64 is not defined; convert it first (at ['a'] of the tree)"
    refused(ArgumentError, text, mpi.allreduce, {"a": np.ones(3, "int64")}, "mean")
    locked = {"a": np.zeros(3), "b": np.frombuffer(bytes(240_000))}
    text = "without out the result is returned (at ['b'] of the tree) [readonly]"
    refused(ExchangeError, text, mpi.allreduce, good, out=locked)

    def no_memory(*_: Any) -> Any:
        raise MemoryError("there is none")

    small = {"a": np.ones(3), "b": np.ones(3)}
    nibbles = [np.zeros(3, dlbridge.DType("int4").numpy), np.ones(3), np.ones(4)]
    for of, name, call, tree in (
        (native, "TreeBallot", mpi.ibcast, small),
        (native, "TreeBallot", mpi.igather, small),
        (Bucket, "allocate", mpi.ibcast, nibbles),  # which C does not pack
        (Bucket, "_pack", mpi.ibcast, nibbles),
        (reductions_of_mpi, "aligned", mpi.iallreduce, small),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(of, name, no_memory)
            refused(ArgumentError, "rank 1: there is none", call(tree).wait)
    deep: Any = [np.ones(1)]
    for _ in range(2000):
        deep = [deep]
    for call in (mpi.iallreduce, mpi.ibcast, mpi.igather):
        request = call(deep if rank == 1 else small)
        refused(ArgumentError, "rank 1: maximum recursion depth", request.wait)
    for _ in range(2):  # parameters without gradients
        assert mpi.allreduce([None, None]) == [None, None]
        assert mpi.bcast((None,)) == (None,)
    text = "rank 1: allreduce(a tree of 0 tensors"
    refused(ArgumentError, text, mpi.allreduce, [None] if rank == 1 else [np.ones(3)])
    got = mpi.allreduce(good)
    check(got["b"], good["b"] * size)
    assert not engine().active


def quick_calls() -> None:
    """C makes calls with small tensors, with the bits of the Python path, also beside it."""
    rank, size = mpi.rank(), mpi.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    for dtype in DTYPES:
        for op in OPS:
            if not takes(op, dtype):
                continue
            x = values(rank, (3, 2), dtype)
            if dtype in FLOATS:
                x[0] = [-0.0, np.nan] if rank == 1 else [0.0, -np.nan]
            expected = by_python.iallreduce(x, op).wait()
            result = QUICK.allreduce(x, op, None)
            assert result is not False, (dtype, op)
            for got in (
                result,
                mpi.allreduce(x, op) if rank == 0 else by_python.iallreduce(x, op).wait(),
            ):
                assert got.tobytes() == expected.tobytes(), (dtype, op, got, expected)
            assert len({row.tobytes() for row in mpi.allgather(expected)}) == 1
    x = np.arange(3.0) + rank
    rows = np.arange(size * 2.0).reshape(size, 1, 2) + 100 * rank
    check(mpi.alltoall(rows), [rows[rank] + 100 * (each - rank) for each in range(size)])
    check(mpi.reduce_scatter(rows, "max"), rows[rank] + 100 * (size - 1 - rank))
    check(mpi.reduce_scatter(rows, "mean"), rows[rank] + 50 * (size - 1) - 100 * rank)
    calls: list[tuple[Any, Any]] = [
        (lambda: mpi.allreduce(x), lambda: by_python.iallreduce(x).wait()),
        (lambda: mpi.reduce(x, root=1), lambda: by_python.ireduce(x, root=1).wait()),
        (lambda: mpi.bcast(x, 1), lambda: by_python.ibcast(x, 1).wait()),
        (lambda: mpi.bcast(x if rank else None, 1), lambda: by_python.ibcast(x, 1).wait()),
        (lambda: mpi.allgather(x), lambda: by_python.iallgather(x).wait()),
        (lambda: mpi.reduce_scatter(rows), lambda: by_python.ireduce_scatter(rows).wait()),
        (lambda: mpi.alltoall(rows), lambda: by_python.ialltoall(rows).wait()),
        (mpi.barrier, lambda: by_python.ibarrier().wait()),
        (lambda: (mpi.send(x, right), mpi.recv(left))[1], lambda: mpi.sendrecv(x, right, left)),
        (lambda: (mpi.send(x, right, 7), mpi.recv(left, 7))[1],
         lambda: mpi.sendrecv(x, right, left, 7, 7)),
    ]  # fmt: skip
    for quick, slow in calls:
        wanted = slow()
        for late in (None, *range(size)):  # a wait that is too long for C goes on in Python
            for way in (quick, quick if rank == 0 else slow, slow if rank == 0 else quick):
                if late == rank:
                    pause(0.003)
                got = way()
                assert np.array_equal(got, wanted), (calls.index((quick, slow)), got, wanted)
    assert QUICK.allreduce(x, "sum", None) is not False
    assert QUICK.reduce(x, "sum", 1, None) is not False
    assert QUICK.bcast(x, 1, "numpy", None) is not False
    assert QUICK.allgather(x, None, "allgather") is not False
    assert QUICK.alltoall(rows, None, "alltoall") is not False
    assert QUICK.reduce_scatter(rows, "sum", None, "reduce_scatter") is not False
    assert QUICK.barrier("barrier") is not False
    assert QUICK.send(x, right, 0) is not False
    assert QUICK.recv(left, None, "numpy", None) is not False
    assert QUICK.isend(x, right, 0) is not False
    assert QUICK.recv(left, None, "numpy", None) is not False
    for seconds in (60, 60.0, float("inf"), None):
        assert QUICK.allreduce(x, "sum", None, seconds) is not False, seconds
        assert QUICK.barrier("barrier", seconds) is not False, seconds
    for call in (partial(QUICK.allreduce, x, "sum", None), partial(QUICK.barrier, "barrier")):
        with suppress(MPITimeoutError):  # whether or not it is enough for the other ranks
            assert call(0.01) is not False
    for odd in (-1, 0, 0.001, True, float("nan"), "60", 10**400):  # Python looks at these
        assert QUICK.allreduce(x, "sum", None, odd) is QUICK.barrier("barrier", odd) is False, odd
        assert QUICK.recv(left, None, "numpy", None, odd) is False, odd
    for odd in (x[::-1], np.ones(3, ">f8"), "text", [1.0], np.ones((0, 2)), None):
        assert QUICK.allreduce(odd, "sum", None) is False, odd
        assert QUICK.send(odd, 0, 0) is QUICK.isend(odd, 0, 0) is False, odd
        assert QUICK.alltoall(odd, None, "alltoall") is False, odd
        assert QUICK.reduce_scatter(odd, "sum", None, "reduce_scatter") is False, odd
    for odd in (np.ones((size + 1, 2)), np.ones(())):
        assert QUICK.alltoall(odd, None, "alltoall") is False, odd
        assert QUICK.reduce_scatter(odd, "sum", None, "reduce_scatter") is False, odd
    assert QUICK.reduce_scatter(np.ones((size, 2**17)), "sum", None, "reduce_scatter") is not False
    for count in (300, 3000, 30000):  # of the agreement, and of MPI
        rows = np.arange(size * count, dtype="float64").reshape(size, count) + 1e6 * rank
        sums = sum(rows[rank] + 1e6 * (each - rank) for each in range(size))
        swapped = np.stack([rows[rank] + 1e6 * (each - rank) for each in range(size)])
        stacked = np.stack([rows + 1e6 * (each - rank) for each in range(size)])
        for late in (None, *range(size)):
            for by_c in (True, rank == 0, rank != 0):
                if late == rank:
                    pause(0.03)
                begun = (
                    by_python.ireduce_scatter(rows),
                    by_python.ialltoall(rows),
                    by_python.iallgather(rows),
                )
                check(mpi.alltoall(rows) if by_c else by_python.ialltoall(rows).wait(), swapped)
                for request, wanted in zip(begun, (sums, swapped, stacked), strict=True):
                    check(request.wait(), wanted)
                check(mpi.alltoall(rows) if by_c else by_python.ialltoall(rows).wait(), swapped)
                check(mpi.allgather(rows) if by_c else by_python.iallgather(rows).wait(), stacked)
                scatter = (
                    mpi.reduce_scatter(rows) if by_c else by_python.ireduce_scatter(rows).wait()
                )
                check(scatter, sums)
        for _ in range(2):  # into memory of the user, also where it is that of the source
            into = rows[0].copy(), rows.copy(), rows.copy()
            every = np.zeros((size, size, count))
            check(mpi.reduce_scatter(rows, out=into[0]), sums)
            check(QUICK.alltoall(rows, into[1], "alltoall"), swapped)
            check(QUICK.alltoall(into[2], into[2], "alltoall"), swapped)
            check(QUICK.allgather(rows, every, "allgather"), stacked)
            check(into[0], sums)
            check(into[1], swapped)
            check(into[2], swapped)
            check(every, stacked)
            inside = rows.copy()
            check(mpi.reduce_scatter(inside, out=inside[-1]), sums)
            check(mpi.allreduce(rows, out=into[1]), sum(stacked))
            assert mpi.allreduce(into[1], "max", out=into[1]) is into[1]
            check(into[1], sum(stacked))
        for odd in (rows[:, ::2], np.zeros((size, count), "f4"), np.zeros(3), rows.tolist()):
            assert QUICK.allreduce(rows, "sum", odd) is False
            assert QUICK.alltoall(rows, odd, "alltoall") is False
        assert QUICK.alltoall(rows, None, "alltoall") is not False
        assert QUICK.allgather(rows, None, "allgather") is not False
    assert QUICK.reduce(np.ones(200_000), "sum", 1, None) is False
    assert (
        QUICK.allreduce(x, "avg", None)
        is QUICK.allreduce(x, [], None)
        is QUICK.reduce(x, 1, 1, None)
        is False
    )
    assert QUICK.bcast(x, True, "numpy", None) is False
    assert QUICK.bcast(x, size, "numpy", None) is False
    assert QUICK.bcast(x, 1, "numpy", np.empty(4)) is False
    for odd in (True, 1.0, size, -1, 2**70, None):
        assert QUICK.send(x, odd, 0) is QUICK.recv(odd, 0, "numpy", None) is False, odd
    under_way = mpi.irecv(left, 5)
    assert QUICK.allreduce(x, "sum", None) is not False, "with a receive that waits in vain as well"
    mpi.barrier()
    mpi.send(x, right, 5)
    under_way.wait()
    large = np.arange(30000.0)
    ends = [mpi.irecv(left, 5), mpi.isend(large, right, 5), mpi.iallreduce(large), mpi.ibarrier()]
    while not mpi.allreduce(np.array(all(each._is_over for each in ends)), "and"):
        pass  # no wait in Python is needed for what is under way
    check(ends[0].wait(), large)
    check(ends[2].wait(), large * size)


def many_under_way() -> None:
    """Whatever else is under way, a wait looks at what it waits for, and at few others."""
    rank, size = mpi.rank(), mpi.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    x, large, count = np.arange(3.0) + rank, np.arange(30000.0), 3000
    idle = [mpi.irecv(left, 10 + i) for i in range(count)]
    idle += [mpi_messages.irecv(None, left, 10 + i, "numpy", None) for i in range(count, 2 * count)]
    assert [each._is_begun for each in idle] == [True] * count + [False] * count
    mpi.barrier()
    advanced, most = 0, 0
    advance, look, advance_begun = Operation.advance, Engine._look, native.advance_begun

    def counted(operation: Operation) -> bool:
        nonlocal advanced
        advanced += 1
        return advance(operation)

    def counted_of_c(count: int) -> bool:
        nonlocal advanced
        advanced += count
        return advance_begun(count)

    def watched(self: Engine, *given: Any) -> None:
        nonlocal advanced, most
        advanced = 0
        look(self, *given)
        most = max(most, advanced)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operation, "advance", counted)
        patch.setattr(native, "advance_begun", counted_of_c)
        patch.setattr(Engine, "_look", watched)
        for tag in range(5):
            came = mpi.irecv(rank, tag)
            assert not came.test()
            sent = mpi.isend(x, rank, tag)
            check(came.wait(), x)
            sent.wait()
        assert mpi.sendrecv(large, rank, rank)[-1] == large[-1]
        mpi_messages.isendrecv(None, large, rank, rank, (0, None), None, None).wait()
    assert 1 < most < 300, most
    # What waits for its turn, or for its parts, gets on although all the others come first.
    ends = [mpi.iallgather(large), mpi.ialltoall(np.ones((size, 5000))), mpi.ibcast(large)]
    ends += [mpi.isendrecv(large, right, left, 3, 3), mpi.ireduce(large), mpi.ibarrier()]
    for each in reversed(ends):
        each.wait()
    check(ends[0].wait()[-1], large)
    sent = [mpi.isend(x, right, 10 + i) for i in range(2 * count)]
    for got in mpi.waitall(idle):
        check(got, np.arange(3.0) + left)
    assert mpi.waitall(sent) == [None] * (2 * count)
    assert not engine().active


def waits_for_all() -> None:
    """`waitall` returns results in the order of the requests, whatever their calls."""
    rank, size = mpi.rank(), mpi.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    x, large = np.arange(3.0), np.arange(30000.0)
    assert mpi.waitall([]) == []
    for sent in (x, large):
        requests = [mpi.irecv(left, 2), mpi.iallreduce(sent), mpi.isend(sent, right, 2)]
        requests += [mpi.ibarrier(), mpi.ibcast(sent + 1)]
        got = mpi.waitall(each for each in requests)
        check(got[0], sent)
        check(got[1], sent * size)
        assert got[2] is got[3] is None
        check(got[4], sent + 1)
        assert [each is again for each, again in zip(got, mpi.waitall(requests), strict=True)]
    refused(ArgumentError, "those that dlbridge.mpi returned", mpi.waitall, [x])
    refused(ArgumentError, "timeout must be", mpi.waitall, [mpi.isend(x, rank, 4)], timeout=-1)
    mpi.recv(rank, 4)
    mpi.barrier()
    if rank == 0:
        requests = [mpi.irecv(1, tag) for tag in (5, 6, 7)]
        text = "waitall: 3 of 3 calls are not over after 0.01 s, and stay under way between"
        refused(MPITimeoutError, text, mpi.waitall, requests, timeout=0.01)
        mpi.barrier()
        refused(MPITimeoutError, "2 of 3 calls", mpi.waitall, requests, timeout=0.2)
        assert requests[1].cancel()
        refused(MPIError, "recv: was cancelled", mpi.waitall, requests)
        mpi.barrier()
        check(mpi.waitall(requests[::2])[1], x)
    else:
        mpi.barrier()
        if rank == 1:
            mpi.send(x, 0, 5)
        mpi.barrier()
        if rank == 1:
            mpi.send(x, 0, 7)
    if rank == 1:
        mpi.send(large, 0, 8)
    elif rank == 0:  # the first one that failed
        requests = [mpi.irecv(1, 8, out=np.ones(2)), mpi.irecv(1, 9)]
        refused(ArgumentError, "out", mpi.waitall, requests)
        assert requests[1].cancel()
    mpi.barrier()


def rows_of(count: int, rank: int) -> np.ndarray[Any, Any]:
    """Return a tensor of a row for each rank."""
    return np.arange(mpi.size() * count, dtype="float64").reshape(mpi.size(), count) + 1e6 * rank


def every_collective(count: int, root: int) -> list[tuple[str, tuple[Any, ...], Any]]:
    """Return the name, arguments and result of each collective of rows with so many elements."""
    rank, size = mpi.rank(), mpi.size()
    every = np.stack([rows_of(count, each) for each in range(size)])
    rows, is_root = every[rank], rank == root
    given = rows if is_root else None
    return [
        ("allreduce", (rows,), sum(every)),
        ("allreduce", (rows, "max"), every[-1]),
        ("reduce", (rows, "sum", root), sum(every) if is_root else None),
        ("reduce_scatter", (rows,), sum(every)[rank]),
        ("allgather", (rows,), every),
        ("alltoall", (rows,), every[:, rank]),
        ("bcast", (given, root), every[root]),
        ("bcast", (rows, root), every[root]),
        ("gather", (rows, root), every if is_root else None),
        ("scatter", (given, root), every[root, rank]),
        ("scatter", (rows, root), every[root, rank]),
        ("barrier", (), None),
    ]


def is_equal(got: Any, wanted: Any) -> bool:
    """Return whether a call returned what it should."""
    return got is None if wanted is None else bool(np.array_equal(got, wanted))


ROADS: tuple[Any, ...] = (  # what begins a collective; what a blocking call returns is over
    lambda name, given: getattr(mpi, "i" + name)(*given).wait,
    lambda name, given: getattr(by_python, "i" + name)(*given).wait,
    lambda name, given: partial(lambda made: made, getattr(mpi, name)(*given)),
)


def collectives_begun_by_c() -> None:
    """Begun by C, by Python, and blocking in any mixture; several, waited for in any order."""
    rank, size = mpi.rank(), mpi.size()
    for count in (1, 100, 300, 1000, 40_000):
        for root in {0, size - 1}:
            calls = every_collective(count, root)
            for name, given, wanted in calls:  # C learns them
                assert is_equal(getattr(mpi, name)(*given), wanted), (name, count)
            for name, given, _ in calls:
                is_mpi = "reduce" in name and count == 40_000 and (size > 4 or name != "allreduce")
                begun = getattr(mpi, "i" + name)(*given)
                assert begun._is_begun or is_mpi, (name, count)
                begun.wait()
            for mixture in range(5):
                waits = [
                    ROADS[(number + mixture * (rank + 1)) % 2 if number % 4 else 2](name, given)
                    for number, (name, given, _) in enumerate(calls)
                ]
                order = np.random.default_rng((rank, mixture)).permutation(len(calls))
                for number in order:
                    name, _, wanted = calls[number]
                    assert is_equal(waits[number](), wanted), (name, count, mixture)
    rows = rows_of(1000, rank)
    every = np.stack([rows_of(1000, each) for each in range(size)])
    into = [np.zeros_like(rows), rows.copy(), np.zeros_like(every), rows.copy(), rows[0].copy()]
    requests = [mpi.iallreduce(rows, out=into[0]), mpi.iallreduce(into[1], out=into[1])]
    requests += [mpi.iallgather(rows, out=into[2]), mpi.ialltoall(into[3], out=into[3])]
    requests += [mpi.iscatter(rows if rank == 0 else None, out=into[4])]
    last = size - 1
    requests += [mpi.igather(rows, last, out=np.zeros_like(every) if rank == last else None)]
    reduced = [rows.copy(), rows[:, :7].copy()]
    for each in reduced:  # in place on the root; others may give what is not written
        requests.append(mpi.ireduce(each, "sum", last, out=each))
    assert all(each._is_begun for each in requests)
    results = mpi.waitall(requests)
    for got, at, wanted in zip(
        results, into, (sum(every), sum(every), every, every[:, rank], every[0, rank]), strict=False
    ):
        assert got is at
        check(got, wanted)
    assert is_equal(results[-3], every if rank == last else None)
    for each, got in zip(reduced, results[-2:], strict=True):
        assert got is (each if rank == last else None)
        width = each.shape[1]
        check(each, (sum(every) if rank == last else rows)[:, :width])
        got = mpi.reduce(rows[:, :width], "max", last, out=each if rank == last else None)
        assert is_equal(got, every[-1][:, :width] if rank == last else None)
    for count in (1, 100, 40_000):  # the root writes its own, too, also where both overlap
        whole = np.zeros(size * count + 2)
        sent, got = whole[:-2], whole[2:] if rank == last else np.zeros(size * count)
        for given in (None, got, sent):
            whole[:-2] = rows_of(count, rank).ravel()
            request = mpi.ibcast(sent if rank == last else given, last, out=got)
            assert request._is_begun
            assert request.wait() is got
            check(got, rows_of(count, last).ravel())
    view = rows_of(1000, rank)
    request = mpi.iallreduce(view)
    view.shape = (view.size,)  # the shape of the call is that when it began
    assert request.wait().shape == rows.shape
    begun = [mpi.iallreduce(np.full(3 + i, 1.0)) for i in range(2000)]
    begun += [by_python.iallgather(rows), mpi.iallgather(rows)]
    results = mpi.waitall(begun[::-1] if rank % 2 else begun)
    check(results[0 if rank % 2 else -1], every)
    mpi.barrier()
    finish()
    assert not native.advance_begun(0)


def rows_are_reduced_as_the_whole() -> None:
    """A row has the same bits as in an allreduce, whatever travels with the agreement."""
    rank, size = mpi.rank(), mpi.size()
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64"):
        for nbytes in (64, 1024, 8 * 1024, 9 * 1024, 40 * 1024, 1200 * 1024):
            made_of = values(rank, (1,), dtype).dtype
            shape = size, max(1, nbytes // size // made_of.itemsize)
            x = np.random.default_rng(rank).standard_normal(shape).astype(made_of)
            for op in ("sum", "mean"):
                wanted = mpi.allreduce(x, op)[rank].tobytes()
                made = [mpi.reduce_scatter(x, op) for _ in range(2)]
                made.append(mpi.ireduce_scatter(x, op).wait())
                made.append(by_python.ireduce_scatter(x, op).wait())
                slow = by_python.ireduce_scatter
                made.append(mpi.reduce_scatter(x, op) if rank else slow(x, op).wait())
                out = np.empty_like(x[0])
                assert mpi.reduce_scatter(x, op, out=out) is out
                into = x.copy()  # also into a row of the source, and where elements are not aligned
                made += [out.copy(), mpi.reduce_scatter(into, op, out=into[size - 1 - rank])]
                check(into[rank - size], x[rank] if 2 * rank != size - 1 else made[0])
                odd = at(1, x)
                made.append(mpi.reduce_scatter(odd, op, out=at(1, out)))
                made.append(mpi.ireduce_scatter(odd, op, out=at(1, out)).wait())
                assert {each.tobytes() for each in made} == {wanted}, (dtype, nbytes, op)
    for late in range(size):  # a wait that is too long for C goes on in Python, at either step
        for count in (3 * size, 30000 * size):
            for is_here in (True, rank == 0):
                mpi.barrier()
                if late == rank:
                    pause(0.02)
                x = np.arange(float(count)).reshape(size, -1)
                row = (mpi.reduce_scatter(x) if is_here
                       else by_python.ireduce_scatter(x).wait())  # fmt: skip
                check(row, x[rank] * size)
    made = QUICK.reduce_scatter(np.ones((size, 200000)), "mean", None, "reduce_scatter")
    assert made is not False
    refused(ArgumentError, "nothing was exchanged", mpi.reduce_scatter,
            np.ones((size, 5000 + rank)))  # fmt: skip


def begun_collectives_that_do_not_agree() -> None:
    """All ranks refuse the same ones, in whatever order they wait, and the others take place."""
    rank, size = mpi.rank(), mpi.size()
    x, rows = np.ones(3), rows_of(1000, rank)
    for _ in range(3):
        wrong = np.ones(4) if rank == 1 else x
        begun = [mpi.iallreduce(x), mpi.iallreduce(wrong), mpi.ialltoall(rows), mpi.ibarrier()]
        begun += [mpi.ibcast(rows, 1 if rank == 1 else 0), mpi.iallgather(rows)]
        begun += [mpi.igather(rows) if rank else mpi.iscatter(rows), mpi.iallreduce(rows)]
        for number in np.random.default_rng(rank).permutation(len(begun)):
            if number in (1, 4, 6):
                text = "all ranks must make the same call"
                refused(ArgumentError, text, begun[number].wait)
                refused(ArgumentError, text, begun[number].wait)  # each time
            else:
                begun[number].wait()
        check(begun[7].wait(), sum(rows_of(1000, each) for each in range(size)))
        text = (
            "got rank 0: allreduce(float64[3], op='sum'); rank 1: allreduce(float64[4], op='sum')"
        )
        with pytest.raises(ArgumentError) as caught:
            begun[1].wait()
        assert text in str(caught.value) or size > 2
    check(mpi.allreduce(x), np.full(3, float(size)))
    assert not engine().active


def begun_collectives_are_late() -> None:
    """What another rank has not begun: timeouts, no cancelling, interrupts, no memory, a fork.

    Rank 0 says when the others begin.
    """
    rank, world = mpi.rank(), engine().job.mpi.COMM_WORLD
    usual = signal.signal(signal.SIGALRM, lambda *_: interrupt())

    def interrupt() -> None:
        raise TimeoutError("of an alarm")

    def others_begin() -> None:
        for each in range(1, mpi.size()):
            world.Send(b"", each, 7)

    def without_memory(*_: Any) -> Any:
        raise MemoryError("there is none")

    def interrupted_before(begin: Any, *given: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return begin(*given)

    def interrupted_after(begin: Any, *given: Any) -> Any:
        made = begin(*given)
        signal.raise_signal(signal.SIGALRM)
        return made

    for count in (1, 1000):
        for name, given, wanted in every_collective(count, 0):
            begin = GOING_ON["i" + name]
            for kind, text, resume in (
                (MPITimeoutError, f"i{name}: is not over after 0.0 s", begin),
                (MemoryError, "there is none", without_memory),
                (TimeoutError, "of an alarm", partial(interrupted_before, begin)),
                (TimeoutError, "of an alarm", partial(interrupted_after, begin)),
            ):
                if rank:
                    world.Recv(bytearray(0), 0, 7)
                request = getattr(mpi, "i" + name)(*given)
                if rank == 0 and (name, given[1:]) == ("bcast", (0,)) and request.test():
                    pass  # the root of a small one
                elif rank == 0:
                    assert not request.test(), (name, count)
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setitem(GOING_ON, "i" + name, resume)
                        refused(kind, text, request.wait, 0)
                    assert not request.cancel()
                    if kind is MemoryError:
                        assert request._is_begun
                if rank == 0:
                    others_begin()
                assert is_equal(request.wait(60), wanted), (name, count)
    signal.signal(signal.SIGALRM, usual)
    x = np.arange(3.0)
    if rank:
        world.Recv(bytearray(0), 0, 7)
    request = mpi.iallreduce(x)
    if rank == 0:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)  # which ends it
                for call in (
                    request.wait,
                    request.test,
                    request.cancel,
                    partial(mpi.iallreduce, x),
                ):
                    refused(MPIError, ": this process was forked", call)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        others_begin()
    check(request.wait(60), x * mpi.size())
    mpi.barrier()
    finish()
    assert not native.advance_begun(0)


def begun_collectives_in_threads() -> None:
    """Any thread may wait for what another one has begun, also for the same."""
    rank, size = mpi.rank(), mpi.size()
    x, rows = np.arange(3.0), rows_of(3000, rank)
    total = sum(rows_of(3000, each) for each in range(size))
    failed: list[BaseException] = []

    def wait(requests: list[mpi.Request], seed: int) -> None:
        try:
            for number in np.random.default_rng((rank, seed)).permutation(len(requests)):
                check(requests[number].wait(60), total if number % 2 else x * size)
        except BaseException as error:
            failed.append(error)

    for _ in range(5):
        requests = [mpi.iallreduce(rows if i % 2 else x) for i in range(20)]
        threads = [threading.Thread(target=wait, args=(requests, i)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
    mpi.barrier()
    finish()


def collectives_of_many_ranks() -> None:
    """Among many ranks copies are MPI's, begun in the order of calls on all of them."""
    rank, size = mpi.rank(), mpi.size()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["dlbridge.mpi.channel"], "MOST_DIRECT", 1)
        comm = engine().job.mpi.COMM_WORLD.Dup()
        mpi.barrier(comm=comm)
    assert not channel("a test", comm).peers.is_direct
    for count in (1, 1000, 40_000):
        for root in (0, size - 1):
            calls = every_collective(count, root)
            for mixture in range(3):
                begun, results = {}, {}
                for number, (name, given, _) in enumerate(calls):
                    if (number + mixture) % 3:
                        begun[number] = getattr(mpi, "i" + name)(*given, comm=comm)
                    else:
                        results[number] = getattr(mpi, name)(*given, comm=comm)
                for number in sorted(begun, reverse=bool(rank % 2)):
                    results[number] = begun[number].wait()
                for number, (name, _, wanted) in enumerate(calls):
                    assert is_equal(results[number], wanted), (name, count, mixture)
    tree = {"a": values(rank, (3, 5), "float32"), "b": [values(rank, (30_000,), "float64")]}
    for root in (0, size - 1):  # MPI's as well
        for call in (mpi.allreduce, partial(mpi.bcast, root=root), partial(mpi.gather, root=root)):
            got, expected = call(tree, comm=comm), call(tree)
            assert (got is None) == (expected is None)
            pairs = zip(tensors_of(got or {}), tensors_of(expected or {}), strict=True)
            for (_, x), (_, y) in pairs:
                check(x, y)
    wrong = [mpi.iallreduce([np.ones(rank // (size - 1) + 1)], comm=comm) for _ in range(3)]
    for each in reversed(wrong) if rank % 2 else wrong:
        refused(ArgumentError, f"rank {size - 1}: [0]: float64[2]", each.wait)
    wrong = [mpi.iallgather(np.ones(3 + rank), comm=comm) for _ in range(3)]
    for each in reversed(wrong) if rank % 2 else wrong:
        refused(ArgumentError, "all ranks must make the same call", each.wait)
    comm.Free()


def at(offset: int, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy in memory whose address is `offset` more than a multiple of 64."""
    space = np.empty(array.nbytes + 64 + offset, np.uint8)
    start = -space.ctypes.data % 64 + offset
    made = space[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def check_reduced(x: Any, op: str, expected: Any) -> None:
    """`reduce` gives the root the bits of `allreduce`, by any call, and the others nothing."""
    rank, size = mpi.rank(), mpi.size()
    for root in {0, size - 1}:
        out = np.zeros_like(x)
        for got in (
            mpi.reduce(x, op, root),
            by_python.ireduce(x, op, root).wait(),
            mpi.reduce(x, op, root) if rank else by_python.ireduce(x, op, root).wait(),
            mpi.reduce(x, op, root, out=out),
        ):
            if rank == root:
                check(got, expected)
            else:
                assert got is None
        check(out, expected if rank == root else np.zeros_like(x))


def large_reductions() -> None:
    """Values that follow the agreement: like small ones, from any memory and by any call."""
    rank, size = mpi.rank(), mpi.size()
    for count in (1025, 2049, 20001, 100003):
        for dtype in ("int8", "float32", "float64", "complex128", "bool", "bfloat16", "float16"):
            for op in ("sum", "max"):
                if not takes(op, dtype):
                    continue
                all_ = [values(r, (count,), dtype) for r in range(size)]
                expected = all_[0]
                for other in all_[1:]:
                    expected = np.asarray(OPS[op](expected, other)).astype(expected.dtype)
                x = all_[rank].copy()
                got = mpi.allreduce(x, op)
                check(got, expected)
                check(x, all_[rank])
                check(by_python.iallreduce(x, op).wait(), expected)
                check(
                    mpi.allreduce(x, op) if rank else by_python.iallreduce(x, op).wait(), expected
                )
                assert mpi.allreduce(x, op, out=x) is x
                check(x, expected)
                check_reduced(all_[rank], op, expected)
    rng = np.random.default_rng(rank)
    for offset in (0, 16, 8, 1):  # as frameworks allocate, and at no multiple of an element
        x = at(offset, rng.standard_normal(5001))
        total = mpi.allreduce(x)
        assert {row.tobytes() for row in mpi.allgather(total)} == {total.tobytes()}
        check(by_python.iallreduce(x).wait(), total)
        x[7] = [np.nan, 0.0][rank % 2]
        assert np.isnan(mpi.allreduce(x, "max")[7])
    check(mpi.allreduce(np.ones((200, 300), "f4").T), np.full((300, 200), size, "f4"))
    requests = [by_python.iallreduce(np.full(3000 + i, float(i))) for i in range(6)]
    for i in reversed(range(6)):
        check(requests[i].wait(), np.full(3000 + i, float(i * size)))
    assert QUICK.allreduce(np.ones(3000), "sum", None) is not False
    total = QUICK.reduce(np.ones(3000), "sum", 0, None)
    assert total is None if rank else total.tolist() == [size] * 3000
    for late in range(size):  # a wait that is too long for C goes on in Python
        for way in (
            mpi.allreduce,
            mpi.allreduce if rank else lambda x: by_python.iallreduce(x).wait(),
        ):
            mpi.barrier()
            if late == rank:
                pause(0.02)
            check(way(np.full(40000, 2.0)), np.full(40000, 2.0 * size))
        mpi.barrier()
        if late == rank:
            pause(0.02)
        if (total := mpi.reduce(np.full(40000, 2.0))) is not None:
            check(total, np.full(40000, 2.0 * size))
    text = refused(ArgumentError, "nothing was exchanged", mpi.allreduce, np.ones(5000 + rank))
    assert f"float64[{5000 + size - 1}]" in text
    refused(ArgumentError, "op='max'", mpi.allreduce, np.ones(5000), "max" if rank else "sum")
    small = np.ones(3) if rank else np.ones(5000)
    refused(ArgumentError, "nothing was exchanged", mpi.allreduce, small)
    refused(ArgumentError, "root=1", mpi.reduce, np.ones(5000), "sum", min(rank, 1))
    refused(ArgumentError, "nothing was exchanged", mpi.reduce, np.ones(5000 + rank))
    check(mpi.allreduce(np.ones(5000)), np.full(5000, float(size)))


def no_memory_for_a_result() -> None:
    """A rank that has no memory for its result says so to all, before anything is exchanged."""
    rank, size = mpi.rank(), mpi.size()

    def receive(*_: Any) -> Any:
        raise MemoryError("there is none")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(Call, "receive", receive)
        request = by_python.iallreduce(np.ones(5000))
        refused(ArgumentError, "rank 0: there is none", request.wait)
    check(mpi.allreduce(np.ones(5000)), np.full(5000, float(size)))


def nan_is_kept() -> None:
    """MPI's own minimum loses it, or keeps it, by the order of the ranks."""
    for shape in ((2,), (9000,)):
        for where in range(mpi.size()):
            x = np.full(shape, np.nan if mpi.rank() == where else 1.0, "float32")
            assert np.isnan(mpi.allreduce(x, "min")).all()
            assert np.isnan(mpi.allreduce(x, "max")).all()


def layouts() -> None:
    """Transposed, read-only, strided and negative strides as a source; destinations."""
    rank, size = mpi.rank(), mpi.size()
    for length in (3, 300):
        base = np.arange(length * 4 * 20.0).reshape(length, 4, 20)
        frozen = base.copy()
        frozen.flags.writeable = False
        for x in (base.T, base[::-1], base[:, ::2], frozen, np.broadcast_to(base[0], (5, 4, 20))):
            check(mpi.allreduce(x), np.ascontiguousarray(x) * size)
            check(mpi.bcast(x if rank == 0 else None), np.ascontiguousarray(x))
            check(mpi.allgather(x)[size - 1], np.ascontiguousarray(x))
        for out in (np.zeros((20, 4, length)), np.zeros((length, 4, 20)).T):
            assert mpi.allreduce(base.T, out=out) is out
            check(out, np.ascontiguousarray(base.T) * size)
        mine = base.copy()
        mpi.allreduce(mine, out=mine)
        check(mine, base * size)
        refused(ExchangeError, "got read-only float64", mpi.allreduce, base, out=frozen)
        kept = np.zeros_like(base)
        mpi.bcast(base if rank == 0 else None, out=None if rank == 0 else kept)
        assert rank == 0 or kept.tobytes() == base.tobytes()


def disagreements() -> None:
    """Every rank raises the same text, nothing is written, and the next call works."""
    rank, size = mpi.rank(), mpi.size()
    last = rank == size - 1
    for big in (1, 100000):
        out = np.zeros(big)
        texts = [
            refused(ArgumentError, "float64[", mpi.allreduce, np.ones(big + last)),
            refused(ArgumentError, "int", mpi.allreduce, np.ones(big, "int32" if last else "f4")),
            refused(ArgumentError, "op='min'", mpi.allreduce, np.ones(big), ("sum", "min")[last]),
            refused(ArgumentError, "bcast", (mpi.allreduce, mpi.bcast)[last], np.ones(big)),
            refused(ArgumentError, "root=0", mpi.bcast, np.ones(big), size - 1 if last else 0),
            refused(ArgumentError, "None", mpi.allreduce, None if last else np.ones(big)),
            refused(ArgumentError, "out must be", mpi.allreduce, np.ones(big),
                    out=np.zeros(big + 1) if last else out),
            refused(ArgumentError, "first dimension", mpi.alltoall, np.ones((size + last, big))),
            refused(ArgumentError, "", mpi.allgather,
                    object() if last else np.ones(big)),
            refused(ArgumentError, "", (mpi.barrier, mpi.bcast)[last]),
        ]  # fmt: skip
        assert not out.any()
        lines = mpi.allgather(np.frombuffer("|".join(texts).encode().ljust(8192), np.uint8))
        assert (lines == lines[0]).all()
        if big == 1:
            assert f"rank {size - 1}: allreduce(float64[2], op='sum')" in texts[0], texts[0]
    assert mpi.allreduce(np.ones(2)).tolist() == [size, size]


def refusals() -> None:
    """What all ranks do wrong alike is said as it is; what concerns one rank, there."""
    size = mpi.size()
    for tree in ([np.ones(2), np.ones(3)], {"a": np.ones((size, 2))}):
        text = f"a tensor is required, got a tree of the type {type(tree).__name__}; allreduce"
        refused(UnsupportedTypeError, "send: " + text, mpi.send, tree, mpi.rank())
        for name in ("reduce", "allgather", "alltoall", "reduce_scatter", "allgatherv"):
            refused(UnsupportedTypeError, f"{name}: {text}", getattr(mpi, name), tree)
    refused(
        ArgumentError, "allreduce: min of complex64 is not", mpi.allreduce, np.ones(2, "c8"), "min"
    )
    refused(ArgumentError, "allreduce: xor of float32", mpi.allreduce, np.ones(2, "f4"), "xor")
    refused(ArgumentError, "op must be one of sum", mpi.allreduce, np.ones(2), "avg")
    refused(ArgumentError, f"rank from 0 to {size - 1}", mpi.send, np.ones(2), size)
    refused(ArgumentError, "tag must be", mpi.send, np.ones(2), 0, -1)
    refused(ArgumentError, "rank, an integer", mpi.recv, "0")
    refused(ExchangeError, "writable", mpi.recv, 0, out=np.broadcast_to(np.zeros(1), 3))
    refused(DLBridgeError, "intracommunicator", mpi.barrier, comm="world")


def names_in_refusals() -> None:
    """A refusal begins with the call of the user, whether that waits or not."""
    rank = mpi.rank()
    x, rows, wrong = np.ones(3), np.ones((mpi.size() + 1, 2)), np.ones(5)
    calls: dict[str, tuple[Any, ...]] = {
        "send": (x, mpi.size()), "recv": (mpi.size(),), "sendrecv": (x, rank, rank, -1),
        "bcast": (x, -1), "allreduce": (x, "avg"), "reduce": (x, "avg"), "allgather": (None,),
        "gather": (x, -1), "scatter": (rows, -1), "reduce_scatter": (rows,), "alltoall": (rows,),
        "allgatherv": (None,), "alltoallv": (rows, "ab"), "barrier": (),
    }  # fmt: skip
    for name, given in calls.items():
        if given:
            assert refused(DLBridgeError, "", getattr(mpi, name), *given).startswith(f"{name}: ")
            begin = partial(getattr(mpi, f"i{name}"), *given)
            text = refused(DLBridgeError, "", lambda begin=begin: begin().wait())
            assert text.startswith(f"i{name}: "), text
        for form in (name, f"i{name}"):
            text = refused(DLBridgeError, "comm must be", getattr(mpi, form), *given, comm="world")
            assert text.startswith(f"{form}: "), text
    tree = {"a": x}
    for begin in (partial(mpi.iallreduce, tree, "avg"), partial(mpi.ibcast, tree, -1)):
        refused(ArgumentError, f"{begin.func.__name__}: ", lambda begin=begin: begin().wait())
    refused(ArgumentError, "irecv: out must be", mpi_after_send(x, partial(mpi.irecv, out=wrong)))
    both = partial(mpi.isendrecv, x, rank, rank, out=wrong)
    refused(ArgumentError, "isendrecv: out must be", lambda: both().wait())
    refused(ArgumentError, "sendrecv: out must be", mpi.sendrecv, x, rank, rank, out=wrong)
    request = mpi.irecv(rank, 7)
    assert repr(request) == "<Request of irecv, under way>"
    refused(MPITimeoutError, "irecv: is not over after", request.wait, timeout=0.01)
    refused(ArgumentError, "irecv: timeout must be", request.wait, timeout="soon")
    sent = mpi.isend(x, rank, 7)
    assert repr(sent).startswith("<Request of isend, ")
    sent.wait()
    request.wait()


def mpi_after_send(x: Any, begin: Any) -> Any:
    """Return what waits for a receive of a tensor that this rank sends itself."""

    def wait() -> Any:
        sent = mpi.isend(x, mpi.rank(), 3)
        try:
            return begin(mpi.rank(), 3).wait()
        finally:
            sent.wait()

    return wait


def messages() -> None:
    """Order, tags, any source, destinations; a self-send; one that does not fit."""
    rank, size = mpi.rank(), mpi.size()
    if rank == 0:
        requests = [mpi.isend(np.full(n, n), 1, tag) for tag in (7, 8) for n in (1, 5000, 2)]
        [request.wait() for request in requests]
    if rank == 1:
        later = [mpi.irecv(0, 8) for _ in range(3)]
        assert [mpi.recv(0, 7).size for _ in range(3)] == [1, 5000, 2]
        assert [request.wait().size for request in later] == [1, 5000, 2]
        assert (later[0].source, later[0].tag) == (0, 8)
        assert later[0].test()
    mpi.barrier()
    if rank:
        mpi.send(np.full(3000, rank), 0, rank)
    else:
        got = [mpi.irecv() for _ in range(size - 1)]
        assert sorted(request.wait()[0] for request in got) == list(range(1, size))
        assert all(request.source == request.tag == request.wait()[0] for request in got)
    mpi.barrier()  # what is sent from here on is for other receives
    for count in (4, 4000):
        x = np.arange(float(count))
        out = np.zeros((count, 2))[:, 0]
        assert mpi.sendrecv(x, rank, rank, out=out) is out
        check(out.copy(), x)
        refused(ArgumentError, "out must be float64[4", mpi.sendrecv, x, rank, rank, out=np.ones(3))
        check(mpi.sendrecv(x, rank, rank), x)  # the message that did not fit is gone


class Hurried:
    """A communicator where another thread's receive takes a message as soon as it is seen."""

    def __init__(self, communicator: Any) -> None:
        self.communicator = communicator
        self.took = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.communicator, name)

    def Iprobe(self, *wanted: Any) -> bool:
        is_there = bool(self.communicator.Iprobe(*wanted))
        if is_there:
            self.communicator.Recv(bytearray(100_000), wanted[0], wanted[1])
            self.took = True
        return is_there


def receives_from_any_rank() -> None:
    """A message belongs to the first receive that it fits, whichever is waited for first."""
    rank, last = mpi.rank(), mpi.size() - 1
    for comes_first in (True, False):
        if rank == last:
            if not comes_first:
                mpi.barrier()
            for value, tag in ((1, 4), (2, 5), (3, 5), (4000, 6)):
                mpi.isend(np.full(value, value), 0, tag)
            if comes_first:
                mpi.barrier()
        elif rank:
            mpi.barrier()
        else:
            if comes_first:
                mpi.barrier()
            requests = [mpi.irecv(), mpi.irecv(tag=5), mpi.irecv(last, 5)]
            if not comes_first:
                mpi.barrier()
            assert mpi.recv(last)[0] == 4000
            assert [each.wait()[0] for each in reversed(requests)] == [3, 2, 1]
            assert [(each.source, each.tag) for each in requests] == [
                (last, 4),
                (last, 5),
                (last, 5),
            ]
        mpi.barrier()
    if rank == 0:
        cancelled, following = mpi.irecv(), mpi.irecv()
        assert cancelled.cancel()
        assert not cancelled.cancel()
        refused(MPIError, "was cancelled", cancelled.wait)
        mpi.barrier()
        assert following.wait()[0] == 7
        refused(MPITimeoutError, "nothing is under way", mpi.recv, timeout=0.01)
        assert not matching.UNMATCHED
    else:
        mpi.barrier()
        if rank == last:
            mpi.send(np.full(2, 7), 0)
    mpi.barrier()
    over = channel("")
    if rank == 0:
        over.messages = hurried = Hurried(over.messages)
        while not hurried.took:
            refused(MPITimeoutError, "nothing is under way", mpi.recv, timeout=0.05)
        over.messages = hurried.communicator
    elif rank == last:
        mpi.send(np.full(2, 8), 0)
    mpi.barrier()


def send_by_python(x: Any, dest: int, tag: int = 0) -> None:
    mpi_messages.isend(None, x, dest, tag).wait()


def recv_by_python(source: int | None = None, tag: int | None = None, **named: Any) -> Any:
    return mpi.irecv(source, tag, **named).wait()


def isend_and_wait(x: Any, dest: int, tag: int) -> None:
    request = mpi.isend(x, dest, tag)
    assert request.wait(60) is None
    assert request.test()


def messages_by_c() -> None:
    """C and Python receive what the other one sends, of any size, whoever is late."""
    rank = mpi.rank()
    for nbytes in (0, 1, 8191, 8192, 8193, 20000, 2**20 + 3):
        x = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        for send in (mpi.send, isend_and_wait, send_by_python):
            for receive in (mpi.recv, recv_by_python):
                for late in (None, 0, 1):
                    mpi.barrier()
                    if late == rank:
                        pause(0.02)  # C waits for 10 milliseconds at most
                    if rank == 0:
                        [send(x, 1, tag) for tag in (3, 3, 4, 3)]
                    elif rank == 1:
                        out = np.zeros_like(x)
                        check(receive(0, 3), x)
                        assert receive(0, 3, out=out) is out
                        check(out, x)
                        check(receive(0), x)
                        check(receive(), x)
    if rank == 0:
        for count in (3, 3000):
            assert QUICK.send(np.ones(count), 1, 0) is None
            assert QUICK.send(np.ones((count, 2))[:, 0], 1, 0) is False
            assert QUICK.send(np.ones(count), 1, 0) is None
    elif rank == 1:
        for count in (3, 3000):
            out, frozen = np.zeros(count), np.zeros(count)
            frozen.flags.writeable = False
            check(QUICK.recv(0, 0, "numpy", None), np.ones(count))
            for odd in (np.zeros((count, 2))[:, 0], frozen, out[::-1], np.zeros((0, 2)), [0.0]):
                assert QUICK.recv(0, 0, "numpy", odd) is False
            assert QUICK.recv(0, 0, "numpy", out) is out
            check(out, np.ones(count))


def shared_by_threads(left: int, right: int, large: Any) -> None:
    """One thread hands a request to Python while others look at it."""
    for _ in range(50):
        results: list[Any] = []
        shared = mpi.irecv(left, 7)
        wait = partial(lambda each, to: to.append(each.wait()), shared, results)
        threads = [threading.Thread(target=wait) for _ in range(6)]
        for thread in threads:
            thread.start()
        pause(0.001 * mpi.rank())
        mpi.send(large, right, 7)
        for thread in threads:
            thread.join()
        check(results[0], large)
        assert len(results) == 6
        assert all(each is results[0] for each in results)


def messages_begun_by_c() -> None:
    """`isend` and `irecv` in C end as those of Python do, whoever is late."""
    rank, size = mpi.rank(), mpi.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    small, large = np.arange(3.0), np.arange(300000.0)
    mpi.allreduce(small)  # C learns the type
    for x in (small, large, np.zeros((0, 2)), np.ones((5, 1), "int8")):
        for late in (None, 0, 1):
            mpi.barrier()
            if late == rank:
                pause(0.02)
            out = np.ones_like(x)
            received = [mpi.irecv(left, 1), mpi.irecv(left, out=out), mpi.irecv(left, 1)]
            assert all(each._is_begun for each in received) or x.size == 0
            assert "<Request of irecv, " in repr(received[0])
            sent = [mpi.isend(x + x.dtype.type(i), right, 1) for i in range(3)]
            check(received[0].wait(60), x)
            assert received[0].wait() is received[0].wait()
            got = mpi.waitall(received[:0:-1])
            check(got[0], x + x.dtype.type(2))
            assert got[1] is out
            check(out, x + x.dtype.type(1))
            assert [(each.source, each.tag) for each in received] == [(left, 1)] * 3
            assert all(each.test() for each in received)
            assert not any(each.cancel() for each in received)
            assert mpi.waitall(sent) == [None] * 3
            assert [(each.source, each.tag) for each in sent] == [(-1, -1)] * 3
    for x in (small, large):  # those that are dropped take place
        out = np.zeros_like(x)
        mpi.irecv(left, 2, out=out)
        mpi.isend(x, right, 2)
        mpi.isend(x + 1, right, 2)
        check(mpi.recv(left, 2), x + 1)
        mpi.barrier()
        while not (out == x).all():
            mpi.barrier(comm=engine().job.mpi.COMM_SELF)
        wrong = [mpi.irecv(left, 3, out=small[1:].copy()), mpi.irecv(left, 3)]
        assert all(each._is_begun for each in wrong)
        mpi.barrier()
        mpi.waitall([mpi.isend(x, right, 3), mpi.isend(x, right, 3), wrong[1]])
        for wait in (wrong[0].wait, partial(mpi.waitall, wrong)):
            refused(ArgumentError, "out must be float64", wait)
        assert wrong[0].test()
        back = mpi.isend(x, right, 4)  # while a receive in Python waits for that rank
        check(mpi.sendrecv(x, right, left, 5, 5), x)
        check(mpi_messages.irecv(None, left, 4, "numpy", None).wait(), x)
        back.wait()
    taken = mpi.irecv(rank, 6)
    assert taken._is_begun
    assert taken.cancel()
    for wait in (taken.wait, partial(mpi.waitall, [taken])):
        refused(MPIError, "recv: was cancelled", wait)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        shared_by_threads(left, right, large)
    finally:
        sys.setswitchinterval(interval)
    mpi.barrier()
    assert not engine().active
    assert not native.advance_begun(0)


def messages_passed_on() -> None:
    """A message that C has begun stays with it, or is Python's, whatever ends the passing on."""
    rank, size = mpi.rank(), mpi.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    x, begin = np.arange(30000.0), GOING_ON["irecv"]
    mpi.allreduce(x[:3])  # C learns the type

    def arrives(request: Any) -> None:
        """The message comes, once."""
        mpi.barrier()
        sent = mpi.isend(x, right, 8), mpi.isend(x + 1, right, 8)
        check(request.wait(60), x)
        check(mpi.recv(left, 8, timeout=60), x + 1)
        mpi.waitall(sent)

    def interrupt(_number: int, _frame: Any) -> None:
        raise TimeoutError("of an alarm")

    def without_memory(*_: Any) -> Any:
        raise MemoryError("there is none")

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return begin(*given)

    def interrupted_after(*given: Any) -> Any:
        made = begin(*given)
        signal.raise_signal(signal.SIGALRM)
        return made

    usual = signal.signal(signal.SIGALRM, interrupt)
    for kind, text, resume, is_of_c in (
        (MemoryError, "there is none", without_memory, True),
        (TimeoutError, "of an alarm", interrupted, False),
        (TimeoutError, "of an alarm", interrupted_after, False),
    ):
        waits: list[Any] = [lambda each: each.wait(0), lambda each: mpi.waitall([each], timeout=0)]
        for wait in (*waits, lambda each: each.operation):
            request = mpi.irecv(left, 8)
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(GOING_ON, "irecv", resume)
                refused(kind, text, wait, request)
            assert request._is_begun == is_of_c
            arrives(request)
    signal.signal(signal.SIGALRM, usual)
    forks_amid_passing_on(mpi.irecv(left, 8), arrives)
    assert not engine().active
    assert not native.advance_begun(0)


def forks_amid_passing_on(request: Any, arrives: Any) -> None:
    """A child is refused at once, also where a thread of its parent passes the message on."""
    parent, begin = os.getpid(), GOING_ON["irecv"]
    is_within, may_go_on = threading.Event(), threading.Event()

    def late(*given: Any) -> Any:
        if os.getpid() == parent:
            is_within.set()
            assert may_go_on.wait(60)
        return begin(*given)

    def wait() -> None:
        with pytest.raises(MPITimeoutError):
            request.wait(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GOING_ON, "irecv", late)
        thread = threading.Thread(target=wait)
        thread.start()
        assert is_within.wait(60)
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)  # which ends it
                waits = request.wait, request.test, request.cancel, partial(mpi.waitall, [request])
                for call in waits:
                    refused(MPIError, "irecv: this process was forked", call)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        try:
            assert os.waitpid(child, 0)[1] == 0
        finally:
            may_go_on.set()
            thread.join()
    arrives(request)


def messages_that_do_not_fit() -> None:
    """They are received and gone, and nothing of them is written."""
    rank = mpi.rank()
    for count in (300, 30000):
        others = [(count - 1,), (count, 1), (1, count), (count + 1,), ()]
        odd = [np.zeros(shape) for shape in others] + [np.zeros(count, "i8"), np.zeros(count, "f4")]
        for out in odd:
            if rank == 0:
                mpi.send(np.full(count, 1.5), 1)
            elif rank == 1:
                refused(ArgumentError, f"must be float64[{count}]", mpi.recv, 0, out=out)
                assert not out.any()
        if rank == 0:
            mpi.send(np.full(count, 2.5), 1)
        elif rank == 1:
            check(mpi.recv(0, out=np.zeros(count)), np.full(count, 2.5))


def contents_longer_than_announced() -> None:
    """Whoever receives them, in C or in Python, learns of which rank they are."""
    rank, over = mpi.rank(), channel("a test")
    for in_c, out in ((False, None), (False, np.zeros(3000)), (True, None), (True, np.zeros(3000))):
        if rank == 0:
            number = over.peers.next_payload()
            head = struct.pack("<IIQ", number, 0, 5) + Kind((3000,), (2, 64, 1)).pack()
            sent = over.messages.Isend(head, 1, 5)
            more = over.payloads.Isend(bytes(24001), 1, number)
            sent.Wait()
            more.Wait()
        elif rank == 1:
            receive = mpi.recv if in_c else recv_by_python
            refused(MPIError, "rank 0", receive, 0, 5, out=out)
    mpi.barrier()
    check(mpi.sendrecv(np.arange(3000.0), rank, rank), np.arange(3000.0))


class Failing:
    """A communicator that has no memory for one kind of call."""

    def __init__(self, comm: Any, name: str) -> None:
        self._comm, self._name = comm, name

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._name else getattr(self._comm, name)

    def _fail(self, *_: Any) -> Any:
        raise MemoryError("there is none")


def messages_without_memory() -> None:
    """Whatever part of a message cannot be posted, the other rank and the next message go on."""
    rank, over = mpi.rank(), channel("test")
    x, large = np.arange(3.0), np.arange(300000.0)
    cases = [("messages", "Isend", x), ("messages", "Isend", large), ("payloads", "Isend", large)]
    for which, name, sent in cases:
        for call in (partial(mpi.sendrecv, sent, 0, 0), partial(isend_and_wait, sent, 0, 0)):
            mpi.barrier()
            if rank == 1:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(QUICK, "peers", None)
                    patch.setattr(over, which, Failing(getattr(over, which), name))
                    refused(MemoryError, "there is none", call)
                mpi.send(x + 1, 0)
            mpi.barrier()
            if rank == 0:
                check(mpi.recv(1), x + 1)
                mpi.send(x, 1)
            elif rank == 1:
                check(mpi.recv(0, timeout=60), x)
    for _ in range(2):  # the receive cannot be posted, so the next one gets the message
        mpi.barrier()
        if rank == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(over, "messages", Failing(over.messages, "Irecv"))
                patch.setattr(QUICK, "peers", None)
                with pytest.raises(MemoryError):
                    mpi.sendrecv(x, 0, 0)
            check(mpi.recv(0), x + 2)
        elif rank == 0:
            check(mpi.recv(1), x)
            mpi.send(x + 2, 1)
    for sent in (x[:0], x, large):  # no memory for the result: its sender does not wait
        for receive in (mpi.recv, recv_by_python):
            mpi.barrier()
            if rank == 1:
                mpi.send(sent, 0, timeout=60)
                mpi.send(x, 0)
            elif rank == 0:

                def empty(_: Kind) -> Any:
                    raise MemoryError("there is none")

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Kind, "empty", empty)
                    patch.setattr(QUICK, "peers", None)
                    with pytest.raises(MemoryError, match="there is none"):
                        receive(1)
                check(receive(1), x)
    mpi.barrier()
    finish()


def passed_on_without_memory() -> None:
    """What C cannot hand over to Python for lack of memory goes on, or is taken back."""
    rank, over, world = mpi.rank(), channel("a test"), engine().job.mpi.COMM_WORLD
    x, large = np.arange(3.0), np.arange(30000.0)
    mpi.allreduce(x), mpi.bcast(large), mpi.allgather(large)  # C learns them
    tag = 7  # of the test's own messages

    @contextmanager
    def short_of_memory(name: str, times: int) -> Any:
        """Memory is there at the last time; then the other rank may begin."""
        resume, left = GOING_ON[name], [times]

        def hand_over(*given: Any) -> Any:
            left[0] -= 1
            if left[0]:
                raise MemoryError("there is none")
            world.Send(b"", 0, tag)
            return resume(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(GOING_ON, name, hand_over)
            yield

    for call in (mpi.recv, partial(mpi.sendrecv, x, 0)):  # nothing has come
        name = "recv" if call is mpi.recv else "sendrecv"
        for more in ({}, {"timeout": 60.0}, {"out": np.empty(3)}):
            mpi.barrier()
            if rank == 1:
                with short_of_memory(name, 2):
                    refused(MemoryError, "there is none", call, 0, **more)
            mpi.barrier()
            if rank == 0:
                mpi.send(x + 1, 1)
                check(x if call is mpi.recv else mpi.recv(1), x)
            elif rank == 1:
                check(mpi.recv(0, timeout=60), x + 1)
    for sent in (x, large):  # one rank is late
        for name, mine, others in (
            ("allreduce", partial(mpi.allreduce, sent), sent * mpi.size()),
            ("bcast", partial(mpi.bcast, sent), sent),
            ("allgather", partial(mpi.allgather, sent), np.stack([sent] * mpi.size())),
        ):
            mpi.barrier()
            if rank == 0:
                world.Recv(bytearray(0), 1, tag)
                check(mine(), others)
            elif rank == 1:
                with short_of_memory(name, 3):
                    check(mine(), others)
            else:
                check(mine(), others)
    for out in (None, np.empty(30000)):  # the contents are late
        mpi.barrier()
        if rank == 0:
            number = over.peers.next_payload()
            head = struct.pack("<IIQ", number, 0, 5) + Kind((30000,), (2, 64, 1)).pack()
            over.messages.Send(head, 1, 5)
            world.Recv(bytearray(0), 1, tag)
            over.payloads.Send(large, 1, number)
            mpi.send(x, 1, 5)
        elif rank == 1:
            over.messages.Probe(0, 5)  # else the receive is taken back
            with short_of_memory("recv", 3):
                check(mpi.recv(0, 5, out=out, timeout=60), large)
            check(mpi.recv(0, 5, timeout=60), x)
    mpi.barrier()
    finish()


def exchanges_with_nobody() -> None:
    """The halo of a grid whose ends have no neighbour: `MPI.PROC_NULL`."""
    module = engine().job.mpi
    grid = module.COMM_WORLD.Create_cart([mpi.size()], periods=[False])
    rank, size, nobody = grid.rank, grid.size, module.PROC_NULL
    before, after = grid.Shift(0, 1)
    assert (before == nobody) == (rank == 0)
    for count in (3, 30000):
        x, halo = np.full(count, float(rank)), np.full(count, -1.0)
        got = mpi.sendrecv(x, after, before, comm=grid)
        assert (got is None) if rank == 0 else (got == rank - 1).all()
        assert mpi.sendrecv(x, before, after, out=halo, comm=grid) is halo
        assert (halo == (rank + 1 if rank < size - 1 else -1.0)).all()
        assert mpi.recv(nobody) is None
        assert mpi.recv(nobody, out=halo) is halo
        mpi.send(x, nobody)
        request = mpi.irecv(nobody)
        assert request.test()
        assert request.wait() is None
        assert not request.cancel()
    refused(ArgumentError, "tag must be", mpi.send, np.ones(2), nobody, -1)
    refused(ExchangeError, "writable", mpi.recv, nobody, out=b"12")
    grid.Free()


def failed_exchanges_leave_nothing() -> None:
    """All of a sendrecv is checked before anything is posted, so no message is lost."""
    rank, size = mpi.rank(), mpi.size()
    x = np.arange(3.0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dest": size}, "dest must be a rank"),
        ({"dest": 0, "sendtag": -1}, "tag must be"),
        ({"dest": 0, "recvtag": -1}, "tag must be"),
        ({"dest": 0, "to": "nothing"}, "nothing"),
        ({"dest": 0, "out": (1, 2)}, ""),
        ({"dest": 0, "x": object()}, ""),
    ]
    for given, text in cases:
        mpi.barrier()
        if rank == 1:
            arguments = {"x": x, "source": 0, **given}
            refused((DLBridgeError, TypeError), text, mpi.sendrecv, **arguments)
        mpi.barrier()
        if rank == 0:
            mpi.send(x, 1)
        elif rank == 1:
            check(mpi.recv(0, timeout=60), x)
    if rank == 1:
        refused(DLBridgeError, "nothing", mpi.recv, 0, to="nothing")
    assert not engine().active


def timeouts() -> None:
    """A wait ends in time, and says what is under way; the next call works."""
    rank, size = mpi.rank(), mpi.size()
    x = np.arange(3.0)
    for wrong in (-1, "1", True, float("nan")):
        refused(ArgumentError, "timeout must be", mpi.recv, 0, timeout=wrong)
        refused(ArgumentError, "timeout must be", mpi.allreduce, x, timeout=wrong)
        refused(ArgumentError, "timeout must be", mpi.sendrecv, x, 0, 0, timeout=wrong)
    assert not engine().active
    for forever in (10**400, float("inf"), 1e300):
        mpi.barrier(timeout=forever)
        mpi.ibarrier().wait(timeout=forever)
    if rank == 0:
        refused(MPITimeoutError, "no message has come", mpi.recv, 1, timeout=0.01)
        refused(TimeoutError, "no message has come", mpi.recv, timeout=0)
        assert not engine().active
    mpi.barrier()
    if rank == 1:
        mpi.send(x, 0)
    elif rank == 0:
        check(mpi.recv(1, timeout=60), x)
    large, into = np.arange(30000.0), np.zeros(30000)
    for sent in (x, large):  # a receive by C is taken back as well
        if rank == 0:
            refused(MPITimeoutError, "no message has come", mpi.recv, 1, 6, timeout=0.02)
            refused(MPITimeoutError, "no message has come", mpi.recv, 1, 6, out=into, timeout=0.02)
            assert not engine().active
        mpi.barrier(timeout=60)
        if rank == 1:
            mpi.send(sent, 0, 6, timeout=60)
        elif rank == 0:
            check(mpi.recv(1, 6, timeout=60), sent)
    if rank == 0:
        refused(MPITimeoutError, "send: is not over after 0.02 s", mpi.send, large, 1, timeout=0.02)
    mpi.barrier(timeout=60)
    if rank == 1:
        check(mpi.recv(0, out=into, timeout=60), large)
    finish()
    request = None
    if rank == 0:
        request = mpi.iallreduce(x)
        refused(MPITimeoutError, "allreduce: is not over after 0.01 s", request.wait, 0.01)
        assert not request.cancel()
        refused(MPITimeoutError, "stays under way", mpi.barrier, timeout=0.0)
        mpi.send(x, 1, 7)
    elif rank == 1:
        mpi.recv(0, 7)
    if rank:
        if rank > 1:
            mpi.recv(rank - 1, 8)
        if rank < size - 1:
            mpi.send(x, rank + 1, 8)
        check(mpi.allreduce(x, timeout=60), x * size)
        mpi.barrier(timeout=60)
    if request is not None:
        check(request.wait(60), x * size)
    for call in (mpi.allgather, mpi.alltoall, mpi.reduce_scatter):
        call(np.ones((size, 2)), timeout=60)
    check(mpi.bcast(x, timeout=60), x)
    mpi.reduce(x, timeout=60)
    check(mpi.sendrecv(x, rank, rank, timeout=60), x)
    mpi.barrier()
    if rank == 0:  # the receive of a sendrecv is taken back, not its send
        text = "sendrecv: no message has come after 0.01 s; "
        refused(MPITimeoutError, text + "nothing", mpi.sendrecv, x, rank, 1, 3, 4, timeout=0.01)
        check(mpi.recv(rank, 3), x)
        large = np.arange(300000.0)
        refused(MPITimeoutError, text + "the send", mpi.sendrecv, large, 1, 1, 3, 4, timeout=0.01)
        request = mpi.isendrecv(x, rank, 1, 3, 4)
        assert request.cancel()
        refused(MPIError, "recv: was cancelled", request.wait)
        check(mpi.recv(rank, 3), x)
        mpi.send(x, 1, 5)
        check(mpi.recv(1, 4), x)
    elif rank == 1:
        mpi.recv(0, 5)
        check(mpi.recv(0, 3), np.arange(300000.0))
        mpi.send(x, 0, 4)
    mpi.barrier()
    finish()
    comm = engine().job.mpi.COMM_WORLD.Dup()  # its first use needs all ranks
    if rank == 0:
        text = "not all ranks of comm have made their first call"
        for _ in range(2):
            refused(MPITimeoutError, "barrier: " + text, mpi.barrier, comm=comm, timeout=0.05)
        refused(MPITimeoutError, "recv: " + text, mpi.recv, 1, comm=comm, timeout=0)
    mpi.barrier()
    check(mpi.allreduce(x, comm=comm, timeout=60), x * size)
    comm.Free()


def cancelled_receives() -> None:
    """A receive is taken back, unless its message has come."""
    rank = mpi.rank()
    x = np.arange(30000.0)
    if rank == 1:
        for source in (0, None):
            request = mpi.irecv(source, 3)
            assert request.cancel()
            assert request.test()
            refused(MPIError, "recv: was cancelled", request.wait)
            assert not request.cancel()
    mpi.barrier()
    if rank == 0:
        mpi.send(x, 1, 3)
    elif rank == 1:
        request = mpi.irecv(0, 3)
        check(request.wait(), x)
        assert not request.cancel()
    sent = mpi.isend(x, rank)
    assert not sent.cancel()
    check(mpi.recv(rank), x)
    sent.wait()


def out_of_communicators() -> None:
    """MPI has no more: that is said, nothing half made stays, and freed ones make room."""
    mpi4py = engine().job.mpi
    made: list[Any] = []
    used = [mpi4py.COMM_WORLD.Dup() for _ in range(2)]

    def use_up() -> None:  # those of this rank alone need no other: each has as many numbers
        while True:
            made.append(mpi4py.COMM_SELF.Dup())

    try:
        refused(mpi4py.Exception, "", use_up)
        made.pop().Free()  # one is left, where a call over a new communicator needs several
        for comm in 3 * used:
            refused(MPIError, "no more communicators", mpi.barrier, comm=comm)
        made.append(mpi4py.COMM_SELF.Dup())
        for _ in range(8):
            made.pop().Free()
        for comm in used:
            assert mpi.allreduce(np.ones(2), comm=comm).tolist() == [mpi.size()] * 2
    finally:
        for each in [*made, *used]:
            each.Free()


def messages_in_threads() -> None:
    """Several threads send and receive at once, each with a tag of its own."""
    rank = mpi.rank()
    failed: list[str] = []

    def exchange(tag: int) -> None:
        try:
            for count in (4, 1024, 1025, 30000, 200000) * 4:
                x = np.full(count, float(tag))
                if rank == 0:
                    mpi.send(x, 1, tag)
                    check(mpi.recv(1, tag, out=np.zeros(count)), x + 1)
                else:
                    mpi.send(mpi.recv(0, tag) + 1, 0, tag)
        except BaseException:
            failed.append(traceback.format_exc())

    if rank < 2:
        threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failed, failed[0]


def announce(x: np.ndarray[Any, Any], dest: int, nbytes: int | None = None) -> Any:
    """Send what a large array is; return what sends its contents, or so many bytes of them."""
    over = channel("send")
    number = over.peers.next_payload()
    head = struct.pack("<IIQ", number, over.rank, 0)
    head += Kind(x.shape, dlbridge.DType(x.dtype).triple).pack()
    over.messages.Send([head, len(head), over.mpi.BYTE], dest, 0)
    size = x.nbytes if nbytes is None else nbytes
    return lambda: over.payloads.Send([x, size, over.mpi.BYTE], dest, number)


def late_contents() -> None:
    """A receive in C waits for contents; Python goes on with it, and sees what is wrong."""
    rank = mpi.rank()
    x = np.arange(30000.0)
    for to_out in (False, True):
        mpi.barrier()
        if rank == 0:
            for wait in (0.0, 0.002, 0.1):
                send = announce(x, 1)
                pause(wait)
                send()
            for wait in (0.0, 0.1):
                send = announce(x, 1, 2000)
                pause(wait)
                send()
        elif rank == 1:
            for _ in range(3):
                out = np.zeros(30000) if to_out else None
                got = mpi.recv(0, out=out)
                assert out is None or got is out
                check(got, x)
            for _ in range(2):
                refused(MPIError, "announces 240000 bytes and sends 2000", mpi.recv, 0)
        if rank == 0:  # when the receive is Python's
            send = announce(x, 1)
            mpi.recv(1, 9)
            send()
        elif rank == 1:
            request = mpi.irecv(0, out=np.zeros(30000) if to_out else None)
            while request.source < 0:
                assert not request.test()
            known = request.source, request.tag
            assert request.operation is not None
            assert not request._is_begun
            mpi.send(x[:1], 0, 9)
            check(request.wait(60), x)
            assert (request.source, request.tag) == known
    mpi.barrier()
    assert not engine().active


def finish() -> None:
    """Wait for what was interrupted or dropped, and is under way: it ends well."""
    for each in list(engine().active):
        engine().wait(each)
        assert each.error is None, each.error
    assert not engine().active


def interrupt_soon() -> None:
    """Interrupt the call that this process is about to make, once Python waits for it."""

    def interrupt() -> None:
        while not engine().active:
            pause(0.01)
        pause(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()


def say_so(rank: int) -> None:
    """Tell a rank to go on, beside dlbridge."""
    engine().job.mpi.COMM_WORLD.send(None, rank)


def hear_from(rank: int) -> None:
    """Wait until a rank says so."""
    engine().job.mpi.COMM_WORLD.recv(source=rank)


def interrupted_messages() -> None:
    """Ctrl-C ends the wait for either side; the message arrives, and nothing of it stays."""
    rank = mpi.rank()
    gc.collect()
    before = native.live()
    x, out = np.arange(30000.0), np.zeros(30000)
    for target in (None, out):  # who receives has the first message
        mpi.barrier()
        if rank == 0:
            send = announce(x, 1)
            hear_from(1)
            send()
        elif rank == 1:
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                mpi.recv(0, out=target)
            say_so(0)
        mpi.barrier()
    finish()
    assert rank != 1 or np.array_equal(out, x)
    if rank == 0:  # who sends waits for the receiver
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            mpi.send(x, 1)
        say_so(1)
    elif rank == 1:
        hear_from(0)
        check(mpi.recv(0), x)
    mpi.barrier()

    def has_ended() -> bool:  # on a busy machine OpenMPI ends a message later than its receiver
        finish()
        gc.collect()
        # What the program before left on its way may end here: there is nothing more than before.
        return all(count <= before[name] for name, count in native.live().items())

    until(has_ended, "the end of all messages")


def interrupted_trees() -> None:
    """A call with a tree that is interrupted takes place, and its results are in `out`."""
    rank, size = mpi.rank(), mpi.size()

    def make(at: float) -> list[Any]:
        return [np.full(3, at), {"large": np.full(70_000, at), "small": np.full((2, 2), at)}]

    def is_full(tree: Any, wanted: Any) -> bool:
        return all(np.array_equal(x, np.full_like(x, wanted)) for _, x in tensors_of(tree))

    for name, call, wanted in (
        ("allreduce", lambda out: mpi.allreduce(make(rank + 1), out=out), size * (size + 1) / 2),
        ("bcast", lambda out: mpi.bcast(make(rank + 1), 1, out=out), 2.0),
    ):
        for k in range(3):  # first Python makes it, then C
            out = make(0)
            mpi.barrier()
            if rank == 0:
                interrupt_soon()
                with pytest.raises(KeyboardInterrupt):
                    call(out)
                say_so(1)
            else:
                if rank == 1:
                    hear_from(0)
                call(out)
            mpi.barrier()
            finish()
            assert is_full(out, wanted), (name, k)


def interrupts_while_c_waits() -> None:
    """C looks at no signals; the call goes on all the same, so that who sends is served."""
    rank = mpi.rank()
    gc.collect()
    before = native.live()

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)

    def interrupted_receive() -> None:
        signal.setitimer(signal.ITIMER_REAL, 3e-3)
        mpi.recv(0)

    x = np.arange(2_500_000.0)  # C waits 10 ms for that
    over = channel("recv").messages
    for _ in range(5):
        mpi.barrier()
        if rank == 0:
            send = announce(x, 1)
            pause(0.2)
            send()
            mpi.send(np.zeros(1), 1, 7)
        elif rank == 1:
            with pytest.raises(KeyboardInterrupt):
                interrupted_receive()
            # On a busy machine it may come before the call, or after it, with the result.
            while not engine().active and not over.Iprobe(0, 7):
                if over.Iprobe(0, 0):
                    check(mpi.recv(0), x)
            mpi.recv(0, 7)
    mpi.barrier()
    signal.signal(signal.SIGALRM, usual)
    finish()
    gc.collect()
    assert native.live() == before


def interrupted_anywhere() -> None:
    """Interrupts come between any two instructions; whatever has begun still takes place."""
    rank, size = mpi.rank(), mpi.size()
    beside = (rank + 1) % size, (rank - 1) % size
    random = np.random.default_rng(rank)
    interrupted, before, may_raise = 0, [], False

    def interrupt(_number: int, _frame: Any) -> None:
        nonlocal may_raise
        if not may_raise:  # an alarm of the call before, which came late
            return
        if any(each not in before for each in engine().active):
            may_raise = False  # once for each call
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 1e-4)  # the call has not begun

    usual = signal.signal(signal.SIGALRM, interrupt)
    ones = [np.ones(count) for count in (3, 3000, 30000)]
    calls = [partial(mpi.allreduce, x) for x in ones]
    calls += [partial(mpi.allgather, x) for x in ones]
    calls += [partial(mpi.bcast, x if rank == 0 else None) for x in ones]
    calls += [partial(mpi.reduce, x, "max") for x in ones]
    calls += [partial(mpi.sendrecv, x, *beside) for x in ones]
    calls += [mpi.barrier, partial(mpi.alltoall, np.ones((size, 5000)))]
    calls += [partial(call, ones) for call in (mpi.allreduce, mpi.bcast, mpi.gather)]
    for _ in range(30):
        for call in calls:
            if rank == 0:
                pause(random.uniform(0, 1e-3))
            before = list(engine().active)
            may_raise = True
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))
                call()
                may_raise = False
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one may be on its way
    finish()
    for x in ones:
        check(mpi.allreduce(x), x * size)
    signal.signal(signal.SIGALRM, usual)
    assert rank == 0 or interrupted > 20, interrupted


def interrupted_at_each_instruction() -> None:
    """Rank 0 is interrupted once at each point of a call; what it has begun is under way.

    Rank 1 makes the call when rank 0 says that it has begun, so that none can be over before.
    """
    rank, world = mpi.rank(), import_module("mpi4py.MPI").COMM_WORLD
    folder = str(Path(mpi.__file__).parent)
    left, point = 0, ""

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left, point
        if not frame.f_code.co_filename.startswith(folder):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                point = frame.f_code.co_name
                signal.raise_signal(signal.SIGINT)
        return trace

    def run(call: Any, count: int) -> None:
        nonlocal left
        left = count
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)

    small, large = np.ones(3), np.ones(30000)
    calls = [partial(mpi.allreduce, x) for x in (small, large)]
    calls += [partial(mpi.reduce, large, "max"), partial(mpi.sendrecv, large, 1 - rank, 1 - rank)]
    for call in calls:
        if rank == 1:
            while world.recv(source=0):
                call()
                check(mpi.allreduce(small), small * 2)
            continue
        point = ""
        for count in range(1, 100000):
            with pytest.raises(KeyboardInterrupt):
                run(call, count)
            if engine().active:
                world.send(True, 1)
                check(mpi.allreduce(small), small * 2)
                finish()
            if point == "_wait_a_while":
                break
        world.send(False, 1)


def wait_for(requests: list[mpi.Request]) -> None:
    for request in requests:
        request.wait()


def new_communicators() -> None:
    """Its first use in eight threads at once, and one that is interrupted and made again."""
    rank, size, failed = mpi.rank(), mpi.size(), []
    world = import_module("mpi4py.MPI").COMM_WORLD
    shared, interrupted = world.Dup(), world.Dup()
    start = threading.Barrier(8)

    def exchange(number: int) -> None:
        try:
            start.wait()
            x = np.full(3, float(number))
            beside = (rank + 1) % size, (rank - 1) % size
            check(mpi.sendrecv(x, *beside, number, number, comm=shared), x)
        except BaseException:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed[0]
    mpi.barrier()

    def interrupted_call() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        mpi.allreduce(np.ones(3), comm=interrupted)

    if rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupted_call()
        for other in range(1, size):
            say_so(other)
    else:
        hear_from(0)
    check(mpi.allreduce(np.ones(3), comm=interrupted), np.full(3, float(size)))
    check(mpi.allreduce(np.ones(3), comm=shared), np.full(3, float(size)))
    for comm in (shared, interrupted):
        comm.Free()


def non_blocking() -> None:
    """Several collectives at once, waited for in any order, by several threads."""
    rank, size = mpi.rank(), mpi.size()
    counts = (3, 40000, 1, 50000)
    requests = [mpi.iallreduce(np.full(n, 1.0)) for n in counts]
    requests += [mpi.iallgather(np.full(n, rank)) for n in counts]
    requests += [mpi.ibcast(np.ones(n) if rank == 0 else None) for n in counts]
    requests += [mpi.ireduce(np.ones(n)) for n in counts]
    requests += [mpi.ireduce_scatter(np.ones((size, n))) for n in counts]
    requests += [mpi.ialltoall(np.ones((size, n))) for n in counts]
    requests.append(mpi.ibarrier())
    order = np.random.default_rng(rank).permutation(len(requests))
    parts = [[requests[i] for i in order[n::3]] for n in range(3)]
    threads = [threading.Thread(target=wait_for, args=(part,)) for part in parts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(request.test() for request in requests)
    assert all((requests[n].wait() == size).all() for n in range(4))
    assert requests[0].wait() is requests[0].wait()
    mpi.iallreduce(np.ones(70000))  # dropped: it takes place all the same
    del requests, parts, threads
    gc.collect()
    assert mpi.allreduce(np.ones(1)).tolist() == [size]
    finish()


def is_far() -> bool:
    """Return whether ranks are on several hosts, as the names of these say."""
    return len(set(engine().job.mpi.COMM_WORLD.allgather(os.uname().nodename))) > 1


def communicators() -> None:
    from mpi4py import MPI

    rank, size = mpi.rank(), mpi.size()
    pair = MPI.COMM_WORLD.Split(rank % 2, -rank)
    members = [r for r in reversed(range(size)) if r % 2 == rank % 2]
    assert mpi.size(pair) == len(members)
    assert members[mpi.rank(pair)] == rank
    assert mpi.allgather(np.asarray(rank), comm=pair).tolist() == members
    assert mpi.bcast(np.asarray(rank), comm=pair) == members[0]
    assert channel("", pair).is_near == channel("").is_near == (not is_far())
    calls_by_c_over(pair, members)
    pair.Free()
    refused(UnsupportedTypeError, "comm must be", mpi.allreduce, np.ones(2), comm=pair)
    refused(UnsupportedTypeError, "comm must be", mpi.recv, 0, comm=np.ones(2))
    calls_by_c_over(MPI.COMM_WORLD, range(size))
    watched = engine().job.watched
    for is_under_way in (False, True):  # copies of a communicator go with it, if nothing needs them
        before = list(watched)
        pair = MPI.COMM_WORLD.Split(0, rank)
        request = mpi.iallreduce(np.ones(50000), comm=pair)
        copies_ = channel("", pair)
        if not is_under_way:
            request.wait()
        else:
            is_under_way = not request._is_over
        pair.Free()
        for copy in (copies_.collective, copies_.messages, copies_.payloads):
            assert (copy == MPI.COMM_NULL) != is_under_way
        assert (watched == before) != is_under_way
        check(request.wait(), np.full(50000, float(size)))
        assert copies_.collective == copies_.messages == MPI.COMM_NULL
        assert watched == before


def calls_by_c_over(comm: Any, members: Sequence[int]) -> None:
    """C makes calls over a communicator, and Python goes on with those that take long."""
    rank, size, quick = mpi.rank(comm), mpi.size(comm), channel("", comm).quick
    x, rows = np.full((2, 3), float(members[rank])), np.arange(size * 2000.0).reshape(size, 2000)
    mean = np.mean(members)
    for late in (None, *range(size)):
        for _ in range(2):
            if late == rank:
                pause(0.01)
            check(mpi.allreduce(x, comm=comm), np.full((2, 3), mean * size))
            check(mpi.allreduce(np.full(9000, 1.0), comm=comm), np.full(9000, float(size)))
            check(mpi.allgather(x, comm=comm)[:, 0, 0], np.array(members, float))
            check(mpi.alltoall(rows, comm=comm), np.stack([rows[rank]] * size))
            check(mpi.reduce_scatter(rows, comm=comm), rows[rank] * size)
            check(
                mpi.bcast(x if rank == 0 else None, comm=comm), np.full((2, 3), float(members[0]))
            )
            assert (mpi.reduce(x, "max", comm=comm) is None) == (rank > 0)
            mpi.barrier(comm=comm)
            if size > 1:
                mpi.send(x, (rank + 1) % size, 3, comm=comm)
                source = (rank - 1) % size
                check(mpi.recv(source, 3, comm=comm), np.full((2, 3), float(members[source])))
    assert quick.allreduce(x, "sum", None) is not False
    assert quick.alltoall(rows, None, "alltoall") is not False


def in_graphs() -> None:
    """A call with a Tensor of a graph is made whenever its operation runs, in order of creation."""

    rank, size = mpi.rank(), mpi.size()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2])
        total = mpi.allreduce(x)
        least = mpi.allreduce(x * 2.0, "min")
        rows = mpi.allgather(total + float(rank))
        sent = mpi.bcast(x + float(rank), root=size - 1)
        row = mpi.reduce_scatter(rows)
        columns = mpi.alltoall(rows)
        shapes = [each.shape.as_list() for each in (total, rows, row, columns)]
        assert shapes == [[None, 2], [None, None, 2], [None, 2], [None, None, 2]], shapes
        for step in range(3):
            fed = np.full((3, 2), rank + step, np.float32)
            # Created last, asked for first: the order of creation counts on all ranks.
            got = session.run([columns, row, sent, rows, least, total], {x: fed})
            sums = np.full((3, 2), sum(range(size)) + step * size, np.float32)
            gathered = np.stack([sums + i for i in range(size)])
            for value, wanted in zip(
                got,
                (
                    np.stack([sums + rank] * size),
                    (sums + rank) * size,
                    np.full((3, 2), 2 * (size - 1) + step, np.float32),
                    gathered,
                    np.full((3, 2), 2 * step, np.float32),
                    sums,
                ),
                strict=True,
            ):
                check(value, wanted)
        for _ in range(2):  # other shapes on another rank, then a call that works
            text = "all ranks must make the same call"
            fed = np.zeros((1 + (rank == 0), 2), np.float32)
            refused(tf.OpError, text, session.run, total, {x: fed})
            check(session.run(total, {x: np.ones((1, 2), np.float32)}), np.full((1, 2), size, "f"))
        refused(ArgumentError, "part of a graph", mpi.allreduce, x, out=np.zeros((1, 2), "f"))
    data = tf.dump_graph(graph).replace(b"comm\x12\x02\x18\x00", b"comm\x12\x02\x18\x7f")
    copy = tf.load_graph(data)
    with tf.Session(graph=copy) as session:
        value = copy.get_tensor_by_name(total.name)
        fed = {copy.get_tensor_by_name(x.name): np.ones((1, 2), np.float32)}
        refused(tf.OpError, "does not know", session.run, value, fed)


def kept_messages(name: str, full: Any) -> None:
    """What is received owns its memory, and keeps its values when more is sent and received."""
    counts = (3, 1000, 2049, 30000, 300000)
    if mpi.rank() == 0:
        for value, count in enumerate(counts * 3):
            mpi.send(full((count,), float(value)), 1)
    elif mpi.rank() == 1:
        kept = []
        for value in range(len(counts) * 3):
            pause(0.02 * (value % 3 == 0))
            kept.append(mpi.recv(0, to=name))
            if value % 4 == 3:
                del kept[0]
                gc.collect()
        for value, x in enumerate(kept, len(counts) * 3 - len(kept)):
            assert type(x) is type(full((1,), 1.0)), type(x)
            assert np.array_equal(np.asarray(x), np.full(counts[value % 5], float(value)))


def frameworks() -> None:
    """Each rank has another framework; each gets its own back."""
    import torch

    rank, size = mpi.rank(), mpi.size()
    made = [
        np.ones((2, 3), "float32"),
        torch.ones(2, 3),
        dlbridge.ones((2, 3), "float32"),
        torch.ones(3, 2).T,
    ][rank]
    result = mpi.allreduce(made)
    assert type(result) is type(made)
    assert np.asarray(result).tolist() == [[size] * 3] * 2
    out = torch.zeros(2, 3)
    mpi.allreduce(made, out=out)
    assert out.tolist() == [[size] * 3] * 2
    assert isinstance(
        mpi.bcast(made if rank == 0 else None, to="torch"), (np.ndarray, torch.Tensor)
    )
    assert isinstance(mpi.sendrecv(made, rank, rank, to="torch"), torch.Tensor)
    kept_messages("torch", torch.full)
    x = torch.ones(2, requires_grad=rank == 0)
    refused(ArgumentError, "requires a gradient", lambda: mpi.iallreduce(x).wait())
    half = torch.ones(3, dtype=torch.bfloat16)
    assert mpi.allreduce(half).dtype is torch.bfloat16


# What each collective adds to the gradient of sum(w * result ** 2) on a rank, w being rank + 1, of
# x = rank + 1 everywhere, by rules that are written out here once more.
def expected_gradients(name: str) -> np.ndarray[Any, Any]:
    rank, size = mpi.rank(), mpi.size()
    weights = np.arange(1.0, size + 1)
    total = weights.sum()
    per_row = {
        "allreduce": np.full(size, 2 * total * total),
        "bcast": np.full(size, 2 * total * size if rank == size - 1 else 0),
        "allgather": np.full(size, 2 * total * (rank + 1)),
        "reduce_scatter": 2 * weights * total,
        "alltoall": 2 * weights * (rank + 1),
    }[name]
    return np.repeat(per_row[:, None], 2, 1).astype("float32")


def collective(name: str) -> Any:
    call = getattr(mpi, name)
    return (lambda x: call(x, mpi.size() - 1)) if name == "bcast" else call


COLLECTIVES = ("allreduce", "bcast", "allgather", "reduce_scatter", "alltoall")


def torch_gradients() -> None:
    """Eager and compiled; the operator's rules are those that torch itself checks."""
    import torch

    rank, size = mpi.rank(), mpi.size()

    def loss(call: Any, x: Any) -> Any:
        return ((rank + 1.0) * call(x) ** 2).sum()

    for way in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        for name in COLLECTIVES:
            call = collective(name)
            x = torch.full((size, 2), rank + 1.0, requires_grad=True)
            way(lambda x, call=call: loss(call, x))(x).backward()
            check(x.grad.numpy(), expected_gradients(name))
        for name in ("allreduce", "reduce_scatter"):
            x = torch.full((size, 2), rank + 1.0, requires_grad=True)
            call = partial(getattr(mpi, name), op="mean")
            way(lambda x, call=call: loss(call, x))(x).backward()
            check(x.grad.numpy(), expected_gradients(name) / size**2)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (once,) = torch.autograd.grad((mpi.allreduce(x) ** 3).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert twice.tolist() == [6.0 * size**3] * 3  # allreduce, squared, allreduce, and back
    (mine,) = torch.autograd.grad(mpi.bcast(x, 1).sum() * np.nan, x)
    assert bool(mine.isnan().all()) == (rank == 1)
    assert rank == 1 or mine.tolist() == [0.0] * 3
    result = mpi.allreduce(x, "max")
    refused(ArgumentError, "max has no gradient", result.sum().backward)
    refused(ArgumentError, "out= is of calls", mpi.allreduce, x, out=torch.zeros(3).double())
    parameter = torch.nn.Parameter(torch.zeros(3))
    for call in (mpi.allreduce, mpi.bcast):
        refused(ExchangeError, "torch.no_grad()", call, torch.ones(3), out=parameter)
    refused(ExchangeError, "torch.no_grad()", mpi.recv, rank, out=parameter)
    with torch.no_grad():
        assert mpi.allreduce(torch.ones(3), out=parameter) is parameter
    assert parameter.tolist() == [size] * 3


def torch_order() -> None:
    """Compiled on one rank, eager on the other: a call that is moved or dropped is noticed."""
    import torch

    size = mpi.size()

    def many(x: Any) -> Any:
        mpi.allgather(x)  # unused
        last = mpi.allreduce(x, "max")
        first = mpi.allreduce(torch.cat([x, x]))
        return first[:2] * 2 + last

    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(many, fullgraph=True, backend=backend)
        if mpi.rank() == 1:
            compiled = many
        for _ in range(2):
            assert compiled(torch.ones(2)).tolist() == [2.0 * size + 1] * 2
    longer = torch.ones(2 + mpi.rank())
    compiled = torch.compile(mpi.allreduce, fullgraph=True, backend="aot_eager")
    refused(ArgumentError, "rank 1: allreduce(float32[3]", compiled, longer)
    assert mpi.allreduce(torch.ones(1)).tolist() == [size]
    world = import_module("mpi4py.MPI").COMM_WORLD
    alone = world.Split(mpi.rank())
    for backend in ("eager", "aot_eager"):
        over = torch.compile(
            lambda x, comm: mpi.alltoall(mpi.allreduce(x, comm=comm), comm=comm)[0],
            fullgraph=True,
            backend=backend,
        )
        for comm, count in ((world, size), (None, size), (world.Dup(), size), (world, size)):
            assert over(torch.ones(size, 1), comm).tolist() == [count]
        assert over(torch.ones(1, 1), alone).tolist() == [1]


def jax_gradients() -> None:
    """In jax.grad alone, inside and outside of jax.jit."""
    import jax
    import jax.numpy as jnp

    rank, size = mpi.rank(), mpi.size()

    def loss(call: Any, x: Any) -> Any:
        return ((rank + 1.0) * call(x) ** 2).sum()

    x = jnp.full((size, 2), rank + 1.0)
    for name in COLLECTIVES:
        call = collective(name)
        gradient = jax.grad(lambda x, call=call: loss(call, x))
        for form in (gradient, jax.jit(gradient)):
            check(np.asarray(form(x)), expected_gradients(name))
    for name in ("allreduce", "reduce_scatter"):
        call = partial(getattr(mpi, name), op="mean")
        for form in (gradient := jax.grad(partial(loss, call)), jax.jit(gradient)):
            check(np.asarray(form(x)), expected_gradients(name) / np.float32(size**2))
    back = jax.grad(
        lambda x: (jax.grad(lambda y: mpi.reduce_scatter(y, "mean").sum())(x) * x).sum()
    )
    check(np.asarray(back(x)), np.full((size, 2), 1 / size, "float32"))
    pushed = jax.jvp(mpi.allreduce, (x,), (jnp.ones_like(x),))[1]
    check(np.asarray(pushed), np.full((size, 2), size, "float32"))
    twice = jax.grad(lambda x: jax.grad(lambda x: (mpi.allreduce(x) ** 3).sum())(x).sum())
    assert twice(jnp.ones(3)).tolist() == [6.0 * size**3] * 3
    mine = jax.jit(jax.grad(lambda x: mpi.bcast(x, 1).sum() * np.nan))(jnp.ones(3))
    assert bool(jnp.isnan(mine).all()) == (rank == 1)
    assert rank == 1 or mine.tolist() == [0.0] * 3
    refused(ArgumentError, "max has no gradient",
            jax.grad(lambda x: mpi.allreduce(x, "max").sum()), x)  # fmt: skip
    refused(ArgumentError, "out= is of calls", jax.jit(lambda x: mpi.allreduce(x, out=x)), x)
    stopped = jax.grad(lambda x: (x * mpi.allreduce(jax.lax.stop_gradient(x), "max")).sum())
    check(np.asarray(stopped(x)), np.full((size, 2), size, "float32"))


def jax_order() -> None:
    """Compiled on one rank, not on the other: unused results, loops and constants stay in order."""
    import jax
    import jax.numpy as jnp

    rank, size = mpi.rank(), mpi.size()

    def many(x: Any) -> Any:
        mpi.allgather(x)  # unused
        last = mpi.allreduce(x, "max")
        first = mpi.allreduce(jnp.concatenate([x, x]))
        total, _ = jax.lax.scan(lambda part, _: (mpi.allreduce(part), None), x, length=3)
        return first[:2] * 2 + last + total

    compiled = jax.jit(many) if rank == 0 else many
    for _ in range(2):
        assert compiled(jnp.ones(2)).tolist() == [2.0 * size + 1 + size**3] * 2
    constant = jnp.full(2, rank + 1.0)
    calls = jax.jit(lambda x: x + mpi.allreduce(constant))
    for _ in range(2):
        assert calls(jnp.zeros(2)).tolist() == [size * (size + 1) / 2] * 2
    for dtype in ("float32", "bfloat16", "int32", "bool", "float8_e4m3fn"):
        for shape in SHAPES:
            all_ = [values(r, shape, dtype) for r in range(size)]
            got = jax.jit(mpi.allgather)(jnp.asarray(all_[rank]))
            check(np.asarray(got), np.stack(all_))
    rows = jax.vmap(mpi.allreduce, in_axes=1, out_axes=1)(jnp.ones((2, 3)))
    assert rows.tolist() == [[size] * 3] * 2
    refused(Exception, "rank 1: allreduce(float32[3]", jax.jit(mpi.allreduce), jnp.ones(2 + rank))
    assert jax.jit(mpi.allreduce)(jnp.ones(3_000_000)).sum() == 3_000_000 * size


def mixed_operators() -> None:
    """A compiled program of JAX on one rank, eager torch that is differentiated on the other."""
    if mpi.rank() == 0:
        import jax

        x = jax.numpy.ones(3)
        gradient = jax.jit(jax.grad(lambda x: (mpi.allreduce(x) ** 2).sum()))(x)
    else:
        import torch

        leaf = torch.ones(3, requires_grad=True)
        (mpi.allreduce(leaf) ** 2).sum().backward()
        gradient = leaf.grad
    size = mpi.size()
    assert np.asarray(gradient).tolist() == [2.0 * size * size] * 3


def trees_of_frameworks() -> None:
    """A torch module on one rank and NumPy's dict on another; results are each rank's own kind."""
    import jax
    import jax.numpy as jnp
    import torch

    rank, size = mpi.rank(), mpi.size()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank + 1.0)
    shapes = {name: x.shape for name, x in model.state_dict().items()}
    plain = {name: np.full(shape, rank + 1.0, "float32") for name, shape in shapes.items()}
    total = mpi.allreduce(plain if rank else model.state_dict())
    kind = np.ndarray if rank else torch.Tensor
    assert all(type(x) is kind for x in total.values())
    assert all((np.asarray(x) == sum(range(1, size + 1))).all() for x in total.values())
    model.load_state_dict(mpi.bcast(model.state_dict(), size - 1))
    state = mpi.allreduce(model.state_dict())
    by_c = QUICK.allreduce(model.state_dict(), "sum", None)  # its metadata included
    assert type(by_c) is type(state) is OrderedDict
    assert list(by_c) == list(state) == list(shapes)
    assert by_c._metadata == state._metadata == model.state_dict()._metadata
    assert all(torch.equal(x, y) for x, y in zip(by_c.values(), state.values(), strict=True))
    mine = model.state_dict()
    assert QUICK.bcast(mine, size - 1, "torch", mine) is mine  # in the parameters themselves
    assert all((x == size).all() for x in model.state_dict().values())
    (mpi.allreduce(model.state_dict()["0.weight"])).sum()
    small = [torch.arange(6.0)[2:], np.full(3, 2.0), torch.ones((), dtype=torch.bfloat16)]
    small += [torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)]
    mpi.allreduce(small)
    for x, source in zip(QUICK.allreduce(small, "sum", None), small, strict=True):
        assert type(x) is (np.ndarray if type(source) is np.ndarray else torch.Tensor)
        assert (x == source * size).all()
    emptied = torch.ones(4)  # the storage is shorter than the tensor
    emptied.untyped_storage().resize_(4)
    refused(ExchangeError, "(at [0] of the tree)", mpi.allreduce, [emptied, *small[1:]])
    recorded = [2 * torch.ones(4, requires_grad=True), *small[1:]]
    refused(ExchangeError, "requires a gradient", mpi.allreduce, recorded)
    model(torch.ones(5, 3) * (rank + 1)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    expected = [mpi.allreduce(x, "mean") for x in gradients]
    assert mpi.allreduce(gradients, "mean", out=gradients) is gradients
    for x, y in zip(gradients, expected, strict=True):
        assert torch.equal(x, y)
    refused(ExchangeError, "requires a gradient", mpi.allreduce, list(model.parameters()))
    parameters = {"w": jnp.full((3, 2), rank + 1.0), "b": (jnp.ones(2), jnp.ones((), jnp.bfloat16))}
    got = mpi.allreduce(parameters)
    assert jax.tree.structure(got) == jax.tree.structure(parameters)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(got))
    assert got["b"][1].dtype == jnp.bfloat16
    check(np.asarray(got["w"]), np.full((3, 2), sum(range(1, size + 1)), "float32"))
    keys = {"dropout": jax.random.key(rank), "x": jnp.ones(2)}
    assert jax.random.key_data(mpi.bcast(keys, 1)["dropout"]).tolist() == [0, 1]  # a key
    stacked = mpi.gather(parameters)
    assert rank or stacked["w"][:, 0, 0].tolist() == list(range(1, size + 1))


def every_framework() -> None:
    import jax
    import tensorflow as tf
    import torch

    rank, size = mpi.rank(), mpi.size()
    makers = [jax.numpy.asarray, tf.constant, torch.from_numpy, dlbridge.from_dlpack, np.asarray]
    for dtype in ("float32", "int32", "bool", "complex64"):
        for shift, _ in enumerate(makers):
            for shape in SHAPES:
                x = values(rank, shape, dtype)
                made = makers[(shift + rank) % len(makers)](x)
                result = mpi.allgather(made)
                assert type(result) is type(made)
                check(np.asarray(result), np.stack([values(r, shape, dtype) for r in range(size)]))
    kept_messages("jax", jax.numpy.full)
    kept_messages("tensorflow", tf.fill)
    for count in (3, 30000):
        if rank == 0:
            mpi.send(np.ones(count), 1)
        elif rank == 1:
            frozen = jax.numpy.zeros(count)
            refused(ExchangeError, "got read-only float32", mpi.recv, 0, out=frozen)
            mpi.recv(0)
    rows = np.ones((size, 2), np.float32)
    for make in makers:
        for call in (mpi.allreduce, mpi.allgather, mpi.alltoall, mpi.bcast, mpi.reduce_scatter):
            check(np.asarray(call(make(rows), timeout=60)), np.asarray(call(rows)))
    one = jax.numpy.ones(2)
    refused(ExchangeError, "got read-only float32", mpi.allreduce, one, out=one)


def no_owner_stays() -> None:
    """A call leaves nothing behind, and none that succeeds leaves it to the garbage collector."""

    def succeed(count: int) -> None:
        mpi.allreduce(dlbridge.ones(count, "float32"))
        mpi.reduce(dlbridge.ones(count, "bfloat16"))
        mpi.bcast(dlbridge.ones(count, "float32"))
        mpi.allgather(dlbridge.ones(count, "float32"))
        mpi.sendrecv(dlbridge.ones(count, "float32"), mpi.rank(), mpi.rank(), to="dlbridge")
        if mpi.rank() == 0:
            mpi.send(dlbridge.ones(count, "float32"), 1)
            mpi.send(np.ones(count), 1)
            mpi.recv(1, out=dlbridge.zeros(count, "float32"))
        elif mpi.rank() == 1:
            mpi.send(mpi.recv(0, to="dlbridge"), 0, mpi.recv(0).ndim)

    def fail(count: int) -> None:
        refused(ArgumentError, "", mpi.allreduce, dlbridge.ones(count + mpi.rank(), "float32"))

    for act in (succeed, fail):
        act(2)
        gc.collect()
        before = native.live()
        gc.disable()
        for count in (2, 30000):
            for _ in range(3):
                act(count)
        if act is fail:
            gc.collect()
        gc.enable()
        assert native.live() == before, (act, native.live(), before)


def interrupted() -> None:
    """Ctrl-C ends the wait; the call itself takes place when the others come."""
    rank, size = mpi.rank(), mpi.size()
    for count in (3, 50000):
        mpi.barrier()
        if rank == 0:
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                mpi.allreduce(np.ones(count))
            for other in range(1, size):
                say_so(other)
        else:
            hear_from(0)
            assert mpi.allreduce(np.ones(count)).tolist() == [size] * count
        assert mpi.allreduce(np.ones(1)).tolist() == [size]


def waiting_is_idle() -> None:
    """A wait sleeps, and other threads run: rank 0 is late until all others have said so."""
    rank, said = mpi.rank(), Path(sys.argv[1])
    mpi.barrier()
    if rank == 0:
        others = [said / f"sleeps{each}" for each in range(1, mpi.size())]
        until(lambda: all(path.exists() for path in others), "a rank that sleeps while it waits")
        mpi.ibarrier().wait()
        return
    request, waiting = mpi.ibarrier(), threading.get_native_id()
    before = switches(waiting)

    def watch() -> None:
        until(lambda: switches(waiting) - before > 50, "the sleep of a wait")
        (said / f"sleeps{rank}").touch()

    thread = threading.Thread(target=watch)
    thread.start()
    request.wait()
    thread.join()


def forked() -> None:
    child = os.fork()
    if child == 0:
        try:
            refused(MPIError, "forked", mpi.allreduce, np.ones(1))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def first_use_in_threads() -> None:
    """MPI starts once where eight threads make the first calls, each to a partner of its own."""
    start, failed = threading.Barrier(8), []

    def act(number: int) -> None:
        try:
            start.wait()
            assert mpi.size() == 2
            other = 1 - mpi.rank()
            for count in (1, 300, 5000, 50000):
                x = np.full(count, number + 10.0 * mpi.rank())
                got = mpi.sendrecv(x, other, other, number, number)
                check(got, np.full(count, number + 10.0 * other))
        except BaseException:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=act, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed, failed[0]
    check(mpi.allreduce(np.ones(3000)), np.full(3000, 2.0))


def _in_child(count: int) -> str:
    try:
        mpi.allreduce(np.ones(count))
    except MPIError as error:
        return str(error)
    return "no error"


def children() -> None:
    """Forked children of a rank are refused at each size, and the job goes on meanwhile."""
    mpi.allreduce(np.ones(3))  # C knows the call by now
    with multiprocessing.get_context("fork").Pool(1) as pool:
        under_way = pool.map_async(_in_child, (3, 3000, 30000))
        for count in (3, 3000, 30000):
            check(mpi.allreduce(np.ones(count)), np.full(count, float(mpi.size())))
        for text in under_way.get(60):
            assert "forked" in text, text


def _made_here(count: int) -> list[float]:
    with tf.Graph().as_default(), tf.Session() as session:
        late = tf.RunOptions(timeout_in_ms=60_000)
        made = tf.collective_ops.all_reduce(tf.ones([count]), 1, 1, 1)
        trace = tf.Trace()
        values: list[float] = session.run(made, options=late, trace=trace).tolist()
        assert trace.events
        return values


def started() -> None:
    """Processes that a rank starts are no ranks: calls are refused, graphs of their own run."""
    for how in ("spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            texts, values = pool.map_async(_in_child, (3, 3000)), pool.map_async(_made_here, (2,))
            check(mpi.allreduce(np.ones(3)), np.full(3, float(mpi.size())))
            for text in texts.get(100):
                assert "started by a member" in text, text
            assert values.get(100) == [[1.0, 1.0]]
    program = "import dlbridge.mpi as mpi; print(mpi.size())"
    for close in (True, False):  # also where it has the connection of its rank
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, close_fds=close,
            timeout=100, check=False,
        )  # fmt: skip
        assert "MPIError: dlbridge.mpi: this process was started by a member" in done.stderr, done
    jobs = ("PMI", "OMPI_", "ORTE_")  # what says that a process belongs to one
    alone = {name: value for name, value in os.environ.items() if not name.startswith(jobs)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=alone, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.stdout == "1\n", done.stderr
    check(mpi.allreduce(np.ones(3)), np.full(3, float(mpi.size())))


def huge() -> None:
    """More than 2 GiB in one call: the counts of old MPI do not reach so far."""
    rank, nbytes = mpi.rank(), 2**31 + 4104
    x = np.full(nbytes, rank + 1, np.uint8)
    x[-1] = 40 + rank
    if rank == 0:
        mpi.send(x, 1)
    else:
        assert mpi.recv(0, out=x) is x
        assert (int(x[0]), int(x[2**31]), int(x[-1])) == (1, 1, 40)
    x[:] = 1
    mpi.allreduce(x, out=x)
    assert (int(x.min()), int(x.max())) == (2, 2)


# ---- how ranks end: run alone --------------------------------------------------------------------


def ends_with(end: Any, wait: Any = lambda: mpi.recv(0)) -> None:
    mpi.barrier()
    if mpi.rank() == 0:
        end()
        return
    wait()  # for what never comes


def raises() -> None:
    def end() -> None:
        raise ValueError("on purpose")

    ends_with(end)


def exits() -> None:
    ends_with(lambda: sys.exit(0))


def returns() -> None:
    ends_with(lambda: None)


def is_killed() -> None:
    ends_with(lambda: os.kill(os.getpid(), signal.SIGKILL))


def begins_no_collective() -> None:
    x = np.ones(3)
    mpi.allreduce(x)  # C learns it
    ends_with(lambda: None, lambda: mpi.iallreduce(x).wait())


def is_killed_amid_collectives() -> None:
    x = np.ones((2, 30000))
    for call in (mpi.allreduce, mpi.alltoall):
        call(x)
    begun = [mpi.iallreduce(x), mpi.ialltoall(x)]
    ends_with(lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: mpi.waitall(begun * 2))
    if mpi.rank():
        mpi.alltoall(x)


def is_terminated() -> None:
    ends_with(lambda: os.kill(os.getpid(), signal.SIGTERM))


def is_interrupted() -> None:
    ends_with(lambda: os.kill(os.getpid(), signal.SIGINT))


def only_announces() -> None:
    ends_with(lambda: announce(np.ones(30000), 1))


def is_killed_when_it_has_announced() -> None:
    def end() -> None:
        announce(np.ones(30000), 1)
        pause(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    ends_with(end, lambda: mpi.recv(0, out=np.zeros(30000)))


def receives_nothing() -> None:
    ends_with(lambda: None, lambda: mpi.send(np.ones(300000), 0))


def never_uses_a_communicator() -> None:
    """Rank 0 ends without a call over a communicator, whose first use waits for it."""
    comm = engine().job.mpi.COMM_WORLD.Dup()
    ends_with(lambda: None, lambda: mpi.barrier(comm=comm))


def waits_for_one_that_has_dropped_a_call() -> None:
    """Rank 1 waits for nothing that rank 0 has begun; nor does what that has begun end."""
    import_module("dlbridge.mpi.engine").VAIN = 0.5
    ends_with(lambda: mpi.irecv(1, 5), lambda: mpi.allreduce([np.ones(3), np.ones(30000)]))


def drops_calls() -> None:
    """All ranks drop calls that others do not make: neither they nor their ends wait for these."""
    import_module("dlbridge.mpi.engine").VAIN = 0.5
    rank, size = mpi.rank(), mpi.size()
    large = np.ones(300_000)
    mpi.allreduce([large, large])  # C learns it
    mpi.isend(large, (rank + 1) % size, 1)
    mpi.isend(large, rank, 2)
    for source in ((rank + 1) % size, rank, None):
        mpi.irecv(source, 3)
        mpi.isendrecv(large, rank, source, 2, 3)
    if rank < size - 1:
        for _ in range(2):
            mpi.iallreduce([large, large])
            mpi.ibcast([large, np.ones(rank + 1)])
            mpi.iallgather(large)


def drops_calls_that_others_make_late() -> None:
    """What rank 0 has begun before its end takes place."""
    import_module("dlbridge.mpi.engine").VAIN = 0.5
    rank, others = mpi.rank(), range(1, mpi.size())
    x = np.ones(300_000)
    if rank == 0:
        mpi.iallreduce([x, x])
        for each in others:
            mpi.isend(x, each)
            mpi.irecv(each)
        return
    pause(2.0)
    for total in mpi.allreduce([x, x]):
        check(total, x * mpi.size())
    check(mpi.recv(0), x)
    mpi.send(x, 0)


def drops_calls_while_others_wait() -> None:
    """Rank 1 has begun what nobody waits for: others notice that it does not make their calls."""
    for name in ("engine", "channel"):
        import_module(f"dlbridge.mpi.{name}").VAIN = 0.5
    rank, size = mpi.rank(), mpi.size()
    world = engine().job.mpi.COMM_WORLD
    known, unknown = world.Dup(), world.Dup()
    x = np.ones(300_000)
    mpi.barrier(comm=known)
    mpi.barrier()
    if rank == 1:
        mpi.isend(x, 0, 1)
        mpi.irecv(size - 1, 2)
        mpi.iallgather(np.arange(3.0))  # which the others make
        return
    check(mpi.allgather(np.arange(3.0)), np.tile(np.arange(3.0), (size, 1)))
    said = "waits for rank 1, which has ended"
    refused(MPIError, f"allreduce: {said}", mpi.allreduce, np.ones(3))
    refused(MPIError, f"bcast: {said}", mpi.bcast, [x, x], 1, comm=known)
    refused(MPIError, f"first use of a communicator {said}", mpi.barrier, comm=unknown)
    if rank == 0:  # one half of it is over
        begun = mpi.isendrecv(x, 1, size - 1)
        refused(MPIError, f"sendrecv: {said}", begun.wait)
    elif rank == size - 1:
        mpi.send(x, 0)


def late_for_ranks_that_have_left() -> None:
    """Ranks 1 and 3 are through with a call, and have left, before rank 2 makes its last step."""
    rank = mpi.rank()
    mpi.barrier()
    if rank == 2:
        request, job = mpi.iallreduce(np.ones(3)), engine().job
        say_so(3)  # whose messages come first once the call has begun here
        while len(job.left) < 2:
            job.notice()
            pause(0.01)
        pause(1.5)
        check(request.wait(), np.full(3, 4.0))
        return
    if rank == 3:
        hear_from(2)
    check(mpi.allreduce(np.ones(3)), np.full(3, 4.0))


def ranks_survive() -> None:
    """The last rank is killed: calls that need it raise MPIError; the others go on."""
    rank, last = mpi.rank(), mpi.size() - 1
    mpi.barrier()
    if rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(MPIError, match=r"lost|PROC_FAILED"):
        mpi.recv(last)

    def until_it_fails() -> None:
        while True:  # a call may be over before the rank is
            mpi.isend(np.ones(30000), last).wait()

    with pytest.raises(MPIError, match=r"lost|PROC_FAILED"):
        until_it_fails()
    if rank == 0:
        mpi.send(np.ones(3), 1)
    elif rank == 1:
        assert mpi.recv(0).tolist() == [1.0] * 3
    comm = import_module("mpi4py.MPI").COMM_WORLD.Shrink()
    for count in (3, 3000, 30000):
        assert (mpi.allreduce(np.ones(count), comm=comm) == last).all()
    print("go on", rank)


class _ToRank1:
    """A stream of text that goes to rank 1, as long as MPI runs."""

    def write(self, text: str) -> None:
        engine().job.mpi.COMM_WORLD.send(text, 1)

    def flush(self) -> None: ...


def says_whom_it_waits_for() -> None:
    """Rank 0 is at the end of its script, and rank 1 only once it has heard of that."""
    import_module("dlbridge.mpi.job").PATIENCE = 0.0
    if mpi.rank() == 0:
        sys.stderr = _ToRank1()  # type: ignore[assignment]
    if mpi.rank() == 1:
        print(engine().job.mpi.COMM_WORLD.recv(source=0), flush=True)


def interrupt_once(process: int) -> None:
    os.kill(process, signal.SIGINT)


def is_interrupted_at_its_end(interrupt: Callable[[int], None] = interrupt_once) -> None:
    """Rank 0 waits for rank 1 to end, and is interrupted."""
    world = engine().job.mpi.COMM_WORLD
    if mpi.rank() == 0:
        world.send(os.getpid(), 1)
        return
    process = world.recv(source=0)
    job = engine().job
    while not job.left:
        job.notice()
    interrupt(process)
    world.recv(source=0)


def is_interrupted_again_and_again() -> None:
    """As someone at a terminal does who sees no effect within some milliseconds."""

    def interrupt(process: int) -> None:
        for _ in range(10):
            os.kill(process, signal.SIGINT)
            pause(0.03)

    is_interrupted_at_its_end(interrupt)


def ends_early() -> None:
    """Rank 0 is through long before; what it sent arrives all the same."""
    if mpi.rank() == 0:
        mpi.isend(np.ones(100000), 1)
        return
    if mpi.rank() == 1:
        pause(1.5)
        assert mpi.recv(0).sum() == 100000


def finalises_mpi_itself() -> None:
    """As a program in C does; what it sent arrives, and nobody waits for more."""
    if mpi.rank() == 0:
        mpi.isend(np.ones(100000), 1)
        engine().job.mpi.Finalize()
        refused(MPIError, "MPI has been finalised", mpi.isend, np.ones(1), 1)
        return
    if mpi.rank() == 1:
        pause(0.5)
        assert mpi.recv(0).sum() == 100000
        refused(MPIError, "rank 0", mpi.recv, 0)
    engine().job.mpi.Finalize()


def main() -> None:
    say_where_on_request()
    folder, *names = sys.argv[1:]
    if folder == "-":
        globals()[names[0]]()
        return
    with (Path(folder) / str(mpi.rank())).open("w") as file:
        for name in names:
            try:
                globals()[name]()
                said = "ok"
            except BaseException:
                said = traceback.format_exc()
            file.write(json.dumps([name, said]) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
