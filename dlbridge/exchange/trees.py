"""Convert every tensor of a nested container.

The classes that are containers are in `_KINDS`, the registries of others in `_REGISTRIES`, and what
else may stand in a tree in `_PLAIN`.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import UserDict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from numbers import Number
from operator import is_
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    ModuleType,
    NoneType,
    NotImplementedType,
)
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, protocol
from dlbridge.shape import TensorShape


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
    framework = exchange.check("convert_tree", to, policies)
    walk = _Walk(lambda leaf: native.convert(leaf, to, **policies), unknown == "keep")
    converter = adapter.converter_of(framework)
    return native.convert_tree(tree, converter, walk.resume, _is_namedtuple, **policies)


class _Walk:
    """One walk through a tree; `above` are the containers around the present node, by address."""

    __slots__ = ("above", "convert", "keeps_unknown")

    def __init__(self, convert: Callable[[Any], Any], keeps_unknown: bool) -> None:
        self.convert = convert
        self.keeps_unknown = keeps_unknown
        self.above: set[int] = set()

    def resume(self, node: Any, path: str, above: list[int]) -> Any:
        """Convert a node that the walk in C leaves to Python, within these containers."""
        self.above = set(above)
        return self.node(node, path)

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
        if self.keeps_unknown or _is_plain(node):
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
        parts = _take_apart(node)
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
    (lambda x: _take_apart(x) is not None, _Walk.rebuild_registered),
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


def _is_namedtuple(node: tuple[Any, ...]) -> bool:
    """Return whether a tuple is of a class that `tuple.__new__` makes, and nothing more."""
    kind = type(node)
    is_named = hasattr(kind, "_fields") and kind.__base__ is tuple and not kind.__dictoffset__
    return is_named and not _is_tensor(node)


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


# ---- classes that somebody registered as containers ---------------------------------------------

# Each registry is asked only where its library is imported: nobody can have registered anything
# with the others.


class _Parts(NamedTuple):
    """One node, taken apart by one level: its children, and how it is made of others again."""

    names: list[str]
    children: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _take_apart(node: Any) -> _Parts | None:
    """Return the parts of a node of a registered class, or None for any other object."""
    for module, way in _REGISTRIES.items():
        if module in sys.modules:
            parts = way(node, sys.modules[module])
            if parts is not None:
                return parts
    return None


def _by_jax(node: Any, tree_util: Any) -> _Parts | None:
    classes = tree_util.default_registry
    if classes.flatten_one_level(node) is None:
        return None
    is_root = iter([True])  # one level is enough: what is in it is walked by the caller
    leaves, structure = tree_util.tree_flatten(node, is_leaf=lambda _: not next(is_root, False))
    parts = _numbered(leaves, structure.unflatten)
    if hasattr(classes, "flatten_one_level_with_keys"):
        keyed, _ = classes.flatten_one_level_with_keys(node)
        return parts._replace(names=[tree_util.keystr((key,)) for key, _ in keyed])
    return parts


def _by_torch(node: Any, pytree: Any) -> _Parts | None:
    way = pytree.SUPPORTED_NODES.get(type(node))
    if way is None:
        return None
    children, context = way.flatten_fn(node)
    return _numbered(children, lambda made: way.unflatten_fn(made, context))


def _by_optree(node: Any, optree: Any) -> _Parts | None:
    spaces = _optree_namespaces(type(node), optree)
    if not spaces:
        return None
    if len(spaces) > 1 and "" not in spaces:
        raise ArgumentError(
            f"convert_tree: {protocol.describe(node)} is registered with optree in the namespaces "
            f"{', '.join(map(repr, spaces))}, and none of them is global; take it apart first"
        )
    space = "" if "" in spaces else spaces[0]
    is_root = iter([True])
    leaves, structure = optree.tree_flatten(
        node, is_leaf=lambda _: not next(is_root, False), none_is_leaf=True, namespace=space
    )
    return _numbered(leaves, lambda made: optree.tree_unflatten(structure, made))


def _optree_namespaces(cls: type, optree: Any) -> list[str]:
    if not hasattr(optree.registry, "_NODETYPE_REGISTRY"):
        return [""] if optree.register_pytree_node.get(cls) is not None else []
    entries = optree.registry._NODETYPE_REGISTRY.values()
    return [entry.namespace for entry in list(entries) if entry.type is cls]


def _numbered(children: Iterable[Any], rebuild: Callable[[list[Any]], Any]) -> _Parts:
    found = list(children)
    return _Parts([f"<{i}>" for i in range(len(found))], found, rebuild)


# By the module that the registry is in.
_REGISTRIES: dict[str, Callable[[Any, Any], _Parts | None]] = {
    "jax.tree_util": _by_jax,
    "torch.utils._pytree": _by_torch,
    "optree": _by_optree,
}


# ---- plain data: it may stand beside tensors and holds none -------------------------------------

_PLAIN = (
    *(NoneType, bool, int, float, complex, str, bytes, bytearray, Number, Enum),
    *(date, time, timedelta, tzinfo, UUID, PurePath, range, slice, re.Pattern),
    *(EllipsisType, NotImplementedType),
    *(type, FunctionType, BuiltinFunctionType, ModuleType, np.ufunc),
    *(np.ndarray, np.generic, np.dtype, DType, Device, TensorShape),
)
# Names of the classes by which frameworks describe tensors, in lower case.
_DESCRIPTIONS = frozenset(
    ("dtype", "datatype", "device", "layout", "memory_format", "size", "tensorshape")
)


def _is_plain(x: Any) -> bool:
    """Return whether `x`, which is no tensor and no container, is plain data."""
    if isinstance(x, (set, frozenset)):
        return all(map(_is_plain, x))
    if isinstance(x, _PLAIN):
        return True
    return type(x).__name__.lower() in _DESCRIPTIONS and _is_of_framework(x)


def _is_of_framework(x: object) -> bool:
    return registry.row_of_root(str(type(x).__module__).partition(".")[0]) is not None
