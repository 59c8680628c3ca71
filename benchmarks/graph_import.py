"""Importing and exporting graphs: nodes per second, here and in TensorFlow, in turn."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import dlbridge.graph as ours
from benchmarks.graph_build import Row, in_turn, tensorflow

NODES = 10_000


def chain(tf: Any, count: int) -> None:
    """Build sums, each of the one before."""
    x = tf.placeholder(tf.float32, [16], name="x")
    for _ in range(count):
        x = x + x


def blocks(tf: Any, count: int) -> None:
    """Build layers with constants, control inputs and several results."""
    x = tf.placeholder(tf.float32, [None, 8], name="x")
    weights = tf.constant(np.ones((8, 8), np.float32), name="w")
    for i in range(count // 10):
        with tf.name_scope(f"layer_{i}"):
            y = tf.nn.relu(tf.matmul(x, weights))
            parts = tf.split(y, 2, axis=1)
            with tf.control_dependencies([y]):
                x = tf.concat([parts[1], parts[0]], 1)
            x = tf.reshape(x * 0.5, [-1, 8])


def written(build: Callable[[Any, int], None], count: int) -> tuple[bytes, int]:
    """Return a graph as bytes, and the number of its nodes."""
    with ours.Graph().as_default() as graph:
        build(ours, count)
    return ours.dump_graph(graph), len(graph.get_operations())


def import_of(tf: Any, data: bytes, count: int) -> float:
    """Return nodes per second from bytes to a graph, static shapes included."""
    start = perf_counter()
    if tf is ours:
        ours.load_graph(data)
    else:
        with tf.Graph().as_default():
            tf.import_graph_def(tf.GraphDef.FromString(data), name="")
    return count / (perf_counter() - start)


def export_of(tf: Any, graph: Any, count: int) -> float:
    """Return nodes per second from a graph to bytes."""
    start = perf_counter()
    if tf is ours:
        ours.dump_graph(graph)
    else:
        graph.as_graph_def().SerializeToString()
    return count / (perf_counter() - start)


def graph_of(tf: Any, data: bytes) -> Any:
    """Return a graph from bytes."""
    if tf is ours:
        return ours.load_graph(data)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(data), name="")
    return graph


def rows(quick: bool = False) -> list[Row]:
    """Measure and return all rows; without TensorFlow there are no peers."""
    peer = tensorflow()
    nodes, rounds = (500, 2) if quick else (NODES, 7)
    modules = [tf for tf in (ours, peer) if tf]
    found = []
    for what, build in (("a chain", chain), ("layers", blocks)):
        data, count = written(build, nodes)
        imports = [lambda tf=tf, data=data, n=count: import_of(tf, data, n) for tf in modules]
        rates = in_turn(rounds, *imports, best=max)
        found.append(_row(f"import {what} of {count} nodes", rates, 1.0))
        graphs = [(tf, graph_of(tf, data)) for tf in modules]
        exports = [lambda tf=tf, g=g, n=count: export_of(tf, g, n) for tf, g in graphs]
        rates = in_turn(rounds, *exports, best=max)
        found.append(_row(f"export {what} of {count} nodes", rates, 0.0))
    return found


def _row(what: str, rates: list[float], target: float) -> Row:
    peer = rates[1] if len(rates) > 1 else None
    return Row(what, "nodes/s", rates[0], peer, target, is_rate=True)
