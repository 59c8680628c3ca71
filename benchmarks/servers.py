"""A graph with an edge to the other task and one back, against a raw round trip of mpi4py.

`benchmarks.distributed` starts two ranks with mpiexec, each of which runs this module. Raw round
trips and runs of all tasks (`spmd`) take turns; those that one task drives come last, beside raw
ones of their own time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.timing import render

SIZES = {"8 B": 1, "4 KiB": 2**9, "1 MiB": 2**17, "64 MiB": 2**23}  # numbers of float64


def show(rows: list[dict[str, Any]]) -> None:
    """Print what a job of two ranks has measured."""
    lines = []
    for row in rows:
        us, raw = row["us"], row["us"]["mpi4py"]
        lines.append(
            [row["size"], f"{raw:,.1f}"]
            + [f"{us[name]:,.1f} ({us[name] / raw:.2f} x)" for name in ("spmd", "driven")]
        )
    print("A run with an edge to the other task and one back; us: the fastest batch\n")
    print(render(["size", "mpi4py there and back", "spmd", "driven"], lines))


MANY = 100  # scalars that go together
MANY_LABEL = f"{MANY} x 8 B"
HOPS = 2000  # of a value that is passed on, for what one of them takes: the copy before takes 10 ms


def main() -> None:
    """Measure as one of two tasks; rank 0 prints."""
    from mpi4py import MPI

    import dlbridge.graph as tf
    from benchmarks.distributed import LARGE, QUICK, THOROUGH, measure

    effort, world = QUICK if "--quick" in sys.argv else THOROUGH, MPI.COMM_WORLD
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    rows: list[dict[str, Any]] = []
    for label, count in SIZES.items():
        graph, z = echo(tf, count)
        session = tf.Session(server.target, graph, spmd=True)
        session.run(graph.get_operation_by_name("init"))
        few = effort if 8 * count < LARGE else effort._replace(batches=max(3, effort.batches // 10))
        ways: dict[str, Callable[[], object]] = {}
        ways |= {"mpi4py": _raw(world, count), "spmd": partial(session.run, z)}
        rows.append({"size": label, "us": measure(world, ways, few)})
        session.close()
    graph, z = many(tf)
    with tf.Session(server.target, graph, spmd=True) as session:
        session.run(graph.get_operation_by_name("init"))
        before = server.transport.counts()[0]
        session.run(z)
        sent = server.transport.counts()[0] - before
        ways = {"mpi4py": _raw(world, MANY), "spmd": partial(session.run, z)}
        us = measure(world, ways, effort)
        rows.append({"size": MANY_LABEL, "us": us, "messages": sent})
    ways = {}
    sessions = []
    for hops in (2, HOPS + 2):
        graph, z = _passed_on(tf, hops)
        sessions.append(tf.Session(server.target, graph, spmd=True))
        sessions[-1].run(graph.get_operation_by_name("init"))
        ways[str(hops)] = partial(sessions[-1].run, z)
    took = measure(world, ways, effort._replace(batches=max(5, effort.batches // 10)))
    lent = (took[str(HOPS + 2)] - took["2"]) / HOPS
    for session in sessions:
        session.close()
    if world.rank:
        server.join()
        return
    for row in rows:
        graph, z = echo(tf, SIZES[row["size"]]) if row["size"] in SIZES else many(tf)
        with tf.Session(server.target, graph) as session:
            row["us"]["driven"] = fastest(partial(session.run, z), effort.batches)
    print(json.dumps({"rows": rows, "lent": lent}))


def _passed_on(tf: Any, hops: int) -> tuple[Any, Any]:
    """Return a graph where 64 MiB go to the other task and back so many times."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            start = tf.zeros([SIZES["64 MiB"]], tf.float64)
            v = tf.get_variable(f"passed{hops}", initializer=start, use_resource=True)
            x = v.read_value()
        for i in range(hops):
            with tf.device(f"/job:worker/task:{(i + 1) % 2}"):
                x = tf.identity(x)
        tf.group(v.initializer, name="init")
        with tf.device("/job:worker/task:0"):
            return graph, x[-1]


def echo(tf: Any, count: int) -> tuple[Any, Any]:
    """Return a graph whose fetch goes from task 0 to task 1 and back.

    Args:
        tf: dlbridge.graph, or TensorFlow's own names of version 1.
        count: of the float64 that go.
    """
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            start = tf.zeros([count], tf.float64)
            v = tf.get_variable(f"v{count}", initializer=start, use_resource=True)
            x = v.read_value()
        with tf.device("/job:worker/task:1"):
            y = tf.identity(x) if count > 1 else x + 1.0
        with tf.device("/job:worker/task:0"):
            z = y[-1] if count > 1 else y + 1.0
        tf.group(v.initializer, name="init")
    return graph, z


def many(tf: Any) -> tuple[Any, Any]:
    """Return a graph where 100 scalars go from task 0 to task 1 and back."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            numbers = range(MANY)
            made = [
                tf.get_variable(f"many{i}", initializer=np.float64(i), use_resource=True)
                for i in numbers
            ]
        with tf.device("/job:worker/task:1"):
            there = [each + 1.0 for each in made]
        with tf.device("/job:worker/task:0"):
            back = tf.add_n([each + 1.0 for each in there])  # which no optimizer takes away
        tf.group(*[each.initializer for each in made], name="init")
    return graph, back


def _raw(world: Any, count: int) -> Callable[[], object]:
    array, back = np.zeros(count), np.zeros(count)
    other = 1 - world.rank

    def echo() -> None:
        if world.rank == 0:
            world.Send(array, other)
            world.Recv(back, other)
        else:
            world.Recv(back, other)
            world.Send(back, other)

    return echo


def fastest(way: Callable[[], object], batches: int) -> float:
    """Return the microseconds of a call in the fastest batch of this task alone."""
    way()
    best = float("inf")
    for _ in range(max(3, batches)):
        start = time.perf_counter()
        calls = 0
        while time.perf_counter() - start < 0.0005:
            way()
            calls += 1
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


if __name__ == "__main__":
    main()
