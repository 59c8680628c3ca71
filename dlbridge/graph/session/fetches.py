"""Fetches: the values that a session returns, in structures of any depth.

`register` adds types of objects that stand for several fetches, such as sparse tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from dlbridge.graph.core.graph import Graph, element
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.signals import not_from_handler

Combine = Callable[[list[Any]], Any]


class Parts(NamedTuple):
    """The components of a structure.

    Attributes:
        items: the components, which are fetches themselves.
        combine: a function from the list of their values to the structure.
        key: hashable; differs from that of other structures of the same type.
    """

    items: Sequence[Any]
    combine: Combine
    key: Any = None


Splitter = Callable[[Any], Parts]

LEAVES = frozenset({Tensor, Operation, str, bytes})
"""Types of single fetches that are keys by themselves."""


class Fetches(NamedTuple):
    """A structure of fetches, resolved in a graph.

    Attributes:
        tensors: each once, in order of appearance.
        targets: the operations, each once.
        build: a function from the tuple of values to the structure; None where the only value is
            returned as it is.
    """

    tensors: tuple[Tensor, ...]
    targets: tuple[Operation, ...]
    build: Callable[[Any], Any] | None


def resolve(graph: Graph, fetches: Any) -> Fetches:
    """Return the tensors and operations of a structure of fetches.

    Raises:
        TypeError: something in it cannot be fetched.
        ValueError: it is not in the graph, or must not be fetched.
    """
    if type(fetches) is Tensor:
        return Fetches((_element(graph, fetches),), (), None)
    resolver = _Resolver(graph)
    build = resolver.read(fetches)
    return Fetches(tuple(resolver.tensors), tuple(resolver.targets), build)


class _Resolver:
    """Collects the tensors and operations of one structure."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[Tensor, int] = {}
        self.targets: dict[Operation, None] = {}

    def read(self, fetch: Any) -> Callable[[Any], Any]:
        """Return the function from the tuple of all values to that of one fetch."""
        split = None if type(fetch) in LEAVES else splitter(type(fetch))
        if split is not None:
            return self._read_parts(split(fetch))
        found = _element(self.graph, fetch)
        if isinstance(found, Tensor):
            return itemgetter(self.tensors.setdefault(found, len(self.tensors)))
        self.targets[found] = None
        return _nothing

    def _read_parts(self, parts: Parts) -> Callable[[Any], Any]:
        readers = [self.read(each) for each in parts.items]
        combine = parts.combine
        if readers and all(type(each) is itemgetter for each in readers):
            numbers = [each.__reduce__()[1][0] for each in readers]
            if len(numbers) == 1:
                (only,) = numbers
                return lambda values: combine([values[only]])
            take = itemgetter(*numbers)
            return lambda values: combine(take(values))
        return lambda values: combine([read(values) for read in readers])


def _nothing(_values: Any) -> None:
    return None


def _element(graph: Graph, fetch: Any) -> Any:
    try:
        found = element(graph, fetch)
    except not_from_handler(TypeError) as error:
        hint = " None cannot be fetched." if fetch is None else ""
        raise TypeError(
            f"Fetch argument {fetch!r} has invalid type {type(fetch).__name__!r}, must be a "
            f"Tensor, an Operation, a name, or a list, tuple or dict of these.{hint} ({error})"
        ) from None
    except not_from_handler(ValueError, KeyError) as error:
        text = error.args[0] if error.args else error
        raise ValueError(
            f"Fetch argument {fetch!r} cannot be interpreted as a Tensor or Operation. ({text})"
        ) from None
    if not graph.is_fetchable(found):
        raise ValueError(f"{found!r} has been marked as not fetchable.")
    return found


# ---- keys --------------------------------------------------------------------------------------


def key_of(fetches: Any) -> Any:
    """Return a hashable key, equal for structures of the same form with the same fetches.

    An object that cannot be fetched is its own key.
    """
    kind = type(fetches)
    if kind in LEAVES:
        return fetches
    if (kind is list or kind is tuple) and LEAVES.issuperset(map(type, fetches)):
        return kind, *fetches
    split = splitter(kind)
    if split is None:
        return fetches
    parts = split(fetches)
    return kind, parts.key, *map(key_of, parts.items)


# ---- structures --------------------------------------------------------------------------------

_SPLITTERS: dict[type, Splitter | None] = {}


def register(kind: type, split: Splitter) -> None:
    """Let sessions fetch objects of a type and its subclasses by their components.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> register(Pair, lambda pair: Parts((pair.a, pair.b), tuple))
    """
    _REGISTERED[kind] = split
    _SPLITTERS.clear()


_REGISTERED: dict[type, Splitter] = {}


def splitter(kind: type) -> Splitter | None:
    """Return the function that splits objects of a type, or None for a single fetch."""
    try:
        return _SPLITTERS[kind]
    except not_from_handler(KeyError):  # not looked up again: another thread may clear the table
        found = _SPLITTERS[kind] = _find_splitter(kind)
        return found


def _find_splitter(kind: type) -> Splitter | None:
    for each in kind.__mro__:
        if each in _REGISTERED:
            return _REGISTERED[each]
    if issubclass(kind, Tensor | Operation | str | bytes):
        return None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _split_named_tuple
    for base, split in _BASES:
        if issubclass(kind, base):
            return split
    if hasattr(kind, "__attrs_attrs__"):
        return _split_attrs
    return _split_dataclass if dataclasses.is_dataclass(kind) else None


def _split_tuple(fetches: tuple[Any, ...]) -> Parts:
    return Parts(fetches, tuple)


def _split_named_tuple(fetches: Any) -> Parts:
    return Parts(fetches, type(fetches)._make)


def _split_mapping(fetches: Mapping[Any, Any]) -> Parts:
    """Split a dict; a defaultdict keeps its factory."""
    kind: Any = type(fetches)
    keys = tuple(fetches)
    factory = getattr(fetches, "default_factory", None)
    first = () if not hasattr(fetches, "default_factory") else (factory,)

    def combine(values: Sequence[Any]) -> Any:
        return kind(*first, zip(keys, values, strict=True))

    return Parts(list(fetches.values()), combine, (keys, *map(type, keys), factory))


def _split_attrs(fetches: Any) -> Parts:
    kind: Any = type(fetches)
    names = [(each.name, each.name.lstrip("_")) for each in kind.__attrs_attrs__ if each.init]
    return Parts(
        [getattr(fetches, name) for name, _ in names],
        lambda values: kind(
            **{argument: value for (_, argument), value in zip(names, values, strict=True)}
        ),
    )


def _split_dataclass(fetches: Any) -> Parts:
    kind: Any = type(fetches)
    names = [each.name for each in dataclasses.fields(fetches) if each.init]
    return Parts(
        [getattr(fetches, name) for name in names],
        lambda values: kind(**dict(zip(names, values, strict=True))),
    )


_BASES: tuple[tuple[type, Splitter], ...] = (
    (list, lambda given: Parts(given, list)),
    (tuple, _split_tuple),
    (Mapping, _split_mapping),
)
