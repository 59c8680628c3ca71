"""The tables of docs/distributed.md, of the figures that `benchmarks.distributed` returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import put, table

Row = dict[str, Any]

CALLS = {
    "allreduce": "`allreduce`",
    "allreduce, mean": '`allreduce`, "mean"',
    **{name: f"`{name}`" for name in (
        "bcast", "allgather", "reduce_scatter", "alltoall", "reduce", "gather", "scatter",
    )},
    "send and back": "`send`, `recv`, back",
    "barrier": "`barrier`",
}  # fmt: skip
BEGUN = ("iallreduce", "ibcast", "iallgather", "ireduce_scatter", "ialltoall")
APART = {
    **{name: CALLS[name] for name in (
        "send and back", "allreduce", "allreduce, mean", "allgather", "reduce_scatter", "alltoall",
    )},
    **{f"{name} and barrier": f"`{name}`, `barrier`" for name in (
        "bcast", "reduce", "gather", "scatter",
    )},
}  # fmt: skip
TREES = {
    "4 of 8 MiB": "4 tensors of 8 MiB",
    "50, 26 MiB": "50 tensors, 26 MiB in all",
    "60, 31 MiB": "60 tensors of at most 1 MiB, 31 MiB in all",
    "1,000 of 256 B": "1,000 tensors of 256 B",
}
EDGES = {
    "8 B": "8 B",
    "4 KiB": "4 KiB",
    "1 MiB": "1 MiB, of a variable",
    "64 MiB": "64 MiB, of a variable",
    "100 x 8 B": "100 scalars",
}
SIZES = ("8 B", "1 KiB", "8 KiB", "64 KiB", "1 MiB", "64 MiB")
APART_SIZES = ("8 B", "1 KiB", "4 KiB", "64 KiB", "1 MiB", "64 MiB")


def write_pages(figures: dict[str, Any], root: Path) -> None:
    """Put the tables into docs/distributed.md; that of two hosts where there were two."""
    page = root / "docs/distributed.md"
    put(page, "benchmark trees", tell_trees(figures["trees"]))
    put(page, "benchmark calls", tell_calls(figures["rows"]))
    put(page, "benchmark begun calls", tell_begun(figures["rows"]))
    put(page, "benchmark edges", tell_edges(figures["edges"]["rows"], figures["grpc"] or {}))
    if figures["apart"] is not None:
        put(page, "benchmark two hosts", tell_apart(figures["apart"][0]))


def tell_trees(trees: list[Row]) -> str:
    """Return how many times as long as one tensor a tree of torch's takes."""
    calls = ("allreduce", "bcast", "gather")
    known = {
        (row["tensors"], row["call"]): row["us"]["tree"] / row["us"]["flat"]
        for row in trees
        if row["framework"] == "torch"
    }
    rows = [
        [text, *[f"{known[name, call]:.{2 if known[name, call] < 10 else 0}f}" for call in calls]]
        for name, text in TREES.items()
    ]
    return table(["torch", *[f"`{call}`" for call in calls]], rows)


def tell_calls(rows: list[Row]) -> str:
    """Return microseconds of mpi4py, and ours as a multiple of that."""
    known = {(row["call"], row["size"]): row["us"] for row in rows}
    header = ["call", "size", "mpi4py", "NumPy", "torch", "JAX", "Tensor"]

    def lines() -> Iterator[list[str]]:
        for call, text in CALLS.items():
            for size in (*SIZES, ""):
                us = known.get((call, size))
                if us is None:
                    continue
                ways = ("numpy", "torch", "jax", "dlbridge")
                if "numpy" not in us:  # a barrier has no tensors
                    ways = ("dlbridge", "", "", "")
                ratios = [f"{us[way] / us['mpi4py']:.2f}" if way else "" for way in ways]
                yield [text, size, f"{us['mpi4py']:,.1f}", *ratios]

    return table(header, lines(), words=2)


def tell_begun(rows: list[Row]) -> str:
    """Return the same of calls that do not wait, for arrays of NumPy and of torch."""
    known = {(row["call"], row["size"]): row["us"] for row in rows}
    sizes = SIZES[:-1]

    def ratio(us: dict[str, float], way: str) -> str:
        return f"{us[way] / us['mpi4py']:.2f}"

    lines = []
    for call in BEGUN:
        found = [known[call, size] for size in sizes]
        lines.append(
            [f"`{call}`", *[f"{ratio(us, 'numpy')} / {ratio(us, 'torch')}" for us in found]]
        )
    barrier = ratio(known["ibarrier", ""], "dlbridge")
    lines.append(["`ibarrier`", barrier, *[""] * (len(sizes) - 1)])
    return table(["NumPy / torch", *sizes], lines)


def tell_edges(edges: list[Row], grpc: dict[str, float]) -> str:
    """Return microseconds of runs of a graph, with an edge to another task and one back."""
    known = {row["size"]: row["us"] for row in edges}

    def number(us: float | None) -> str:
        return "" if us is None else f"{us:,.{1 if us < 100 else 0}f}"

    lines = [
        [text, *[number(known[size][way]) for way in ("mpi4py", "spmd", "driven")],
         number(grpc.get(size))]
        for size, text in EDGES.items()
    ]  # fmt: skip
    ways = ["mpi4py", "all tasks make the runs", "one drives the other", "TensorFlow, gRPC"]
    return table(["there and back", *ways], lines)


def tell_apart(rows: list[Row]) -> str:
    """Return microseconds of mpi4py between two hosts, with our time as a multiple of that."""
    known = {(row["call"], row["size"]): row["us"] for row in rows}

    def cell(us: dict[str, float] | None) -> str:
        return "" if us is None else f"{us['mpi4py']:,.0f}: {us['numpy'] / us['mpi4py']:.2f}"

    lines = [
        [text, *[cell(known.get((call, size))) for size in APART_SIZES]]
        for call, text in APART.items()
    ]
    return table(["NumPy, between two hosts", *APART_SIZES], lines)
