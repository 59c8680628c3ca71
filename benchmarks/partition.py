"""How long it takes to cut a graph into the parts of a cluster, and how many messages these pass.

Nothing runs: one process places and cuts, as each task of a cluster would.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.timing import render
from dlbridge import graph as tf
from dlbridge.execution.planner import Edges, arrange, prune
from dlbridge.graph.distributed.assignment import assign
from dlbridge.graph.distributed.order import in_bursts
from dlbridge.graph.distributed.partition import partition

CURVE = ((1_000, 2), (10_000, 32), (30_000, 128), (100_000, 1_024))
TASKS = (2, 8, 32)
VALUES = 10  # variables that replicas share


def run(*, quick: bool = False) -> dict[str, Any]:
    """Print time and messages; return them."""
    curve = [_measure(nodes, tasks, quick) for nodes, tasks in CURVE[: 2 if quick else None]]
    print("Ordering, placing, cutting a graph of a chain on each task, with one edge to the next\n")
    rows = [[f"{nodes:,}", f"{tasks:,}", f"{us:.1f}"] for nodes, tasks, us in curve]
    print(render(["nodes", "tasks", "us a node"], rows))
    counts = {name: [count(build, tasks) for tasks in TASKS] for name, build in GRAPHS.items()}
    print("\nMessages of a run\n")
    header = ["graph", *(f"{tasks} tasks" for tasks in TASKS)]
    print(render(header, [[name, *(f"{n:,}" for n in row)] for name, row in counts.items()]))
    return {"curve": curve, "tasks": TASKS, "messages": counts}


def _measure(count: int, tasks: int, quick: bool) -> tuple[int, int, float]:
    cluster = _cluster(tasks)
    with tf.Graph().as_default() as graph:
        before = None
        for i in range(tasks):
            with _on(i):
                each = tf.constant(1.0) if before is None else tf.negative(before)
                for _ in range(count // tasks - 1):
                    each = tf.negative(each)
            before = each
    nodes, best = graph.get_operations(), float("inf")
    gc.disable()
    try:
        for _ in range(1 if quick else 5):
            start = time.perf_counter()
            needed = prune([before], (), frozenset())
            edges = Edges(needed, ())
            needed = arrange(needed, (), edges)
            tasks_of = assign(nodes, cluster, cluster[0])
            needed, sizes = in_bursts(needed, tasks_of, edges)
            partition(needed, tasks_of, (), (before,), cluster[:1], sizes)
            best = min(best, time.perf_counter() - start)
    finally:
        gc.enable()
    return len(nodes), tasks, best / len(nodes) * 1e6


def count(build: Callable[[int], Sequence[Any]], tasks: int) -> int:
    """Return how many values pass between the tasks of a graph."""
    cluster = _cluster(tasks)
    with tf.Graph().as_default() as graph:
        targets = build(tasks)
        needed = prune((), targets, frozenset())
        found = assign(graph.get_operations(), cluster, cluster[0])
        parts = partition(needed, found, (), (), cluster[:1])
    return sum(node.type == "_Send" for part in parts.values() for node in part)


def _cluster(tasks: int) -> Any:
    return tf.train.ClusterSpec({"worker": [f"host:{i}" for i in range(tasks)]}).tasks()


def _on(task: int) -> Any:
    return tf.device(f"/job:worker/task:{task}")


# ---- graphs -------------------------------------------------------------------------------------


def pipeline(tasks: int) -> list[Any]:
    """Build one stage on each task, of which the last hands its result to the first."""
    with _on(0):
        each = tf.random_uniform([4])
    for i in range(tasks):
        with _on(i):
            each = tf.negative(each)
    with _on(0):
        return [tf.negative(each).op]


def data_parallel(tasks: int) -> list[Any]:
    """Build replicas with shared values, whose losses are added up on the first task."""
    with _on(0):
        shared = [tf.random_uniform([4]) for _ in range(VALUES)]
    losses = []
    for i in range(tasks):
        with _on(i):
            losses.append(tf.add_n(shared))
    with _on(0):
        return [tf.add_n(losses).op]


def parameter_server(tasks: int) -> list[Any]:
    """Build variables on the first task, which workers read and write."""
    with _on(0):
        variables = [tf.get_variable(f"v{i}", [4], use_resource=True) for i in range(VALUES)]
    updates = []
    for i in range(1, tasks):
        with _on(i):
            updates += [each.assign_add(tf.negative(each)).op for each in variables]
    return updates


def all_to_all(tasks: int) -> list[Any]:
    """Build a value on each task that all tasks take."""
    values, sums = [], []
    for i in range(tasks):
        with _on(i):
            values.append(tf.random_uniform([4]))
    for i in range(tasks):
        with _on(i):
            sums.append(tf.add_n(values).op)
    return sums


GRAPHS: dict[str, Callable[[int], Sequence[Any]]] = {
    "pipeline": pipeline,
    "data-parallel, 10 values": data_parallel,
    "parameter server, 10 variables": parameter_server,
    "all-to-all": all_to_all,
}
