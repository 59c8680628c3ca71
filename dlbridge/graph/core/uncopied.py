"""Uncopied: what is one of a kind, so that a copy would be something else under its name."""

from __future__ import annotations

from typing import NoReturn, Self


class Uncopied:
    """Refuses to be copied or pickled, and says what to do instead."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: graphs, what is in them, and sessions are neither copied nor "
            "pickled; dump_graph(graph) gives bytes, and load_graph(bytes) a graph like it"
        )


class Part(Uncopied):
    """Part of a graph: a shallow copy is the same object, as with a function or a class."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self
