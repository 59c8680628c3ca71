"""dlbridge.mpi and graphs over several tasks, against mpi4py and TensorFlow's session over gRPC.

`run` starts ranks with mpiexec. Two of them run this module, and call dlbridge.mpi and mpi4py on
NumPy's arrays in turn. A figure is the fastest of many short batches: on a shared machine the
others measure who else was running. All ranks agree on the number of calls before each batch, since
both sides of a call have to make it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import hops, partition, servers, two_hosts
from benchmarks.timing import describe_machine, render

SIZES = {"8 B": 8, "1 KiB": 2**10, "4 KiB": 2**12, "8 KiB": 2**13, "64 KiB": 2**16}
SIZES |= {"1 MiB": 2**20, "64 MiB": 2**26}
FRAMEWORKS = ("numpy", "torch", "jax", "dlbridge")


class Effort(NamedTuple):
    """How many batches, and about how many seconds each takes."""

    batches: int
    seconds: float


QUICK = Effort(3, 0.0005)
THOROUGH = Effort(200, 0.0005)
MANY = 2000  # messages of `waitall`, as many each way
LARGE = 2**20  # from here on a batch is one call, and a tenth of the batches are enough


def run(*, quick: bool = False) -> dict[str, Any]:
    """Start the jobs, print their tables and what is asked of them; return the figures."""
    options = ["--quick"] if quick else []
    version, rows = _measured(_job(2, "distributed", options))
    print(f"Two ranks, {version}; us: the fastest batch\n")
    header = ["call", "size", "mpi4py on NumPy", *FRAMEWORKS]
    lines = []
    for row in rows:
        raw = row["us"]["mpi4py"]
        ours = [row["us"].get(name) for name in FRAMEWORKS]
        cells = ["-" if us is None else f"{us:,.1f} ({us / raw:.2f} x)" for us in ours]
        lines.append([row["call"], row["size"], f"{raw:,.1f}", *cells])
    print(render(header, lines))
    print()
    _, edges = _measured(_job(2, "servers", options))
    servers.show(edges["rows"])
    print()
    grpc = None
    if importlib.util.find_spec("tensorflow") is not None:
        name, grpc = _measured([sys.executable, "-m", "benchmarks.grpc", *options])
        print(f"The same graphs in {name}, two processes and gRPC; us: the fastest batch\n")
        print(render(["size", "there and back"], [[k, f"{us:,.1f}"] for k, us in grpc.items()]))
        print()
    _, hop = _measured(_job(hops.RANKS, "hops", options))
    hosts = two_hosts.run(quick=quick)
    parts = partition.run(quick=quick)
    bars = [
        *_bars_of_edges(edges),
        *_bars_of_grpc(edges["rows"], grpc or {}),
        *_bars_of_reductions(rows),
        Bar(f"{hops.RANKS} ranks, a hop, median", hop["median"], 300, "us"),
        *[
            Bar(f"two hosts, {size} there and back", us["messages"] / us["mpi4py"], bar, "x mpi4py")
            for size, us in (hosts or {}).items()
            for bar in (two_hosts.BARS[size],)
        ],
        *[
            Bar(f"partitioning {nodes:,} nodes, {tasks:,} tasks, a node", us, 20, "us")
            for nodes, tasks, us in parts["curve"]
        ],
    ]
    print("\nWhat is asked of it\n")
    print(render(["figure", "bar", "measured", "met"], [each.cells() for each in bars]))
    return {
        "machine": describe_machine(),
        "rows": rows,
        "edges": edges,
        "grpc": grpc,
        "hop": hop,
        "two_hosts": hosts,
        "partition": parts,
        "bars": [[*each, each.is_met()] for each in bars],
    }


def _job(ranks: int, module: str, options: list[str]) -> list[str]:
    """Return the command that runs a module of the benchmarks on so many ranks."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(beside), os.environ["PATH"]]))
    if mpiexec is None:
        raise SystemExit("distributed: mpiexec is not installed; pip install '.[mpi]'")
    return [mpiexec, "-n", str(ranks), sys.executable, "-m", f"benchmarks.{module}", *options]


# ---- what is asked of the figures ---------------------------------------------------------------


class Bar(NamedTuple):
    """A figure and what it should be at most, or at least."""

    figure: str
    measured: float
    bar: float
    unit: str
    is_least: bool = False

    def is_met(self) -> bool:
        """Return whether the figure is as good as it should be."""
        return self.measured >= self.bar if self.is_least else self.measured <= self.bar

    def cells(self) -> list[str]:
        """Return its row of the table."""
        kind, met = "at least" if self.is_least else "at most", "yes" if self.is_met() else "no"
        return [self.figure, f"{kind} {self.bar:g} {self.unit}", f"{self.measured:,.2f}", met]


def _bars_of_edges(edges: dict[str, Any]) -> list[Bar]:
    us = {row["size"]: row["us"] for row in edges["rows"]}
    bars = [
        Bar(f"{size} there and back, {way}", us[size][way] / us[size]["mpi4py"], bar, "x mpi4py")
        for size, way, bar in (
            ("8 B", "spmd", 1.4),
            ("8 B", "driven", 2.2),
            ("64 MiB", "spmd", 1.1),
            ("64 MiB", "driven", 1.1),
        )
    ]
    return [*bars, Bar("an edge of 64 MiB that is lent", edges["lent"], 50, "us")]


def _bars_of_grpc(rows: list[dict[str, Any]], grpc: dict[str, float]) -> list[Bar]:
    """Return how many times as long TensorFlow takes, where one task drives and where all run."""
    us, least = {row["size"]: row["us"] for row in rows}, {"8 B": 150, "64 MiB": 4}
    return [
        Bar(f"{size} there and back, {way}", theirs / us[size][way], least.get(size, 200),
            "x faster than gRPC", is_least=True)
        for size, theirs in grpc.items()
        for way in ("driven", "spmd")
    ]  # fmt: skip


def _bars_of_reductions(rows: list[dict[str, Any]]) -> list[Bar]:
    """Return allreduce from 1 KiB on, of each framework."""
    return [
        Bar(f"allreduce of {row['size']}, {name}", us / row["us"]["mpi4py"], 1.1, "x mpi4py")
        for row in rows
        for name, us in row["us"].items()
        if row["call"] == "allreduce" and SIZES[row["size"]] >= 2**10 and name != "mpi4py"
    ]


def _measured(command: list[str]) -> tuple[str, Any]:
    """Return the first line that a job prints, and the figures in the last one."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    return lines[0], json.loads(lines[-1])


# ---- one rank -----------------------------------------------------------------------------------


def main() -> None:
    """Measure as one of two ranks; rank 0 prints."""
    from mpi4py import MPI

    from dlbridge import mpi

    effort = QUICK if "--quick" in sys.argv else THOROUGH
    world, rows = MPI.COMM_WORLD, []
    for label, nbytes in SIZES.items():
        batches = effort.batches if nbytes < LARGE else max(3, effort.batches // 10)
        calls = {"allreduce": reductions(nbytes), "send and back": echoes(nbytes)}
        if nbytes < LARGE:
            calls |= copies(nbytes)
        for call, ways in calls.items():
            us = measure(world, ways, effort._replace(batches=batches))
            rows.append({"call": call, "size": label, "us": us})
    us = measure(world, {"mpi4py": world.Barrier, "dlbridge": mpi.barrier}, effort)
    rows.append({"call": "barrier", "size": "", "us": us})
    us = measure(world, many(), effort._replace(batches=3))
    rows.append({"call": "waitall", "size": f"{MANY:,} x 8 B", "us": us})
    if world.rank == 0:
        print(MPI.Get_library_version().split("\n")[0].strip("\0"))
        print(json.dumps(rows))


def sources(nbytes: int, rows: int = 1) -> dict[str, Any]:
    """Return one tensor of so many bytes, in rows, of each framework that is installed."""
    import dlbridge

    array = np.ones((rows, nbytes // 4 // rows), np.float32)
    made: dict[str, Any] = {"numpy": array, "dlbridge": dlbridge.from_dlpack(array)}
    for name in ("torch", "jax"):
        try:
            made[name] = dlbridge.convert(array, name)
        except dlbridge.FrameworkMissingError:
            continue
    return made


def reductions(nbytes: int) -> dict[str, Callable[[], object]]:
    """Return an allreduce by each way; mpi4py's makes its result too, as ours do."""
    from mpi4py import MPI

    from dlbridge import mpi

    world, array = MPI.COMM_WORLD, np.ones(nbytes // 4, np.float32)
    ways: dict[str, Callable[[], object]] = {
        "mpi4py": lambda: world.Allreduce(array, np.empty_like(array))
    }
    for name, x in sources(nbytes).items():
        ways[name] = lambda x=x: mpi.allreduce(x)  # type: ignore[misc]
    return ways


def copies(nbytes: int) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the other collectives, by each way; mpi4py's make their results too."""
    from mpi4py import MPI

    from dlbridge import mpi

    world = MPI.COMM_WORLD
    array = np.ones((world.size, nbytes // 4 // world.size), np.float32)
    into = array.copy()

    def reduce() -> None:
        world.Reduce(array, np.empty_like(array) if world.rank == 0 else None)

    def spread() -> None:
        world.Bcast(into)
        world.Barrier()

    def ours(x: Any) -> None:
        mpi.bcast(x)
        mpi.barrier()

    def copy() -> None:
        if world.rank == 0:
            world.Bcast(array)
        else:
            world.Bcast(np.empty_like(array))

    def gather() -> None:
        world.Allgather(array, np.empty((world.size, *array.shape), array.dtype))

    def exchange() -> None:
        world.Alltoall(array, np.empty_like(array))

    def scatter() -> None:
        world.Reduce_scatter_block(array, np.empty_like(array[0]))

    raw: dict[str, Callable[[], object]] = {
        "reduce": reduce,
        "bcast": copy,
        "bcast and barrier": spread,
        "allgather": gather,
        "reduce_scatter": scatter,
        "alltoall": exchange,
        "alltoall, timeout=": exchange,
    }
    by_dlbridge: dict[str, Callable[[Any], object]] = {
        "reduce": mpi.reduce,
        "bcast": mpi.bcast,
        "bcast and barrier": ours,
        "allgather": mpi.allgather,
        "reduce_scatter": mpi.reduce_scatter,
        "alltoall": mpi.alltoall,
        "alltoall, timeout=": partial(mpi.alltoall, timeout=60.0),
    }
    return {
        call: {
            "mpi4py": raw[call],
            **{name: partial(way, x) for name, x in sources(nbytes, world.size).items()},
        }
        for call, way in by_dlbridge.items()
    }


def echoes(nbytes: int) -> dict[str, Callable[[], object]]:
    """Return a tensor's way to the other rank and back."""
    from mpi4py import MPI

    from dlbridge import mpi

    world, array = MPI.COMM_WORLD, np.ones(nbytes // 4, np.float32)
    rank, other = world.rank, 1 - world.rank

    def raw() -> None:
        if rank == 0:
            world.Send(array, other)
            world.Recv(np.empty_like(array), other)
        else:
            back = np.empty_like(array)
            world.Recv(back, other)
            world.Send(back, other)

    def ours(x: Any, name: str) -> None:
        if rank == 0:
            mpi.send(x, other)
            mpi.recv(other, to=name)
        else:
            mpi.send(mpi.recv(other, to=name), other)

    ways: dict[str, Callable[[], object]] = {"mpi4py": raw}
    for name, x in sources(nbytes).items():
        ways[name] = lambda x=x, name=name: ours(x, name)  # type: ignore[misc]
    return ways


def many() -> dict[str, Callable[[], object]]:
    """Return many messages to and from the other rank, that are under way at once."""
    from mpi4py import MPI

    from dlbridge import mpi

    world, array = MPI.COMM_WORLD, np.ones(2, np.float32)
    other = 1 - world.rank

    def raw() -> None:
        into = [np.empty_like(array) for _ in range(MANY)]
        received = [world.Irecv(each, other) for each in into]
        MPI.Request.Waitall([*received, *(world.Isend(array, other) for _ in range(MANY))])

    def ours() -> None:
        received = [mpi.irecv(other) for _ in range(MANY)]
        mpi.waitall([*received, *(mpi.isend(array, other) for _ in range(MANY))])

    return {"mpi4py": raw, "numpy": ours}


def measure(world: Any, ways: dict[str, Callable[[], object]], effort: Effort) -> dict[str, float]:
    """Return the microseconds of each way in its fastest batch on rank 0."""
    counts = {name: _calibrate(world, way, effort.seconds) for name, way in ways.items()}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(effort.batches):
        for name, way in ways.items():
            world.Barrier()
            start = time.perf_counter()
            for _ in range(counts[name]):
                way()
            best[name] = min(best[name], (time.perf_counter() - start) / counts[name])
    return {name: seconds * 1e6 for name, seconds in best.items()}


def _calibrate(world: Any, way: Callable[[], object], seconds: float) -> int:
    """Return how many calls take about so long, the same number on all ranks."""
    way()
    start = time.perf_counter()
    for _ in range(3):
        way()
    count = int(seconds * 3 / (time.perf_counter() - start))
    return max(1, int(world.bcast(count)))


if __name__ == "__main__":
    main()
