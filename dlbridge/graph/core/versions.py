"""Versions of the GraphDef format: of the writer of a graph, and of its readers."""

from __future__ import annotations

from typing import NamedTuple

from dlbridge.errors import ArgumentError

GRAPH_DEF_VERSION = 2474
"""The version that we write and read, that of TensorFlow 2.21; older readers take newer graphs."""

FUNCTIONS_SINCE = 12
"""Readers older than this do not know libraries of functions."""


class Versions(NamedTuple):
    """The fields of a VersionDef.

    Attributes:
        producer: the version of the writer.
        min_consumer: the oldest reader that may read it.
        bad_consumers: readers known to go wrong with it.
    """

    producer: int = GRAPH_DEF_VERSION
    min_consumer: int = 0
    bad_consumers: tuple[int, ...] = ()

    def merge(self, other: Versions) -> Versions:
        """Return the versions of a graph made of two: the oldest writer, all demands on readers."""
        return Versions(
            min(self.producer, other.producer),
            max(self.min_consumer, other.min_consumer),
            tuple(sorted({*self.bad_consumers, *other.bad_consumers})),
        )

    def check(self) -> None:
        """Raise ValueError unless we may read a graph of these versions."""
        if self.producer < 0:
            raise _refusal(f"its producer version is {self.producer}; the least is 0")
        if self.min_consumer > GRAPH_DEF_VERSION:
            raise _refusal(
                f"its min_consumer is {self.min_consumer}: it needs a newer reader than this one, "
                f"which reads version {GRAPH_DEF_VERSION}; upgrade dlbridge"
            )
        if GRAPH_DEF_VERSION in self.bad_consumers:
            raise _refusal(
                f"its bad_consumers forbid readers of version {GRAPH_DEF_VERSION}, as this one is"
            )


def _refusal(text: str) -> ArgumentError:
    return ArgumentError(f"import_graph_def: the GraphDef cannot be read: {text}")
