"""The demonstration: one tensor goes round every installed framework, and so does one kernel.

Each hop is done twice: once with a receipt, which says what happened, and then many times without,
for the time that it takes.
"""

from __future__ import annotations

import os
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np

from dlbridge import frameworks, kernel_demo
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.exchange import adapter
from dlbridge.exchange.receipts import Receipt, receipts
from dlbridge.tensor.memory import empty
from dlbridge.terminal import Column, print_table

SHAPE = (1024, 1024)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
IMPORTED_FIRST = ("paddle",)  # crashes when TensorFlow was imported before
COLUMNS = (
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


def run() -> int:
    """Send the tensor round, print what happened; return 0 if every value is right."""
    start = make_tensor()
    ring = find_ring()
    print(f"One tensor of {start.size:,} float32 values ({start.nbytes >> 20} MiB) goes round:")
    print(" → ".join([*ring, ring[0]]), end="\n\n")
    value, hops = go_round(start, ring)
    print_table(COLUMNS, [describe(hop) for hop in hops])
    unchanged = isinstance(value, np.ndarray) and np.array_equal(start, value)
    print("", summarise(start, value, hops, unchanged=unchanged), sep="\n")
    return int(not unchanged) or kernel_demo.run(start, ring)


def make_tensor() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return waves over a grid, in memory aligned well enough for every framework."""
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
    """Return what arrives back at the first framework, and the hops."""
    value, source, hops = start, ring[0], []
    for target in [*ring[1:], ring[0]]:
        hop, result = go(value, source, target)
        hops.append(hop)
        if hop.receipt is not None:
            value, source = result, target
    return value, hops


def go(value: Any, source: str, target: str) -> tuple[Hop, Any]:
    """Return one hop and its result; memory that the CPU cannot read is asked to come there."""
    refusal = ""
    attempts: tuple[dict[str, Any], ...] = ({}, {"device": "cpu"})
    for policies in attempts:
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
    timer = Timer(lambda: native.convert(value, target, **policies))
    loops = max(1, round(0.002 / max(timer.timeit(3) / 3, 1e-9)))
    return median(timer.timeit(loops) / loops for _ in range(15)) * 1e9


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
    """Return the one line that says what was proved."""
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
