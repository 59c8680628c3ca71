"""Values and graphs on the wire, against TensorFlow: rows of `python -m benchmarks graph`.

Small messages are timed as everywhere, in loops. Cases of hundreds of megabytes are run once in
each round, in turn with TensorFlow's, and the medians are compared. `dump_tensor_buffers` and
`load_tensor` copy nothing: they are timed in loops, and have a target in nanoseconds instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import QUICK, Effort, compare
from dlbridge import proto

LARGE = 1 << 26  # float32: 256 MiB
NODES = 10_000


class Row(NamedTuple):
    """One comparison: what it is of, our statement, TensorFlow's, and the ratio to reach."""

    what: str
    ours: str
    peer: str
    target: float | None = None
    limit_ns: float | None = None
    """The most nanoseconds that ours may take, whatever TensorFlow takes."""


LARGE_ROWS = [
    Row("256 MiB: dump_tensor", "dump_tensor(large)", "tf_dump(large)", 1 / 3),
    Row("256 MiB: dump_tensor_buffers", "dump_tensor_buffers(large)", "tf_dump(large)", None, 20e3),
    Row("256 MiB: load_tensor", "load_tensor(large_bytes)", "tf_load(large_bytes)", None, 20e3),
    Row("GraphDef with 256 MiB: load", "load_graph_def(graph_bytes)", "tf_graph(graph_bytes)"),
    Row("GraphDef with 256 MiB: dump", "dump_graph_def(*graph)", "tf_graph_dump()"),
]
SMALL_ROWS = [
    Row("1 float: dump_tensor", "dump_tensor(one)", "tf_dump(one)"),
    Row("16 floats: dump_tensor", "dump_tensor(sixteen)", "tf_dump(sixteen)"),
    Row("16 floats: load_tensor", "load_tensor(sixteen_bytes)", "tf_load(sixteen_bytes)"),
    Row("16 floats: read_tensor", "read_tensor(sixteen_bytes)", "tf_load(sixteen_bytes)"),
    Row("value of a Python float", "make_value(1.5)", "tf_make(1.5)"),
    Row("10,000 uint16 as varints", "dump_tensor(words)", "tf_dump(words)"),
    Row("GraphDef of 10,000 nodes: parse", "load_graph_def(nodes)", "tf_graph(nodes)"),
]


def make_names() -> dict[str, Any]:
    """Return what the statements mean; without TensorFlow, only our side of them."""
    large = np.ones(LARGE, np.float32)
    contents: list[Any] = []
    graph = proto.messages.GraphDef()
    value = proto.TensorValue("float32", large)
    proto.write_attr(value, graph.node.add(name="weights", op="Const").attr["value"], contents)
    nodes = proto.messages.GraphDef()
    for number in range(NODES):
        node = nodes.node.add(name=f"add_{number}", op="AddV2", input=["a", "b"])
        proto.write_attr(proto.DataType("float32"), node.attr["T"])
    sixteen = np.ones(16, np.float32)
    names = {
        **{name: getattr(proto, name) for name in proto.__all__},
        "large": large,
        "large_bytes": proto.dump_tensor(large),
        "one": np.float32(1),
        "sixteen": sixteen,
        "sixteen_bytes": proto.dump_tensor(sixteen),
        "words": np.arange(10_000, dtype=np.uint16),
        "graph": (graph, contents),
        "graph_bytes": proto.dump_graph_def(graph, contents),
        "nodes": nodes.SerializeToString(),
    }
    return names | make_peers(names)


def make_peers(names: dict[str, Any]) -> dict[str, Any]:
    """Return TensorFlow's side of the statements."""
    if not find_spec("tensorflow"):
        return {}
    import tensorflow as tf

    messages = tf.compat.v1
    graph = messages.GraphDef.FromString(names["graph_bytes"])
    tensor = type(tf.make_tensor_proto(1))
    return {
        "tf_make": tf.make_tensor_proto,
        "tf_dump": lambda array: tf.make_tensor_proto(array).SerializeToString(),
        "tf_load": lambda data: tf.make_ndarray(tensor.FromString(data)),
        "tf_graph": messages.GraphDef.FromString,
        "tf_graph_dump": graph.SerializeToString,
    }


def measure(effort: Effort) -> list[dict[str, Any]]:
    """Return the figures of all rows, times in nanoseconds."""
    names = make_names()
    rounds = 3 if effort is QUICK else 9
    figures = []
    for row in LARGE_ROWS:
        ours, *peer = alternate(row, names, rounds)
        if row.limit_ns is not None:
            (ours,) = compare([row.ours], names, effort)
        figures.append(describe(row, ours, *peer))
    for row in SMALL_ROWS:
        ours, *peer = compare(statements(row, names), names, effort)
        figures.append(describe(row, ours, *peer))
    return figures


def statements(row: Row, names: dict[str, Any]) -> list[str]:
    """Return our statement, and TensorFlow's if it is installed."""
    return [row.ours, row.peer] if "tf_dump" in names else [row.ours]


def alternate(row: Row, names: dict[str, Any], rounds: int) -> list[float]:
    """Return the median time of each statement, run once in each round."""
    calls: list[Callable[[], Any]] = [
        eval(f"lambda: {statement}", dict(names)) for statement in statements(row, names)
    ]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, sample in zip(calls, samples, strict=True):
            start = time.perf_counter_ns()
            result = call()
            sample.append(time.perf_counter_ns() - start)
            del result
    return [median(sample) for sample in samples]


def describe(row: Row, ours: float, peer: float | None = None) -> dict[str, Any]:
    """Return one row of figures in the form that all benchmarks have."""
    ratio = None if peer is None else ours / peer
    reached = None
    if row.limit_ns is not None:
        reached = ours <= row.limit_ns
    elif row.target is not None and ratio is not None:
        reached = ratio <= row.target
    return {
        "what": row.what,
        "against": "TensorFlow",
        "ours_ns": round(ours, 1),
        "peer_ns": None if peer is None else round(peer, 1),
        "ratio": None if ratio is None else round(ratio, 7),
        "target": row.target,
        "limit_ns": row.limit_ns,
        "reached": reached,
    }
