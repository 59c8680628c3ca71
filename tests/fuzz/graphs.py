"""GraphDefs, changed; what is imported is run."""

from __future__ import annotations

import os
import random
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge.graph as tf
from dlbridge.errors import DLBridgeError
from dlbridge.proto import messages
from tests.fuzz import drawing

MOST_MEMORY = 1 << 31
MOST_SECONDS = 20
MOST_ELEMENTS = 1 << 16
MOST_BYTES = 1 << 22  # of a value, in one of two sessions
FEW_NODES = 6
REFUSALS = (ValueError, TypeError, DLBridgeError, tf.errors.OpError, MemoryError)


class SlowError(BaseException):
    """An execution takes too long."""


def give_up(signal_number: int, frame: object) -> None:
    raise SlowError


def in_time(run: Callable[[], str]) -> str:
    """Call a function, and give it up after MOST_SECONDS of the processor's time."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        return run()
    except SlowError:
        return f"over {MOST_SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def limited() -> Iterator[None]:
    """Limit the memory of this process, and let `in_time` give up."""
    if not os.environ.get("DLBRIDGE_SANITIZED"):  # which has a limit of its own: __main__
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGPROF, give_up)
    yield


def size_of(value: Any) -> int:
    """Return the bytes of a value of a run."""
    return int(getattr(value, "nbytes", 0))


class Fuzzer:
    """Import, and a run of some of the operations, on NumPy."""

    def __init__(self) -> None:
        from graph import graph_texts, mutations, random_steps
        from graph.test_random_graphs import build_ours

        self.mutations = mutations
        source = random.Random(1)
        plans = [random_steps.draw_plan(source, most) for most in [40] * 40 + [4] * 80]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about attributes that are unknown
            made = [build_ours(plan)[0] for plan in plans]
            made += map(tf.load_graph, graph_texts.ACCEPTED.values())
        self.corpus = [tf.dump_graph(graph) for graph in made if graph.get_operations()]
        self.small = [
            data
            for data in self.corpus
            if len(messages.GraphDef.FromString(data).node) <= FEW_NODES
        ]

    def __call__(self, source: random.Random) -> str:
        # The time of an import grows with its nodes: what two of them do needs no sixty.
        data = source.choice(self.small if source.random() < 0.9 else self.corpus)
        if source.random() < 0.3:
            data = self.mutations.spoil_bytes(source, data)
        else:
            message = messages.GraphDef.FromString(data)
            self.mutations.spoil_nodes(source, message, drawing.OP_TYPES)
            data = message.SerializeToString(deterministic=True)
        return in_time(lambda: self.load_and_run(source, data))

    def load_and_run(self, source: random.Random, data: bytes) -> str:
        try:
            graph = tf.load_graph(data)
        except UnicodeError:  # a ValueError that is about no graph
            raise
        except REFUSALS:
            return "refused"
        try:
            self.run(source, graph)
        except UnicodeError:
            raise
        except REFUSALS as error:
            return f"failed: {type(error).__name__}"
        return "ran"

    def run(self, source: random.Random, graph: Any) -> None:
        operations = graph.get_operations()
        fetches = [each for op in operations for each in op.outputs]
        if not fetches:
            return
        feeds = {}
        for op in operations:
            if op.type in ("Placeholder", "PlaceholderV2") and op.outputs:
                value = self.value(source, op.outputs[0])
                feeds |= {} if value is None else {op.outputs[0]: value}
        max_bytes = source.choice([None, MOST_BYTES])
        with tf.Session(graph=graph, max_bytes=max_bytes) as session:
            found = session.run(source.sample(fetches, min(len(fetches), 4)), feeds)
        if max_bytes is not None:
            assert max(map(size_of, found)) <= max(max_bytes, *map(size_of, feeds.values()))

    def value(self, source: random.Random, tensor: Any) -> Any:
        dims = tensor.shape.dims
        shape = [source.randrange(4) if each is None else each for each in dims or ()]
        dtype = tensor.dtype.numpy if hasattr(tensor.dtype, "numpy") else None
        if dtype is None or np.prod(shape, dtype=object) > MOST_ELEMENTS:
            return None
        return np.zeros(shape, dtype)


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    with limited():
        yield Fuzzer()
