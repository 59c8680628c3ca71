"""Convert every tensor of a nested container.

The classes that are containers are in `_KINDS`; those that somebody registered, and how they are
taken apart, in `registered_nodes`; what else may stand in a tree, in `plain_data`.
"""

from __future__ import annotations

import sys
from array import array
from collections import UserDict, deque
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from operator import is_
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, protocol
from dlbridge.exchange.plain_data import is_plain
from dlbridge.exchange.registered_nodes import take_apart


def convert_tree(tree: Any, to: object, /, *, unknown: str = "refuse", **policies: Any) -> Any:
    """Return `tree` with every tensor in it converted for the framework `to`.

    Containers are rebuilt, never changed, each as its own class: dict, UserDict, list, tuple and
    deque with their subclasses (namedtuples included), instances of dataclasses and attrs classes,
    and every class registered with jax.tree_util, torch.utils._pytree or optree (in any
    namespace), as far as these libraries are imported. A tuple without tensors stays as it is. Some
    have no second object of their class to be rebuilt as: a torch module becomes its converted
    `state_dict()`, any other mapping (a NumPy npz file) a dict, the values and items of a dict a
    list.

    A tensor is all that `from_dlpack` takes, except bytes and bytearray; a DLPack capsule is
    consumed. Plain data is kept: numbers, text, bytes, None, enumerations, dates, paths, classes,
    functions, dtypes and devices, sets of these, and NumPy's arrays of text, dates and objects.

    A failure in one leaf fails the whole call; the converted leaves before it are dropped again.

    Args:
        tree: the container, or one tensor.
        to: the framework, as of `convert`.
        unknown: what to do with a leaf that is neither a tensor nor plain data: "refuse" the tree,
            or "keep" the leaf as it is.
        **policies: as of `convert`.

    Raises:
        ExchangeError: a leaf cannot be converted; the text ends with the path to it.
        UnsupportedTypeError: a leaf is neither a tensor nor plain data; the text has its path.
        ArgumentError: the tree contains itself, or a container of a class that cannot be rebuilt;
            or the target or a policy is unknown, which is checked before the tree is looked at.

    Example:
        >>> import numpy
        >>> convert_tree({"x": numpy.ones(2), "name": "a"}, "dlbridge")["name"]
        'a'
    """
    if unknown not in ("refuse", "keep"):
        raise ArgumentError(
            f"convert_tree: unknown must be one of 'refuse', 'keep', got {unknown!r}"
        )
    exchange.check("convert_tree", to, policies)
    keeps = unknown == "keep"
    return _Walk(lambda leaf: native.convert(leaf, to, **policies), keeps).node(tree, "")


class _Walk:
    """One walk through a tree; `above` are the containers around the present node, by address."""

    __slots__ = ("above", "convert", "keeps_unknown")

    def __init__(self, convert: Callable[[Any], Any], keeps_unknown: bool) -> None:
        self.convert = convert
        self.keeps_unknown = keeps_unknown
        self.above: set[int] = set()

    def node(self, node: Any, path: str) -> Any:
        if type(node) in _PLAIN_AT_A_GLANCE:
            return node
        try:
            if _is_tensor(node):
                return self.convert(node)
        except Exception as error:
            if path:
                error.add_note(f"at {path} of the tree")
            raise
        rebuild = next((way for is_of_kind, way in _KINDS if is_of_kind(node)), None)
        if rebuild is not None:
            with self._inside(node, path):
                return rebuild(self, node, path)
        if self.keeps_unknown or is_plain(node):
            return node
        raise UnsupportedTypeError(
            f"convert_tree: the {protocol.describe(node)}{_at(path)} is neither a tensor, a "
            f"container nor plain data{protocol.advise(node)}; "
            'pass unknown="keep" to keep it as it is'
        )

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
        return self._rebuild_fields(node, [field.name for field in fields(node)], path)

    def rebuild_attrs(self, node: Any, path: str) -> Any:
        names = [field.name for field in type(node).__attrs_attrs__]
        return self._rebuild_fields(node, names, path)

    def _rebuild_fields(self, node: Any, names: list[str], path: str) -> Any:
        made = {
            name: self.node(getattr(node, name), f"{path}.{name}")
            for name in names
            if hasattr(node, name)
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
        items = self.rebuild_mapping(node, path)
        return items if type(node) is dict else _refill(node, items, path)

    def rebuild_mapping(self, node: Mapping[Any, Any], path: str) -> dict[Any, Any]:
        return {key: self.node(value, f"{path}[{key!r}]") for key, value in node.items()}

    def rebuild_proxy(self, node: Any, path: str) -> Any:
        return MappingProxyType(self.rebuild_mapping(node, path))

    def rebuild_module(self, node: Any, path: str) -> Any:
        return self.node(node.state_dict(), path)

    def rebuild_list(self, node: Any, path: str) -> Any:
        items = self._items(node, path)
        is_plain_list = type(node) is list or isinstance(node, (ValuesView, ItemsView))
        return items if is_plain_list else _refill(node, dict(enumerate(items)), path)

    def rebuild_tuple(self, node: tuple[Any, ...], path: str) -> Any:
        items = self._items(node, path)
        return node if all(map(is_, items, node)) else _make_tuple(node, items, path)

    def _items(self, node: Any, path: str) -> list[Any]:
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(node)]

    def rebuild_registered(self, node: Any, path: str) -> Any:
        parts = take_apart(node)
        assert parts is not None
        return parts.rebuild(
            [
                self.node(child, path + name)
                for name, child in zip(parts.names, parts.children, strict=True)
            ]
        )


_PLAIN_AT_A_GLANCE = frozenset((type(None), bool, int, float, complex, str, bytes))


def _is_module(node: Any) -> bool:
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(node, nn.Module)


# In this order: who registers a class says more than what the class derives from, except of the
# containers that every registry knows, whose order and attributes are kept better here.
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[_Walk, Any, str], Any]], ...] = (
    (lambda x: isinstance(x, dict) and not is_dataclass(x), _Walk.rebuild_dict),
    (lambda x: isinstance(x, (list, deque)), _Walk.rebuild_list),
    (lambda x: isinstance(x, tuple), _Walk.rebuild_tuple),
    (_is_module, _Walk.rebuild_module),
    (lambda x: take_apart(x) is not None, _Walk.rebuild_registered),
    (lambda x: is_dataclass(x) and not isinstance(x, type), _Walk.rebuild_dataclass),
    (lambda x: hasattr(type(x), "__attrs_attrs__"), _Walk.rebuild_attrs),
    (lambda x: isinstance(x, UserDict), _Walk.rebuild_dict),
    (lambda x: isinstance(x, MappingProxyType), _Walk.rebuild_proxy),
    (lambda x: isinstance(x, Mapping), _Walk.rebuild_mapping),
    (lambda x: isinstance(x, (ValuesView, ItemsView)), _Walk.rebuild_list),
)


def _is_tensor(node: Any) -> bool:
    if isinstance(node, (np.ndarray, np.generic)):
        return node.dtype.kind not in "USTMmO" and node.dtype.type is not np.void
    if isinstance(node, native.TensorBase) or adapter.adapter_of_type(type(node)) is not None:
        return True
    if isinstance(node, (array, memoryview)) or protocol.is_capsule(node):
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
