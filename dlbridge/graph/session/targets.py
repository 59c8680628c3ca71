"""The table of targets that sessions run on; `tf.train.Server` adds a row for its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dlbridge.execution.builder import Runtime
from dlbridge.execution.errors import NotFoundError
from dlbridge.graph.core.graph import Graph


class ClusterSession(Protocol):
    """The part of a session that runs its graph on a cluster."""

    def runner(
        self, graph: Graph, runtime: Runtime, fetch: Any, keys: Any, to: str, copy: bool
    ) -> Any:
        """Return what runs a fetch: `call`, `traced` and `size`, as `session.Runner` has them."""

    def forget(self) -> None:
        """Drop all plans, on all tasks."""

    def close(self) -> None:
        """Drop what the session alone has; variables stay on their tasks."""


class Target(Protocol):
    """A cluster, seen from one of its tasks."""

    def open(self, graph: Graph, runtime: Runtime, max_bytes: int | None) -> ClusterSession:
        """Begin a session."""


_TARGETS: dict[str, Callable[[bool], Target]] = {}


def add(target: str, make: Callable[[bool], Target]) -> None:
    """Make a target known: `make(spmd)` returns it."""
    _TARGETS[target] = make


def find(target: str, spmd: bool) -> Any:
    """Return the Target of that name; None for "", this process alone.

    Raises:
        NotFoundError: no server of this process has that target.
        ValueError: `spmd` without a target.
    """
    if not target:
        if spmd:
            raise ValueError(
                "Session: spmd=True runs a graph on all tasks of a cluster; pass the target of a "
                "tf.train.Server"
            )
        return None
    if target not in _TARGETS:
        there = ", ".join(map(repr, _TARGETS)) or "none; make a tf.train.Server first"
        raise NotFoundError(
            f"Session: the target {target!r} is that of no server of this process; known: {there}"
        )
    return _TARGETS[target](spmd)
