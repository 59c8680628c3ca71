"""CUDA: exchanges, kernel launches and copies against the frameworks' own; waits of the host.

Every statement runs in turn with its peers in one process. Times of exchanges and launches are the
host's: neither waits for the device. Times of copies end when the device is through.

Without a GPU there is nothing to measure, and that is said; on another driver, which
DLBRIDGE_CUDA_DRIVER names, the figures are of that driver.
"""

from __future__ import annotations

from typing import Any

from benchmarks import cuda_copies, cuda_peers, cuda_waits
from benchmarks.timing import QUICK, THOROUGH, Effort, compare, describe_machine, render
from dlbridge import cuda
from dlbridge._core import native


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print everything; return the figures, times in nanoseconds."""
    why = native.cuda_open()
    if why is not None or not cuda.device_count():
        print(f"no GPU, so nothing is measured: {why or 'the driver counts 0 devices'}")
        return {"machine": describe_machine(), "gpu": None}
    effort = QUICK if quick else THOROUGH
    names = cuda_peers.make_names()
    figures: dict[str, Any] = {
        "machine": describe_machine() | cuda_peers.describe_gpu(),
        "gpu": True,
        "exchange": measure(cuda_peers.EXCHANGES, names, effort),
        "launch": measure(cuda_peers.LAUNCHES, names, effort),
        "copies": cuda_copies.measure(quick=quick),
        "waits": cuda_waits.count(cuda_peers.EXCHANGES + cuda_peers.LAUNCHES, names),
    }
    print(*(f"{name} {value}" for name, value in figures["machine"].items()), sep=", ")
    print_rows("exchange, host time", [*figures["exchange"], *figures["launch"]])
    cuda_copies.print_copies(figures["copies"])
    cuda_waits.print_waits(figures["waits"])
    return figures


def measure(
    rows: list[cuda_peers.Row], names: dict[str, Any], effort: Effort
) -> list[dict[str, Any]]:
    """Measure our statement against the best of those peers that are here."""
    figures = []
    for row in rows:
        peers = {
            label: text for label, text in row.peers.items() if cuda_peers.is_possible(text, names)
        }
        if not peers or not cuda_peers.is_possible(row.ours, names):
            continue
        ours, *theirs = compare([row.ours, *peers.values()], names, effort, cuda.synchronize)
        best, label = min(zip(theirs, peers, strict=True))
        figures.append(
            {
                "what": row.what,
                "against": label,
                "ours_ns": round(ours, 1),
                "peer_ns": round(best, 1),
                "all_ns": dict(zip(peers, (round(each, 1) for each in theirs), strict=True)),
                "ratio": round(ours / best, 3),
                "target": row.target,
                "reached": None if row.target is None else ours / best <= row.target,
            }
        )
    return figures


def print_rows(title: str, figures: list[dict[str, Any]]) -> None:
    """Print a table; of several peers the quickest one stands in it."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            f"{row['peer_ns']:,.0f}",
            f"{row['ratio']:.2f}",
            "" if row["target"] is None else f"{row['target']:.2f}",
            {None: "", True: "yes", False: "NO"}[row["reached"]],
        ]
        for row in figures
    ]
    if rows:
        header = [title, "best peer", "ours/ns", "theirs/ns", "ratio", "target", "reached"]
        print("", render(header, rows), sep="\n")
