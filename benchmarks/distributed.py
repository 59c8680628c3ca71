"""dlbridge.mpi against mpi4py's own calls on NumPy's arrays, in turn, in the same processes.

`run` starts two ranks with mpiexec; each runs this module. A figure is the fastest of many short
batches: on a shared machine the others measure who else was running. All ranks agree on the number
of calls before each batch, since both sides of a call have to make it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import partition, servers
from benchmarks.timing import describe_machine, render

SIZES = {"8 B": 8, "1 KiB": 2**10, "4 KiB": 2**12, "8 KiB": 2**13, "64 KiB": 2**16}
SIZES |= {"1 MiB": 2**20, "64 MiB": 2**26}
SMALL = 2**12  # up to here all calls are measured
FRAMEWORKS = ("numpy", "torch", "jax", "dlbridge")


class Effort(NamedTuple):
    """How many batches, and about how many seconds each takes."""

    batches: int
    seconds: float


QUICK = Effort(3, 0.0005)
THOROUGH = Effort(200, 0.0005)
LARGE = 2**20  # from here on a batch is one call, and a tenth of the batches are enough


def run(*, quick: bool = False) -> dict[str, Any]:
    """Start two ranks, print their tables; return the figures."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(beside), os.environ["PATH"]]))
    if mpiexec is None:
        raise SystemExit("distributed: mpiexec is not installed; pip install '.[mpi]'")
    command = [mpiexec, "-n", "2", sys.executable, "-m"]
    options = ["--quick"] if quick else []
    version, rows = _measured([*command, "benchmarks.distributed", *options])
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
    _, edges = _measured([*command, "benchmarks.servers", *options])
    servers.show(edges)
    print()
    parts = partition.run(quick=quick)
    return {"machine": describe_machine(), "rows": rows, "edges": edges, "partition": parts}


def _measured(command: list[str]) -> tuple[str, list[dict[str, Any]]]:
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
        if nbytes <= SMALL:
            calls |= copies(nbytes)
        for call, ways in calls.items():
            us = measure(world, ways, effort._replace(batches=batches))
            rows.append({"call": call, "size": label, "us": us})
    us = measure(world, {"mpi4py": world.Barrier, "dlbridge": mpi.barrier}, effort)
    rows.append({"call": "barrier", "size": "", "us": us})
    if world.rank == 0:
        print(MPI.Get_library_version().split("\n")[0].strip("\0"))
        print(json.dumps(rows))


def sources(nbytes: int) -> dict[str, Any]:
    """Return one tensor of so many bytes, of each framework that is installed."""
    import dlbridge

    array = np.ones(nbytes // 4, np.float32)
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
    """Return the other collectives that small tensors are passed to, by each way."""
    from mpi4py import MPI

    from dlbridge import mpi

    world, array = MPI.COMM_WORLD, np.ones(nbytes // 4, np.float32)
    into = array.copy()

    def reduce() -> None:
        world.Reduce(array, np.empty_like(array) if world.rank == 0 else None)

    def spread() -> None:
        world.Bcast(into)
        world.Barrier()

    def ours(x: Any) -> None:
        mpi.bcast(x)
        mpi.barrier()

    def gather() -> None:
        world.Allgather(array, np.empty((world.size, *array.shape), array.dtype))

    made: dict[str, dict[str, Callable[[], object]]] = {
        "reduce": {"mpi4py": reduce},
        "bcast and barrier": {"mpi4py": spread},
        "allgather": {"mpi4py": gather},
    }
    for name, x in sources(nbytes).items():
        made["reduce"][name] = lambda x=x: mpi.reduce(x)  # type: ignore[misc]
        made["bcast and barrier"][name] = lambda x=x: ours(x)  # type: ignore[misc]
        made["allgather"][name] = lambda x=x: mpi.allgather(x)  # type: ignore[misc]
    return made


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
