"""The demonstration: one tensor goes round the installed frameworks, and one kernel runs in each.

Each hop is done twice: once with a receipt, which says what happened, and then many times without
one, for the time that it takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import repeat
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from dlbridge import frameworks
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.exchange import adapter
from dlbridge.exchange.context import Receipt, receipts
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.library import compile_c
from dlbridge.tensor.memory import empty
from dlbridge.terminal import Column, print_table

SHAPE = (1024, 1024)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
IMPORTED_FIRST = ("paddle",)  # crashes when TensorFlow was imported before


def run() -> int:
    """Send the tensor round and print each hop; return 0 if every value is right."""
    names = ", ".join(frameworks.installed())
    print(f"Importing {names}, which takes some seconds …", flush=True)
    start = make_tensor()
    ring = find_ring()
    print(f"One tensor of {start.size:,} float32 values ({start.nbytes >> 20} MiB) goes round:")
    print(" → ".join([*ring, ring[0]]), end="\n\n")
    value, hops = go_round(start, ring)
    print_table(HOP_COLUMNS, [describe(hop) for hop in hops])
    unchanged = isinstance(value, np.ndarray) and np.array_equal(start, value)
    print("", summarise(start, value, hops, unchanged=unchanged), sep="\n")
    return int(not unchanged) or run_kernel(start, ring)


# ---- a tensor goes round ------------------------------------------------------------------------

HOP_COLUMNS = (
    Column("from"),
    Column("to"),
    Column("route", wrap=True),
    Column("memory"),
    Column("pointer"),
    Column("ns", right=True),
)


class Hop(NamedTuple):
    """One exchange: what the receipt said, and the nanoseconds it takes; or why it was refused."""

    source: str
    target: str
    receipt: Receipt | None
    ns: float = 0.0
    refusal: str = ""


def make_tensor() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return waves over a grid, in memory that is aligned for every framework."""
    array: np.ndarray[Any, np.dtype[np.float32]] = native.convert(empty(SHAPE, "float32"), "numpy")
    rows, columns = np.ogrid[: SHAPE[0], : SHAPE[1]]
    array[...] = np.sin(rows / 97) * np.cos(columns / 61)
    return array


def find_ring() -> list[str]:
    """Return the installed frameworks that can be imported, NumPy first."""
    os.environ |= QUIET | os.environ
    ring = frameworks.installed()
    for name in sorted(ring, key=IMPORTED_FIRST.__contains__, reverse=True):
        try:
            adapter.start(adapter.adapter(name))
        except DLBridgeError as error:
            print(f"({name} is left out: {error})")
            ring.remove(name)
    return ring


def go_round(start: Any, ring: list[str]) -> tuple[Any, list[Hop]]:
    """Return the value that arrives back at the first framework, and the hops."""
    value, source, hops = start, ring[0], []
    for target in [*ring[1:], ring[0]]:
        hop, result = go(value, source, target)
        hops.append(hop)
        if hop.receipt is not None:
            value, source = result, target
    return value, hops


def go(value: Any, source: str, target: str) -> tuple[Hop, Any]:
    """Return one hop and its result; memory that the CPU cannot read is copied to the CPU."""
    refusal = ""
    allowed: tuple[dict[str, Any], ...] = ({}, {"device": "cpu"})
    for policies in allowed:
        try:
            with receipts() as log:
                result = native.convert(value, target, **policies)
        except DLBridgeError as error:
            refusal = refusal or error.reason
            continue
        return Hop(source, target, log[-1], measure(value, target, policies)), result
    return Hop(source, target, None, refusal=f"refused: {refusal}"), None


def measure(value: Any, target: str, policies: dict[str, Any]) -> float:
    """Return the median nanoseconds of one conversion."""

    def convert() -> object:
        return native.convert(value, target, **policies)

    return median_ns(convert, max(1, round(2e6 / max(mean_ns(convert, 3), 1.0))))


def median_ns(call: Callable[[], object], loops: int) -> float:
    """Return the nanoseconds of one call: the median of 15 rounds."""
    return median(mean_ns(call, loops) for _ in range(15))


def mean_ns(call: Callable[[], object], loops: int) -> float:
    """Return the nanoseconds of one of so many calls.

    The function that timeit compiles would stay alive, with what it calls, in a free-threaded
    Python 3.13 that once had a second thread.
    """
    begin = perf_counter_ns()
    for _ in repeat(None, loops):
        call()
    return (perf_counter_ns() - begin) / loops


def describe(hop: Hop) -> list[str]:
    """Return the cells of one row."""
    receipt = hop.receipt
    if receipt is None:
        return [hop.source, hop.target, "", hop.refusal, "", ""]
    memory = "shared" if receipt.shared else f"copied by {receipt.copied_by}"
    if receipt.why not in (None, "copy_required"):
        memory += f": {receipt.why}"
    pointer = "same" if receipt.data_ptr_in == receipt.data_ptr_out else "new"
    return [hop.source, hop.target, receipt.route, memory, pointer, f"{hop.ns:,.0f}"]


def summarise(start: Any, value: Any, hops: list[Hop], *, unchanged: bool) -> str:
    """Return the line that sums up what was proved."""
    done = [hop for hop in hops if hop.receipt is not None]
    shared = sum(hop.receipt.shared for hop in done if hop.receipt is not None)
    total = sum(hop.ns for hop in done) / 1e3
    back = "came back unchanged" if unchanged else "WERE CHANGED ON THE WAY"
    if unchanged and value.ctypes.data == start.ctypes.data:
        back += " to the address they left from"
    return (
        f"Proved: {shared} of {len(done)} hops shared the memory, all {start.size:,} values "
        f"{back}, and a whole round takes {total:,.1f} µs."
    )


# ---- a kernel runs in each framework ------------------------------------------------------------

SOURCE = """
#include "dlbridge_kernel.h"

/* Smoothstep: 3 x^2 - 2 x^3 of each element. */
int smoothstep(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *out = tensors[1].data;
    int64_t size = 1;
    (void)context, (void)count;
    for (int i = 0; i < tensors[0].ndim; i++)
        size *= tensors[0].shape[i];
    for (int64_t i = 0; i < size; i++)
        out[i] = x[i] * x[i] * (3 - 2 * x[i]);
    return 0;
}
"""
SCHEMA = "demo::smoothstep(x: f32[...]) -> f32[...]"
CALL_COLUMNS = (
    Column("framework"),
    Column("gives back", wrap=True),
    Column("values"),
    Column("of 16: ns", right=True),
)


class Call(NamedTuple):
    """The result of the kernel in one framework; or why it was refused."""

    framework: str
    kind: str
    right: bool
    ns: float = 0.0
    refusal: str = ""


def run_kernel(start: np.ndarray[Any, Any], ring: list[str]) -> int:
    """Call the kernel with `start` in every framework of `ring`; return 0 if all values are right.

    Without a C compiler it says so and returns 0.
    """
    try:
        kernel = compile_c(SOURCE, "smoothstep", SCHEMA)
    except DLBridgeError as error:
        print(f"\n(no kernel is compiled: {str(error).splitlines()[0]})")
        return 0
    print(f"\nOne kernel of C is called with the tensors of each: {SCHEMA}\n")
    calls = [call_kernel(kernel, start, name) for name in ring]
    print_table(CALL_COLUMNS, [describe_call(call) for call in calls])
    done = [call for call in calls if not call.refusal]
    wrong = [call.framework for call in done if not call.right]
    what = f"WRONG in {', '.join(wrong)}" if wrong else "right everywhere"
    print(f"\nProved: {len(done)} of {len(calls)} frameworks ran it, the values are {what}.")
    return int(bool(wrong))


def call_kernel(kernel: Kernel, start: np.ndarray[Any, Any], name: str) -> Call:
    """Return the result of the kernel for `start` as a tensor of one framework."""
    try:
        result = kernel(native.convert(start, name))
        back = native.convert(result, "numpy", readonly="share")
        few = native.convert(start.ravel()[:16].copy(), name)
        mean_ns(lambda: kernel(few), 20)
    except DLBridgeError as error:
        return Call(name, "", right=False, refusal=f"refused: {error.reason}")
    right = bool(np.allclose(back, start * start * (3 - 2 * start), atol=1e-6))
    ns = median_ns(lambda: kernel(few), 50)
    cls = type(result)
    return Call(name, f"{cls.__module__.partition('.')[0]} {cls.__name__}", right, ns)


def describe_call(call: Call) -> list[str]:
    """Return the cells of one row."""
    if call.refusal:
        return [call.framework, call.refusal, "", ""]
    return [call.framework, call.kind, "right" if call.right else "WRONG", f"{call.ns:,.0f}"]
