"""dlbridge.mpi and graphs over several tasks, against mpi4py and TensorFlow's session over gRPC.

`run` starts ranks with mpiexec. Two of them run this module, and call dlbridge.mpi and mpi4py on
NumPy's arrays in turn. A figure is the fastest of many short batches: on a shared machine the
others measure who else was running. All ranks agree on the number of calls before each batch, since
both sides of a call have to make it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
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
FOR_JAX = "mpi4py for jax"  # mpi4py on np.asarray(x), and an array of JAX of what came
TREES: dict[str, list[tuple[int, ...]]] = {  # shapes of float32
    "4 of 8 MiB": [(2**21,)] * 4,
    "50, 26 MiB": [
        *(shape for c in (64, 128, 256, 512) for shape in [(c, c // 2, 3, 3), (c,), (c,)] * 4),
        *((1000, 512), (1000,)),
    ],
    "60, 31 MiB": [(256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,)] * 10,
    "1,000 of 256 B": [(64,)] * 1000,
}
TREE_CALLS = ("allreduce", "bcast", "gather")


class Effort(NamedTuple):
    """How many batches, and about how many seconds each takes."""

    batches: int
    seconds: float


QUICK = Effort(3, 0.0005)
THOROUGH = Effort(200, 0.0005)
MANY = 8000  # messages of `waitall`, as many each way
LARGE = 2**20  # from here on a batch is one call, and a tenth of the batches are enough


def run(*, quick: bool = False) -> dict[str, Any]:
    """Start the jobs, print their tables and what is asked of them; return the figures."""
    options = ["--quick"] if quick else []
    version, (rows, trees) = _measured(_job(2, "distributed", options))
    print(f"Two ranks, {version}; us: the fastest batch\n")
    _show_calls(rows)
    _show_trees(trees)
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
    apart = two_hosts.measured("benchmarks.distributed", options)
    if apart is not None:
        print("The calls between two hosts, MPICH over TCP; us: the fastest batch\n")
        _show_calls(apart[0])
        _show_trees(apart[1])
    parts = partition.run(quick=quick)
    bars = [
        *_bars_of_edges(edges),
        *_bars_of_grpc(edges["rows"], grpc or {}),
        *_bars_of_reductions(rows),
        *_bars_of_jax(rows),
        *_bars_of_many(rows),
        *[
            Bar(
                f"{row['call']} of a tree, {row['tensors']}, {row['framework']}, {way}",
                row["us"][way] / row["us"]["flat"],
                1.1,
                "x a flat one",
            )
            for row in trees
            for way in ("tree", "parts")
        ],
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
        "trees": trees,
        "apart": apart,
        "edges": edges,
        "grpc": grpc,
        "hop": hop,
        "two_hosts": hosts,
        "partition": parts,
        "bars": [[*each, each.is_met()] for each in bars],
    }


def _show_calls(rows: list[dict[str, Any]]) -> None:
    header = ["call", "size", "mpi4py on NumPy", *FRAMEWORKS, "jax, of " + FOR_JAX]
    lines = []
    for row in rows:
        us = row["us"]
        cells = [
            "-" if name not in us else f"{us[name]:,.1f} ({us[name] / us['mpi4py']:.2f} x)"
            for name in FRAMEWORKS
        ]
        same = f"{us['jax'] / us[FOR_JAX]:.2f} x" if FOR_JAX in us else "-"
        lines.append([row["call"], row["size"], f"{us['mpi4py']:,.1f}", *cells, same])
    print(render(header, lines))
    print()


def _show_trees(trees: list[dict[str, Any]]) -> None:
    print("A list of tensors, and as many bytes in one; each call with a barrier behind it\n")
    ways = {"tree": "the list", "parts": "parts of the one", "out": "out="}
    lines = []
    for row in trees:
        us = row["us"]
        cells = [f"{us[way]:,.0f} ({us[way] / us['flat']:.2f} x)" for way in ways]
        flat = f"{us['flat']:,.0f}"
        lines.append([row["call"], row["tensors"], row["framework"], flat, *cells])
    print(render(["call", "tensors", "framework", "one", *ways.values()], lines))
    print()


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
        if row["call"] == "allreduce" and SIZES[row["size"]] >= 2**10 and name in FRAMEWORKS
    ]


def _bars_of_jax(rows: list[dict[str, Any]]) -> list[Bar]:
    """Return the calls with small arrays of JAX, beside mpi4py with the same copies."""
    return [
        Bar(f"{row['call']} of {row['size']}, jax", row["us"]["jax"] / row["us"][FOR_JAX], 2,
            "x " + FOR_JAX)
        for row in rows
        if FOR_JAX in row["us"] and SIZES[row["size"]] < 2**16
    ]  # fmt: skip


def _bars_of_many(rows: list[dict[str, Any]]) -> list[Bar]:
    """Return the bars of `waitall`, against Waitall of mpi4py."""
    return [
        Bar(f"{row['size']}, irecv, isend, waitall", row["us"]["numpy"] / row["us"]["mpi4py"], 1.5,
            "x Waitall")
        for row in rows
        if row["call"] == "waitall"
    ]  # fmt: skip


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
        if nbytes <= LARGE:
            calls |= copies(nbytes)
        for call, ways in calls.items():
            us = measure(world, ways, effort._replace(batches=batches))
            rows.append({"call": call, "size": label, "us": us})
    us = measure(world, {"mpi4py": world.Barrier, "dlbridge": mpi.barrier}, effort)
    rows.append({"call": "barrier", "size": "", "us": us})
    begun = {"mpi4py": lambda: world.Ibarrier().Wait(), "dlbridge": lambda: mpi.ibarrier().wait()}
    rows.append({"call": "ibarrier", "size": "", "us": measure(world, begun, effort)})
    us = measure(world, many(), effort._replace(batches=3))
    rows.append({"call": "waitall", "size": f"{MANY:,} x 8 B", "us": us})
    trees = []
    for call in TREE_CALLS:
        for name, shapes in TREES.items():
            for framework in ("numpy", "torch"):
                if (by_way := tree(call, framework, shapes)) is not None:
                    few = effort._replace(batches=max(3, effort.batches // 8))
                    row = {"call": call, "tensors": name, "framework": framework}
                    trees.append({**row, "us": measure(world, by_way, few)})
    if world.rank == 0:
        print(MPI.Get_library_version().split("\n")[0].strip("\0"))
        print(json.dumps([rows, trees]))
        for path in sys.argv[1:]:  # between hosts, the output has warnings of MPI's as well
            if not path.startswith("--"):
                Path(path).write_text(json.dumps([rows, trees]))


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


def for_jax(raw: Callable[[Any], Any], x: Any) -> Callable[[], object]:
    """Return what mpi4py does with an array of JAX, from and to its arrays."""
    import jax

    return lambda: jax.numpy.asarray(raw(np.asarray(x)))


def reductions(nbytes: int) -> dict[str, Callable[[], object]]:
    """Return an allreduce by each way; mpi4py's makes its result too, as ours do."""
    from mpi4py import MPI

    from dlbridge import mpi

    world, array = MPI.COMM_WORLD, np.ones(nbytes // 4, np.float32)

    def raw(x: Any) -> Any:
        world.Allreduce(x, made := np.empty_like(x))
        return made

    ways: dict[str, Callable[[], object]] = {"mpi4py": partial(raw, array)}
    for name, x in sources(nbytes).items():
        ways[name] = partial(mpi.allreduce, x)
        if name == "jax":
            ways[FOR_JAX] = for_jax(raw, x)
    return ways


class OfMpi4py:
    """The collectives of mpi4py, which make their results too."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def average(self, x: Any) -> Any:
        self.world.Allreduce(x, made := np.empty_like(x))
        return np.divide(made, self.world.size, out=made)

    def reduce(self, x: Any) -> Any:
        self.world.Reduce(x, made := np.empty_like(x) if self.world.rank == 0 else None)
        return x if made is None else made

    def spread(self, x: Any) -> Any:
        self.world.Bcast(made := x if self.world.rank == 0 else np.empty_like(x))
        return made

    def gather(self, x: Any) -> Any:
        self.world.Allgather(x, made := np.empty((self.world.size, *x.shape), x.dtype))
        return made

    def gather_at_one(self, x: Any) -> Any:
        made = np.empty((self.world.size, *x.shape), x.dtype) if self.world.rank == 0 else None
        self.world.Gather(x, made)
        return x if made is None else made

    def hand_out(self, x: Any) -> Any:
        self.world.Scatter(x if self.world.rank == 0 else None, made := np.empty_like(x[0]))
        return made

    def exchange(self, x: Any) -> Any:
        self.world.Alltoall(x, made := np.empty_like(x))
        return made

    def scatter(self, x: Any) -> Any:
        self.world.Reduce_scatter_block(x, made := np.empty_like(x[0]))
        return made

    def reduce_begun(self, x: Any) -> Any:
        self.world.Iallreduce(x, made := np.empty_like(x)).Wait()
        return made

    def spread_begun(self, x: Any) -> Any:
        self.world.Ibcast(made := x if self.world.rank == 0 else np.empty_like(x)).Wait()
        return made

    def gather_begun(self, x: Any) -> Any:
        made = np.empty((self.world.size, *x.shape), x.dtype)
        self.world.Iallgather(x, made).Wait()
        return made

    def exchange_begun(self, x: Any) -> Any:
        self.world.Ialltoall(x, made := np.empty_like(x)).Wait()
        return made

    def scatter_begun(self, x: Any) -> Any:
        self.world.Ireduce_scatter_block(x, made := np.empty_like(x[0])).Wait()
        return made


def copies(nbytes: int) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the other collectives, by each way, those that do not wait with their wait."""
    from mpi4py import MPI

    from dlbridge import mpi

    world = MPI.COMM_WORLD
    array = np.ones((world.size, nbytes // 4 // world.size), np.float32)

    def and_wait(call: Callable[[Any], Any], wait: Callable[[], object]) -> Callable[[Any], Any]:
        """Return a call with a barrier: some ranks of mpi4py's send, and are not waited for."""

        def run(x: Any) -> Any:
            made = call(x)
            wait()
            return made

        return run

    def waited(begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: begin(x).wait()

    raw_of = OfMpi4py(world)
    calls: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "allreduce, mean": (raw_of.average, partial(mpi.allreduce, op="mean")),
        "reduce": (raw_of.reduce, mpi.reduce),
        "bcast": (raw_of.spread, mpi.bcast),
        "allgather": (raw_of.gather, mpi.allgather),
        "gather": (raw_of.gather_at_one, mpi.gather),
        "scatter": (raw_of.hand_out, mpi.scatter),
        "reduce_scatter": (raw_of.scatter, mpi.reduce_scatter),
        "alltoall": (raw_of.exchange, mpi.alltoall),
        "alltoall, timeout=": (raw_of.exchange, partial(mpi.alltoall, timeout=60.0)),
        "iallreduce": (raw_of.reduce_begun, waited(mpi.iallreduce)),
        "ibcast": (raw_of.spread_begun, waited(mpi.ibcast)),
        "iallgather": (raw_of.gather_begun, waited(mpi.iallgather)),
        "ireduce_scatter": (raw_of.scatter_begun, waited(mpi.ireduce_scatter)),
        "ialltoall": (raw_of.exchange_begun, waited(mpi.ialltoall)),
    }
    for call in ("bcast", "reduce", "gather", "scatter"):
        raw, way = calls[call]
        both = and_wait(raw, world.Barrier), and_wait(way, mpi.barrier)
        calls[f"{call} and barrier"] = both
    made: dict[str, dict[str, Callable[[], object]]] = {}
    for call, (raw, way) in calls.items():
        made[call] = {"mpi4py": partial(raw, array)}
        for name, x in sources(nbytes, world.size).items():
            made[call][name] = partial(way, x)
            if name == "jax":
                made[call][FOR_JAX] = for_jax(raw, x)
    return made


def tree(
    call: str, framework: str, shapes: list[tuple[int, ...]]
) -> dict[str, Callable[[], object]] | None:
    """Return a call with tensors of these shapes, and one with as many elements in one tensor.

    "parts" are views of that one tensor, so they do not pay for memory of their own. None is
    returned if the framework is not installed. A barrier follows each call, since the root of a
    bcast, and the other ranks of a gather, do not wait until their messages have arrived.
    """
    from dlbridge import mpi

    if importlib.util.find_spec(framework) is None:
        return None
    library: Any = importlib.import_module(framework)

    def ones(shape: tuple[int, ...]) -> Any:
        return library.ones(shape, dtype=library.float32)

    def run(x: Any, out: Any = None) -> None:
        getattr(mpi, call)(x, out=out)
        mpi.barrier()

    tensors = [ones(shape) for shape in shapes]
    flat, start, parts = ones((sum(math.prod(shape) for shape in shapes),)), 0, []
    for shape in shapes:
        parts.append(flat[start : start + math.prod(shape)].reshape(shape))
        start += math.prod(shape)
    rows = (mpi.size(),) if call == "gather" else ()
    return {
        "flat": partial(run, flat),
        "tree": partial(run, tensors),
        "parts": partial(run, parts),
        "out": partial(run, tensors, [ones((*rows, *shape)) for shape in shapes]),
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
    """Return how many calls take about so long, the same number on all ranks.

    Slow ones, such as the first, must not decide that: so many took long enough twice in a row.
    """
    count, enough = 1, 0
    while True:
        start = time.perf_counter()
        for _ in range(count):
            way()
        spent = float(world.bcast(time.perf_counter() - start))
        enough = enough + 1 if spent > seconds / 2 else 0
        if enough == 2:
            return max(1, int(count * seconds / spent))
        if not enough:
            count *= 2


if __name__ == "__main__":
    main()
