"""How often the host waits in exchanges and kernel calls: it never should.

Three counts. dlbridge's own: functions that wait, replaced in its table of the driver. The whole
process's: CUPTI, which tells of every call of the driver by whomever; where it is not installed
that count is missing. The sleeps of this thread, which the kernel counts: jaxlib waits for an
array by no call of the driver. Arrays of JAX are still being computed when they are counted.
"""

from __future__ import annotations

import ctypes
import glob
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from benchmarks.cuda_peers import Row, is_possible
from benchmarks.timing import render
from dlbridge import cuda
from dlbridge._core import ffi

CALLS, ROUNDS = 100, 5
# Functions of the driver after which the host has waited for a device, by the start of their names.
WAITS = ("cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize")
WAITING = (*WAITS, "cuMemFree_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2")
_KINDS = {
    "cuCtxSynchronize": "CUresult(*)(void)",
    "cuEventSynchronize": "CUresult(*)(CUevent)",
    "cuStreamSynchronize": "CUresult(*)(CUstream)",
}


def count(rows: list[Row], names: dict[str, Any]) -> list[dict[str, Any]]:
    """Call each of our statements a number of times; return how often the host waited."""
    figures = []
    for row in {row.ours: row for row in rows}.values():
        if not is_possible(row.ours, names):
            continue
        code = compile(row.ours, row.what, "eval")
        eval(code, dict(names))  # whatever is done once
        cuda.synchronize()
        with counting() as own, counting_all() as everyone:
            slept = min(_count_sleeps(code, names) for _ in range(ROUNDS))
            found = len(own), None if everyone is None else len(everyone)
        figures.append(
            {
                "what": row.what,
                "calls": CALLS,
                "own": found[0],
                "process": found[1],
                "sleeps": slept,
            }
        )
        cuda.synchronize()
    return figures


def _count_sleeps(code: CodeType, names: dict[str, Any]) -> int:
    """Return how often this thread sleeps in a round of calls.

    A wait is there in each round; a lock that another thread happened to hold is not.
    """
    slept = 0
    for _ in range(CALLS // ROUNDS):
        own = dict(names)
        if "j" in code.co_names:
            own["j"] = names["pending"]()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        eval(code, own)
        slept += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    return slept


@contextmanager
def counting() -> Iterator[list[str]]:
    """Note dlbridge's own calls that wait, inside the block."""
    table: Any = ffi.cast("dlb_cuda_driver *", cuda.driver())
    found: list[str] = []
    replaced = {name: getattr(table, name) for name in WAITS}
    keeps = [_count_one(table, name, found) for name in WAITS]
    try:
        yield found
    finally:
        for name, function in replaced.items():
            setattr(table, name, function)
        del keeps


def _count_one(table: Any, name: str, found: list[str]) -> Any:
    own = getattr(table, name)

    def counted(*arguments: Any) -> int:
        found.append(name)
        return int(own(*arguments))

    callback = ffi.callback(_KINDS[name], counted)
    setattr(table, name, callback)
    return callback


# ---- CUPTI ---------------------------------------------------------------------------------------


class _CallbackData(ctypes.Structure):
    """The beginning of CUpti_CallbackData."""

    _fields_ = [("site", ctypes.c_int), ("function", ctypes.c_char_p)]


_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_CallbackData)
)
_DRIVER_API, _ENTER = 1, 0


@contextmanager
def counting_all() -> Iterator[list[str] | None]:
    """Note every call of the driver in this process that waits; None without CUPTI."""
    library = find_cupti()
    if library is None:
        yield None
        return
    found: list[str] = []

    def note(_user: object, _domain: int, _id: int, data: Any) -> None:
        if data[0].site == _ENTER and data[0].function.decode() in _WAITING_NAMES:
            found.append(data[0].function.decode())

    subscriber, callback = ctypes.c_void_p(), _Callback(note)
    if library.cuptiSubscribe(ctypes.byref(subscriber), callback, None):
        yield None  # a profiler is at work
        return
    library.cuptiEnableDomain(ctypes.c_uint32(1), subscriber, _DRIVER_API)
    try:
        yield found
    finally:
        library.cuptiUnsubscribe(subscriber)


_WAITING_NAMES = {f"{name}{end}" for name in WAITING for end in ("", "_ptsz", "_ptds")}
_PLACES = (
    "nvidia/cu13/lib/libcupti.so.13", "nvidia/cuda_cupti/lib/libcupti.so.1?",
)  # fmt: skip


def find_cupti() -> Any:
    """Return the library that torch has loaded, or that stands beside it or in the toolkit."""
    paths = [
        path for folder in sys.path for place in _PLACES for path in glob.glob(f"{folder}/{place}")
    ]
    paths += ["libcupti.so.13", "libcupti.so", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"]
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def print_waits(figures: list[dict[str, Any]]) -> None:
    """Print a table; every figure in it should be 0."""
    rows = [
        [
            row["what"],
            f"{row['calls']} calls",
            str(row["own"]),
            "not counted" if row["process"] is None else str(row["process"]),
            str(row["sleeps"]),
        ]
        for row in figures
    ]
    print(
        "", render(["the host waits in", "", "dlbridge", "whole process", "sleeps"], rows), sep="\n"
    )
