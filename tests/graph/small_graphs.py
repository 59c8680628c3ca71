"""Short ways to run and to export small graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlbridge.graph as tf


def run(tensors: Any, feeds: Any = None, **session: Any) -> Any:
    """Run one tensor, or a list of them, in a session of their graph."""
    first = tensors[0] if isinstance(tensors, list) else tensors
    with tf.Session(graph=first.graph, **session) as running:
        return running.run(tensors, feeds)


def exported(*build: Callable[[], Any]) -> Any:
    """Return the GraphDef of a graph of its own in which these functions were called."""
    with tf.Graph().as_default() as graph:
        for each in build:
            each()
    return graph.as_graph_def()
