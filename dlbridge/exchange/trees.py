"""Convert every tensor of a nested container."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any, NoReturn

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.exchange import adapter, protocol


def convert_tree(tree: Any, to: object, /, **policies: Any) -> Any:
    """Return `tree` with every tensor in it converted for the framework `to`.

    Containers are rebuilt, never changed, each as its own class: dict, list, tuple and deque with
    their subclasses (namedtuples too), dataclass instances, and, where optree is installed, every
    node type registered with it. A tuple without tensors stays as it is. All else is a leaf: what
    is no tensor is kept, such as text, sets, UserDict, MappingProxyType, and NumPy's text, dates
    and objects. A failure in one leaf fails the whole call; the converted leaves before it are
    dropped again.

    Args:
        tree: the container, or one tensor.
        to: the framework, as of `convert`.
        **policies: as of `convert`.

    Raises:
        ExchangeError: a leaf cannot be converted; the text ends with the path to it.
        ArgumentError: the tree contains itself, or a container of a class that cannot be rebuilt.

    Example:
        >>> import numpy
        >>> convert_tree({"x": numpy.ones(2), "name": "a"}, "dlbridge")["name"]
        'a'
    """
    return _Walk(lambda leaf: native.convert(leaf, to, **policies)).node(tree, "")


class _Walk:
    """One walk through a tree; `above` are the containers around the present node, by address."""

    __slots__ = ("above", "convert")

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert
        self.above: set[int] = set()

    def node(self, node: Any, path: str) -> Any:
        try:
            if _is_tensor(node):
                return self.convert(node)
        except Exception as error:
            if path:
                error.add_note(f"at {path} of the tree")
            raise
        rebuild = next((way for is_of_kind, way in _KINDS if is_of_kind(node)), None)
        if rebuild is None:
            return node
        with self._inside(node, path):
            return rebuild(self, node, path)

    @contextmanager
    def _inside(self, node: Any, path: str) -> Iterator[None]:
        if id(node) in self.above:
            raise ArgumentError(f"convert_tree: the tree contains itself{_at(path)}")
        self.above.add(id(node))
        try:
            yield
        finally:
            self.above.remove(id(node))

    def rebuild_dataclass(self, node: Any, path: str) -> Any:
        made = {
            field.name: self.node(getattr(node, field.name), f"{path}.{field.name}")
            for field in fields(node)
            if hasattr(node, field.name)
        }
        rebuilt = _blank(node, path)
        for name, value in made.items():
            object.__setattr__(rebuilt, name, value)
        if isinstance(node, dict):  # whose items may be its fields once more
            old = {id(getattr(node, name)): value for name, value in made.items()}
            for key, value in node.items():
                known = id(value) in old
                new = old[id(value)] if known else self.node(value, f"{path}[{key!r}]")
                _put(rebuilt, key, new, path)
        return rebuilt

    def rebuild_dict(self, node: dict[Any, Any], path: str) -> Any:
        items = {key: self.node(value, f"{path}[{key!r}]") for key, value in node.items()}
        return items if type(node) is dict else _refill(node, items, path)

    def rebuild_list(self, node: Any, path: str) -> Any:
        items = self._items(node, path)
        return items if type(node) is list else _refill(node, dict(enumerate(items)), path)

    def rebuild_tuple(self, node: tuple[Any, ...], path: str) -> Any:
        items = self._items(node, path)
        return node if all(map(is_, items, node)) else _make_tuple(node, items, path)

    def _items(self, node: Any, path: str) -> list[Any]:
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(node)]

    def rebuild_registered(self, node: Any, path: str) -> Any:
        """Rebuild a node of a type that somebody registered with optree; others are leaves."""
        optree = sys.modules["optree"]
        is_root = iter([True])  # one level is enough: what is in it is walked here
        leaves, structure = optree.tree_flatten(node, is_leaf=lambda _: not next(is_root, False))
        if structure.is_leaf():
            return node
        made = [self.node(leaf, f"{path}<{i}>") for i, leaf in enumerate(leaves)]
        return optree.tree_unflatten(structure, made)


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[_Walk, Any, str], Any]], ...] = (
    (lambda x: is_dataclass(x) and not isinstance(x, type), _Walk.rebuild_dataclass),
    (lambda x: isinstance(x, dict), _Walk.rebuild_dict),
    (lambda x: isinstance(x, (list, deque)), _Walk.rebuild_list),
    (lambda x: isinstance(x, tuple), _Walk.rebuild_tuple),
    (lambda _: "optree" in sys.modules, _Walk.rebuild_registered),
)


def _is_tensor(node: Any) -> bool:
    if isinstance(node, (np.ndarray, np.generic)):
        return node.dtype.kind not in "USTMmO" and node.dtype.type is not np.void
    if isinstance(node, native.TensorBase) or adapter.adapter_of_type(type(node)) is not None:
        return True
    return protocol.is_spoken_by(node)


def _refill(node: Any, items: dict[Any, Any], path: str) -> Any:
    """Return a copy of a container of its own class with these items in place of the old ones."""
    rebuilt = _copy(node, path)
    for key, value in items.items():
        _put(rebuilt, key, value, path)
    return rebuilt


def _make_tuple(node: tuple[Any, ...], items: list[Any], path: str) -> Any:
    kind = type(node)
    try:  # a structseq is made by its own constructor alone, a namedtuple needs none
        made = kind(items) if hasattr(kind, "n_fields") else tuple.__new__(kind, items)
    except Exception as error:  # noqa: BLE001  (the class may raise anything)
        _refuse(node, error, path)
    getattr(made, "__dict__", {}).update(getattr(node, "__dict__", {}))
    return made


def _blank(node: Any, path: str) -> Any:
    """Return a second dataclass instance with the attributes of `node`, without `__init__`."""
    if isinstance(node, (dict, list, tuple, BaseException)):
        return _copy(node, path)
    made = object.__new__(type(node))
    for name, value in getattr(node, "__dict__", {}).items():
        object.__setattr__(made, name, value)
    return made


def _copy(node: Any, path: str) -> Any:
    try:
        made = copy(node)
    except Exception as error:  # noqa: BLE001  (the class may raise anything)
        _refuse(node, error, path)
    if made is node or type(made) is not type(node):
        _refuse(node, "its copy is of another class, or itself", path)
    return made


def _put(rebuilt: Any, key: Any, value: Any, path: str) -> None:
    try:
        rebuilt[key] = value
    except Exception as error:  # noqa: BLE001  (the class may raise anything)
        _refuse(rebuilt, error, path)


def _refuse(node: Any, why: object, path: str) -> NoReturn:
    raise ArgumentError(
        f"convert_tree: the {protocol.describe(node)}{_at(path)} cannot be rebuilt: {why}"
    ) from (why if isinstance(why, BaseException) else None)


def _at(path: str) -> str:
    return f" at {path}" if path else ""
