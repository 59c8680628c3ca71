"""Graphs: runs, building, importing, values on the wire, against TensorFlow in the same process.

Each statement of ours and the same of TensorFlow run in turn. TensorFlow's time is the better one
of its default session and of one with `inter_op_parallelism_threads=-1`, which runs small graphs in
the caller's thread. Its optimiser is off, so that both run the graph that was built.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import dlbridge.graph as ours
from benchmarks import graph_build, graph_hostile, graph_wire
from benchmarks.timing import QUICK, THOROUGH, Effort, compare, describe_machine, render

LENGTH = 1000  # of the chain
MANY = 100  # scalars fed and fetched


class Row(NamedTuple):
    """One comparison of runs.

    Attributes:
        what: it is of.
        statement: with `s` for the session, and the names that `build` returns.
        target: the most that ours may take, as a multiple of TensorFlow's time.
        session: ours, by its framework.
    """

    what: str
    statement: str
    target: float | None = None
    session: str = "numpy"


ROWS = [
    Row("run(const)", "s.run(const)", 0.15),
    Row("callable of const", "call_const()", 0.5),
    Row("run(identity(p), {p: x})", "s.run(same, {p: x})", 0.1),
    Row("feed and fetch 100 scalars", "s.run(many, feeds)", 0.1),
    Row("1,000 adds of 16 floats, NumPy", "s.run(chain, {p: x})", 0.35),
    Row("1,000 adds of 16 floats, JAX", "s.run(chain, {p: x})", 0.1, "jax"),
    Row("1,000 adds of 16 floats, torch", "s.run(chain, {p: x})", 0.5, "torch"),
    # For information.
    Row("callable of the 1,000 adds, JAX", "call_chain(x)", None, "jax"),
    Row("callable of identity(p)", "call_same(x)"),
    Row("run(no_op)", "s.run(nothing)"),
    Row("1,000 adds of one array (fan-out)", "s.run(fan, {p: x})"),
]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print everything; return the figures, times in nanoseconds."""
    effort = QUICK if quick else THOROUGH
    tf = graph_build.tensorflow()
    figures = [*measure_runs(tf, effort), measure_large(tf, quick=quick)]
    figures += measure_models(tf, effort)
    figures += [describe_rate(row) for row in graph_build.rows(quick)]
    figures.append(measure_import(tf, quick=quick))
    figures += graph_hostile.measure(quick=quick)
    figures += graph_wire.measure(effort)
    print_figures(figures)
    return {"machine": describe_machine(), "graph": figures}


# ---- runs --------------------------------------------------------------------------------------


def build(tf: Any) -> dict[str, Any]:
    """Return what the statements name, built with `tf`."""
    graph = tf.Graph()
    with graph.as_default():
        p = tf.placeholder(tf.float32, [None])
        scalars = [tf.placeholder(tf.float32, []) for _ in range(MANY)]
        bias = tf.constant(np.ones(16, np.float32))
        names = {
            "graph": graph,
            "p": p,
            "const": tf.constant(3.0),
            "same": tf.identity(p),
            "many": [tf.identity(each) for each in scalars],
            "feeds": {each: float(number) for number, each in enumerate(scalars)},
            "nothing": tf.no_op(),
            "shape": tf.shape(p),
        }
        chain = p
        for _ in range(LENGTH):
            chain = chain + bias
        fan = [(p + bias).op for _ in range(LENGTH)]
        names |= {"chain": chain, "fan": tf.group(*fan), "x": np.ones(16, np.float32)}
    return names


def with_session(names: dict[str, Any], session: Any) -> dict[str, Any]:
    """Return the names with a session of their graph, and callables of it."""
    return names | {
        "s": session,
        "call_const": session.make_callable(names["const"]),
        "call_same": session.make_callable(names["same"], [names["p"]]),
        "call_chain": session.make_callable(names["chain"], [names["p"]]),
    }


def tensorflow_sessions(tf: Any) -> list[dict[str, Any]]:
    """Return the names of TensorFlow's side, for a default session and the quickest one."""
    if tf is None:
        return []
    names = build(tf)
    return [
        with_session(names, tf.Session(graph=names["graph"], config=each)) for each in _configs(tf)
    ]


def _configs(tf: Any) -> list[Any]:
    found = []
    for threads in (0, -1):
        config = tf.ConfigProto(inter_op_parallelism_threads=threads)
        config.graph_options.optimizer_options.opt_level = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        found.append(config)
    return found


def measure_runs(tf: Any, effort: Effort) -> list[dict[str, Any]]:
    """Return the figures of all rows whose framework is installed."""
    peers = tensorflow_sessions(tf)
    names = build(ours)
    figures = []
    for row in ROWS:
        if row.session != "numpy" and not find_spec(row.session):
            continue
        session = ours.Session(graph=names["graph"], framework=row.session)
        sides = [with_session(names, session), *peers]
        # Each side has its own names, so each is called through one function.
        calls = {f"side{i}": compiled(row.statement, side) for i, side in enumerate(sides)}
        mine, *theirs = compare([f"{name}()" for name in calls], calls, effort)
        figures.append(figure(row.what, mine, min(theirs, default=None), row.target))
    return figures


def compiled(statement: str, names: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs a statement; its names are found as fast as constants."""
    used = compile(statement, "", "eval").co_names
    arguments = ", ".join(name for name in used if name in names)
    space: dict[str, Any] = {}
    text = f"def make({arguments}):\n    def call():\n        return {statement}\n    return call"
    exec(text, space)
    call: Callable[[], Any] = space["make"](**{name: names[name] for name in used if name in names})
    return call


def measure_large(tf: Any, *, quick: bool) -> dict[str, Any]:
    """Return the figure of a large array that is fed, and only its shape looked at."""
    count = 1 << (22 if quick else 28)
    big = np.ones(count + 1, np.float32)[1:]  # as aligned as any view
    names = build(ours)
    sides = [(ours.Session(graph=names["graph"]), names)]
    if tf is not None:
        sides += [(each["s"], each) for each in tensorflow_sessions(tf)[1:]]
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(3 if quick else 7):
        for sample, (session, names) in zip(samples, sides, strict=True):
            start = time.perf_counter_ns()
            assert session.run(names["shape"], {names["p"]: big})[0] == count
            sample.append(time.perf_counter_ns() - start)
    mine, *theirs = (median(sample) for sample in samples)
    what = f"feed {big.nbytes >> 20} MiB, look at the shape"
    return figure(what, mine, min(theirs, default=None), None, limit_ns=1e6)


# ---- everyday graphs ---------------------------------------------------------------------------


def preprocess(tf: Any) -> dict[str, Any]:
    """Return a batch of photos, resized, normalised, mirrored and clipped."""
    photos = tf.placeholder(tf.uint8, [None, None, None, 3])
    y = tf.image.resize_bilinear(tf.cast(photos, tf.float32), [224, 224])
    y = (y - tf.constant([123.7, 116.8, 103.9])) / tf.constant([58.4, 57.1, 57.4])
    result = tf.clip_by_value(tf.reverse(y, [2]), -2.0, 2.0)
    rows = np.random.default_rng(0).integers(0, 256, (4, 256, 320, 3))
    return {"fetch": result, "feeds": {photos: rows.astype(np.uint8)}}


def unroll_lstm(tf: Any, steps: int = 20, size: int = 64) -> dict[str, Any]:
    """Return the last state of an LSTM that is unrolled."""
    rng = np.random.default_rng(0)
    x = tf.placeholder(tf.float32, [None, steps, size])
    weights = tf.constant(rng.standard_normal((2 * size, 4 * size)).astype(np.float32) / 10)
    bias = tf.constant(np.zeros(4 * size, np.float32))
    state = memory = tf.zeros([tf.shape(x)[0], size])
    for step in tf.unstack(x, steps, axis=1):
        gates = tf.matmul(tf.concat([step, state], 1), weights) + bias
        taken, new, kept, shown = tf.split(gates, 4, 1)
        memory = memory * tf.sigmoid(kept + 1.0) + tf.sigmoid(taken) * tf.tanh(new)
        state = tf.tanh(memory) * tf.sigmoid(shown)
    return {"fetch": state, "feeds": {x: rng.standard_normal((16, steps, size)).astype("f4")}}


MODELS = {"image preprocessing": preprocess, "LSTM of 20 unrolled steps": unroll_lstm}


def measure_models(tf: Any, effort: Effort) -> list[dict[str, Any]]:
    """Return the figures of everyday graphs in NumPy, the default."""
    figures = []
    for what, build_model in MODELS.items():
        with ours.Graph().as_default() as graph:
            sides = [build_model(ours) | {"s": ours.Session(graph=graph)}]
        if tf is not None:
            with tf.Graph().as_default() as graph:
                names = build_model(tf)
            sides += [names | {"s": tf.Session(graph=graph, config=each)} for each in _configs(tf)]
        calls = {f"side{i}": compiled("s.run(fetch, feeds)", side) for i, side in enumerate(sides)}
        mine, *theirs = compare([f"{name}()" for name in calls], calls, effort)
        figures.append(figure(what, mine, min(theirs, default=None), 1.0))
    return figures


# ---- graphs ------------------------------------------------------------------------------------


def measure_import(tf: Any, *, quick: bool) -> dict[str, Any]:
    """Return the figure of importing the bytes of a GraphDef."""
    count = 500 if quick else 10_000
    with ours.Graph().as_default() as graph:
        x: Any = ours.placeholder(ours.float32, [None, 16])
        bias = ours.constant(np.ones(16, np.float32))
        for _ in range(count):
            x = x + bias
    data = graph.as_graph_def().SerializeToString()
    calls = [lambda: import_bytes(ours, data)]
    if tf is not None:
        calls.append(lambda: import_bytes(tf, data))
    mine, *theirs = graph_build.in_turn(2 if quick else 7, *calls, best=min)
    return figure(f"import {count:,} nodes", mine, min(theirs, default=None), 1.0)


def import_bytes(tf: Any, data: bytes) -> float:
    """Return the nanoseconds that reading and importing a GraphDef takes."""
    with tf.Graph().as_default():
        gc.collect()
        start = time.perf_counter_ns()
        tf.import_graph_def(tf.GraphDef.FromString(data), name="")
        return time.perf_counter_ns() - start


# ---- figures -----------------------------------------------------------------------------------


def figure(
    what: str,
    mine: float,
    peer: float | None,
    target: float | None,
    *,
    limit_ns: float | None = None,
) -> dict[str, Any]:
    """Return one row in the form that all benchmarks have."""
    ratio = None if peer is None else mine / peer
    reached = None
    if limit_ns is not None:
        reached = mine <= limit_ns
    elif target is not None and ratio is not None:
        reached = ratio <= target
    return {
        "what": what,
        "against": "TensorFlow",
        "ours_ns": round(mine, 1),
        "peer_ns": None if peer is None else round(peer, 1),
        "ratio": None if ratio is None else round(ratio, 7),
        "target": target,
        "limit_ns": limit_ns,
        "reached": reached,
    }


def describe_rate(row: graph_build.Row) -> dict[str, Any]:
    """Return a row of building: rates are times of one node, and seconds nanoseconds."""
    if row.is_rate:
        peer = None if row.peer is None else 1e9 / row.peer
        return figure(f"{row.what}, a node", 1e9 / row.ours, peer, 1 / row.target)
    against = "one copy" if "copy" in row.what else "TensorFlow"
    peer = None if row.peer is None else row.peer * 1e9
    return figure(row.what, row.ours * 1e9, peer, row.target) | {"against": against}


def print_figures(figures: list[dict[str, Any]]) -> None:
    """Print a table, those rows first that have a target."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            "" if row["peer_ns"] is None else f"{row['peer_ns']:,.0f}",
            "" if row["ratio"] is None else f"{row['ratio']:.3g}",
            _limit(row),
            {None: "", True: "yes", False: "NO"}[row["reached"]],
        ]
        for row in sorted(figures, key=lambda row: _limit(row) == "")
    ]
    header = ["graph", "against", "ours/ns", "theirs/ns", "ratio", "at most", "reached"]
    print(render(header, rows))


def _limit(row: dict[str, Any]) -> str:
    if row["limit_ns"] is not None:
        return f"{row['limit_ns']:,.0f} ns"
    return "" if row["target"] is None else f"{row['target']:.3g}"
