"""What importing a GraphDef costs: memory for each of its bytes, and time against TensorFlow.

Ordinary graphs, and such as only an attacker writes. The memory is the peak that tracemalloc counts
during one import, beside the bytes themselves; what is imported the first time is not part of it.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import dlbridge.graph as ours
from benchmarks.graph_build import in_turn, tensorflow

MOST_BYTES = 200
"""Of memory, for each byte of a GraphDef."""
MOST_TIME = 1.0
"""As a multiple of TensorFlow's."""

SIZE = 1 << 14
"""About how many bytes the graphs have."""


# ---- graphs ------------------------------------------------------------------------------------


def additions() -> Iterator[Any]:
    """Sums, each of the one before."""
    x: Any = ours.placeholder(ours.float32, [None, 16], "x")
    while True:
        x = x + x
        yield x


def layers() -> Iterator[Any]:
    """Layers with constants, control inputs and several results."""
    x: Any = ours.placeholder(ours.float32, [None, 8], "x")
    while True:
        with ours.name_scope("layer"):
            parts = ours.split(ours.nn.relu(x), 2, axis=1)
            with ours.control_dependencies([parts[0]]):
                joined: Any = ours.concat([parts[1], parts[0]], 1)
                x = ours.reshape(joined * 0.5, [-1, 8])
        yield x


def dilations() -> Iterator[Any]:
    """Convolutions with one element and a window of 2**28, whose values are asked for."""
    image, window = ours.ones([1, 1, 1, 1]), ours.ones([2, 2, 1, 1])
    while True:
        wide = ours.nn.conv2d(image, window, [1, 1, 1, 1], "SAME", dilations=[1, 2**14, 2**14, 1])
        yield ours.fill(ours.cast(ours.reshape(wide, [1]), ours.int32), 0)


def fills() -> Iterator[Any]:
    """Fills of whose value the next one is made, and of whose size many ask."""
    value: Any = ours.constant(1)
    while True:
        value = ours.reduce_max(ours.fill([1024], value))
        yield ours.fill([value], 0)


def stacks() -> Iterator[Any]:
    """One wide stack for whose value each node asks."""
    wide = ours.stack([ours.constant(1) for _ in range(1024)])
    while True:
        yield ours.fill([ours.reduce_max(wide)], 0)


def deep_scopes() -> Iterator[Any]:
    """Names of 3,000 scopes."""
    graph = ours.get_default_graph()
    number = 0
    while True:
        number += 1
        yield graph.create_op("NoOp", [], name="a/" * 3000 + f"{number}/")


def long_name() -> Iterator[Any]:
    """One name of 60 kB; it is imported twice."""
    graph = ours.get_default_graph()
    graph.create_op("NoOp", [], name="a/" * 30_000 + "b/")
    while True:
        yield graph.create_op("NoOp", [], name="c")


def no_ops() -> Iterator[Any]:
    """The shortest nodes there are."""
    graph = ours.get_default_graph()
    while True:
        yield graph.create_op("NoOp", [], name="n")


def large_constants() -> Iterator[Any]:
    """Constants of one value and 2**16 elements, of whose values shapes are made."""
    while True:
        ones: Any = ours.constant(1, ours.int32, [2**16])
        yield ours.tile(ours.ones([1]), ones[:1])


def splits() -> Iterator[Any]:
    """Splits of many results."""
    while True:
        yield ours.split(ours.ones([64]), 64)


GRAPHS: dict[str, Callable[[], Iterator[Any]]] = {
    "additions": additions,
    "layers": layers,
    "dilations": dilations,
    "fills of fills": fills,
    "one value asked for often": stacks,
    "scopes 3,000 deep": deep_scopes,
    "a name of 60 kB, twice": long_name,
    "the shortest nodes": no_ops,
    "large constants of one value": large_constants,
    "splits": splits,
}


def written(build: Callable[[], Iterator[Any]], size: int) -> bytes:
    """Return the bytes of a graph, about so many."""
    with ours.Graph().as_default() as graph:
        nodes = build()
        for _ in range(8):
            next(nodes)
        each = len(ours.dump_graph(graph)) // 8
        for _ in range(max(size // each - 8, 0)):
            next(nodes)
    return ours.dump_graph(graph)


# ---- costs -------------------------------------------------------------------------------------


def seconds_of(tf: Any, data: bytes, name: str) -> float:
    """Return the time of an import, twice into one graph."""
    with tf.Graph().as_default():
        start = perf_counter()
        for _ in range(2):
            tf.import_graph_def(tf.GraphDef.FromString(data), name=name)
        return perf_counter() - start


def memory_of(data: bytes) -> float:
    """Return the bytes at the peak of an import of ours, twice into one graph, for each byte."""
    gc.collect()
    tracemalloc.start()
    try:
        with ours.Graph().as_default():
            for _ in range(2):
                ours.import_graph_def(data, name="again")
        return tracemalloc.get_traced_memory()[1] / (2 * len(data))
    finally:
        tracemalloc.stop()


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the figures of all graphs, times in nanoseconds."""
    peer = tensorflow()
    figures = []
    for what, build in GRAPHS.items():
        data = written(build, SIZE // 4 if quick else SIZE)
        modules = [tf for tf in (ours, peer) if tf]
        calls = [lambda tf=tf, data=data: seconds_of(tf, data, "again") for tf in modules]
        mine, *theirs = in_turn(1 if quick else 5, *calls, best=min)
        ratio = mine / theirs[0] if theirs else None
        memory = memory_of(data)
        within = memory <= MOST_BYTES and (ratio is None or ratio <= MOST_TIME)
        figures.append(
            {
                "what": f"import {what}, {memory:.0f} B per byte",
                "against": "TensorFlow",
                "ours_ns": round(mine * 1e9, 1),
                "peer_ns": round(theirs[0] * 1e9, 1) if theirs else None,
                "ratio": None if ratio is None else round(ratio, 4),
                "target": MOST_TIME,
                "limit_ns": None,
                "bytes_per_byte": round(memory, 1),
                "most_bytes_per_byte": MOST_BYTES,
                "reached": within,
            }
        )
    return figures
