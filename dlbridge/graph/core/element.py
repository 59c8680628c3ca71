"""Base classes of graphs and their elements: they are unique, and symbolic."""

from __future__ import annotations

from typing import NoReturn, Self

from dlbridge.errors import DLBridgeError


class OperatorNotAllowedInGraphError(DLBridgeError, TypeError):
    """A symbolic Tensor was used where Python needs a value: as a condition, in a loop."""

    reason = "symbolic"


class NonCopyable:
    """Refuses to be copied or pickled, and says what to do instead."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: graphs, their elements and sessions are neither copied nor "
            "pickled; dump_graph(graph) gives bytes, and load_graph(bytes) a graph like it"
        )


class GraphElement(NonCopyable):
    """An operation or tensor of a graph: a shallow copy is the same object, as of a function."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self
