"""Building graphs: nodes per second and large constants, here and in TensorFlow, in turn."""

from __future__ import annotations

import gc
import importlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import dlbridge.graph as ours


class Row(NamedTuple):
    """One figure: what it is, ours and the peer's, and the ratio ours / peer to reach.

    `is_rate` says that more is better: the ratio is then the least to reach, else the most.
    """

    what: str
    unit: str
    ours: float
    peer: float | None
    target: float
    is_rate: bool = False


def build_adds(tf: Any, count: int) -> float:
    """Return nodes per second of `a + b`."""
    with tf.Graph().as_default():
        a, b = tf.constant(1.0), tf.constant(2.0)
        start = time.perf_counter()
        for _ in range(count):
            a + b
        return count / (time.perf_counter() - start)


def build_chain(tf: Any, count: int) -> float:
    """Return nodes per second of sums of matrices, each of the one before."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 16])
        bias = tf.constant(np.ones(16, np.float32))
        start = time.perf_counter()
        for _ in range(count):
            x = x + bias
        return count / (time.perf_counter() - start)


def build_constants(tf: Any, count: int) -> float:
    """Return nodes per second of scalar constants."""
    with tf.Graph().as_default():
        start = time.perf_counter()
        for _ in range(count):
            tf.constant(1.0)
        return count / (time.perf_counter() - start)


def build_mixed(tf: Any, count: int) -> float:
    """Return nodes per second of what models are made of, operands of Python included."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 8, 8])
        start = time.perf_counter()
        for _ in range(count // 8):
            with tf.name_scope("block"):
                y = tf.reshape(tf.identity(x) * 2.0, [-1, 64])
                x = tf.reshape(y, [-1, 8, 8])
        return len(graph.get_operations()) / (time.perf_counter() - start)


def constant_of(tf: Any, array: Any) -> float:
    """Return seconds of a constant of an array."""
    with tf.Graph().as_default():
        start = time.perf_counter()
        tf.constant(array)
        return time.perf_counter() - start


def copy_of(array: Any) -> float:
    """Return seconds of one copy."""
    start = time.perf_counter()
    array.copy()
    return time.perf_counter() - start


def in_turn(rounds: int, *measures: Callable[[], float], best: Callable[..., float]) -> list[float]:
    """Return the best of each measure; each round takes all of them, one after another."""
    samples: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for sample, measure in zip(samples, measures, strict=True):
            gc.collect()
            sample.append(measure())
    return [best(sample) for sample in samples]


def rows(quick: bool = False) -> list[Row]:
    """Measure and return all rows; without TensorFlow there are no peers."""
    peer = tensorflow()
    count, rounds = (500, 2) if quick else (10_000, 5)
    found = []
    for what, build in (
        ("build a + b", build_adds),
        ("build a chain of x + bias", build_chain),
        ("build scalar constants", build_constants),
        ("build mixed blocks", build_mixed),
    ):
        measures = [lambda tf=tf, build=build: build(tf, count) for tf in (ours, peer) if tf]
        rates = in_turn(rounds, *measures, best=max)
        found.append(Row(what, "nodes/s", rates[0], rates[1] if peer else None, 5.0, is_rate=True))
    return [*found, large_constant(1 << 22 if quick else 1 << 30)]


def large_constant(size: int) -> Row:
    """Return the row of a constant of `size` bytes against one copy of the array."""
    array = np.ones(size // 4, np.float32)
    mine, copied = in_turn(3, lambda: constant_of(ours, array), lambda: copy_of(array), best=min)
    return Row(f"constant of {size >> 20} MiB, against a copy", "s", mine, copied, 1.2)


def tensorflow() -> Any:
    """Return TensorFlow's module for graphs of version 1, or None where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        tf = importlib.import_module("tensorflow").compat.v1
    except ImportError:
        return None
    tf.disable_v2_behavior()
    return tf
