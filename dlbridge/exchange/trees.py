"""Convert every tensor of a nested container.

The classes that are containers are in `_KINDS`, the registries of others in `_REGISTRIES`, and what
else may stand in a tree in `_PLAIN`.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from functools import partial
from numbers import Number
from operator import is_
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any, Literal, NamedTuple, NoReturn, Unpack
from uuid import UUID

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, DLBridgeError, UnsupportedTypeError
from dlbridge.exchange import adapter, exchange, protocol
from dlbridge.exchange.context import Policies
from dlbridge.shape import TensorShape
from dlbridge.signals import not_from_handler


def convert_tree(
    tree: Any,
    /,
    to: object,
    *,
    unknown: Literal["refuse", "keep"] = "refuse",
    **policies: Unpack[Policies],
) -> Any:
    """Return `tree` with every tensor in it converted for the framework `to`.

    Containers are rebuilt, never changed, each as its own class: every class registered with
    jax.tree_util, torch.utils._pytree or optree (in any namespace), as far as these libraries are
    imported; dict, UserDict, list, tuple and deque with their subclasses (namedtuples included),
    instances of dataclasses and attrs classes, slices, and NumPy's arrays of objects. A class that
    is registered is a container also where its objects have `__dlpack__`. Tensors in further
    attributes of these objects, such as cached properties, are converted as well. A tuple without
    tensors stays as it is. Some have no second object of their class to be rebuilt as: a torch
    module becomes its converted `state_dict()`, any other mapping (a NumPy npz file) a dict, the
    values and items of a dict a list, a table of pandas, polars or pyarrow a dict of its columns.

    An object that occurs twice in the tree occurs twice in the result: tied weights stay tied.

    A tensor is all that `from_dlpack` takes, except bytes and bytearray; a DLPack capsule is
    consumed. A random key of JAX has no memory of its own: it becomes its `jax.random.key_data`,
    and in JAX a key again. Plain data is kept: numbers, text, bytes, None, enumerations, dates,
    paths, classes, functions of any kind (compiled ones and kernels included) that bind no tensor,
    dtypes, devices, shardings, sets of these, NumPy's arrays of text and dates, and TensorFlow's
    tensors of text.

    A failure in one leaf fails the whole call; the converted leaves before it are dropped again.

    Args:
        tree: the container, or one tensor.
        to: the framework, as of `convert`.
        unknown: what to do with a leaf that is neither a tensor nor plain data, or is a key of
            JAX: "refuse" the tree (of a key, take the data), or "keep" the leaf as it is.
        **policies: as of `convert`.

    Raises:
        ExchangeError: a leaf cannot be converted; the text has the path to it.
        UnsupportedTypeError: a leaf is neither a tensor nor plain data, a tensor is the key of a
            dict, or an array has fields; the text has its path.
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
    converter = adapter.converter_of(framework)
    walks: list[_Walk] = []

    def resume(node: Any, path: str, above: set[int], memo: native.TreeMemo) -> Any:
        if not walks:
            walk = _Walk(lambda leaf: native.convert(leaf, to, **policies), unknown == "keep")
            walk.framework, walk.memo, walk.in_c = framework, memo, in_c
            walk.calls = f"to_{framework.name}", "from_dlpack"
            walks.append(walk)
        return walks[0].resume(node, path, above)

    def in_c(node: Any, walk: _Walk, path: str) -> Any:
        return native.convert_tree(
            *(node, converter, resume, _is_ordinary, walk.memo, path, walk.above), **policies
        )

    return native.convert_tree(tree, converter, resume, _is_ordinary, **policies)


def is_tree(x: Any) -> bool:
    """Return whether an object is a container of tensors, and no tensor itself.

    A list, a tuple or an array of objects is one if it holds a tensor, or a container other than a
    list of numbers, or nothing but None.
    """
    if _is_tensor(x):
        return False
    ahead, seen = [x], {}
    while ahead:
        node = ahead.pop()
        if type(node) in (list, tuple) or _is_of_objects(node):
            if id(node) in seen:
                continue
            seen[id(node)] = node  # which keeps it alive, so that no address is used twice
            items = list(node) if isinstance(node, (list, tuple)) else node.ravel().tolist()
            if items and all(item is None for item in items):
                return True
            ahead += items
        elif _is_tensor(node) or _is_registered(node) or any(is_it(node) for is_it, _ in _KINDS):
            return True
    return False


def _is_of_objects(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "O"


def tensors_of(tree: object, *, keeps_unknown: bool = False) -> list[tuple[str, Any]]:
    """Return the tensors of a container, each once, with the path to it."""
    found: dict[int, tuple[str, Any]] = {}

    def keep(leaf: Any) -> Any:
        found.setdefault(id(leaf), (walk.path, leaf))
        return leaf

    walk = _PathWalk(keep, keeps_unknown)
    try:
        walk.node(tree, "")
    finally:
        del walk.convert  # it refers to the walk: a cycle, which would hold the tensors
    return list(found.values())


def with_tensors(tree: Any, tensors: Iterable[Any], *, keeps_keys: bool = False) -> Any:
    """Return a container with others in place of its tensors, in the order of `tensors_of`.

    Args:
        tree: the container.
        tensors: the others.
        keeps_keys: whether those in the place of random keys are their data, and become keys.
    """
    new = iter(tensors)
    walk = _Walk(lambda _: next(new), False)
    walk.keeps_keys = keeps_keys
    return walk.node(tree, "")


class _Walk:
    """One walk through a tree.

    Attributes:
        memo: what has become of the tensors and containers so far.
        framework: the target, to which its own random keys go as keys.
        keeps_keys: whether all random keys go as keys.
        in_c: continues the walk in C, which knows plain containers; None walks here.
        calls: in whose name `convert` refuses; the refusal of a leaf is that of `convert_tree`.
        above: the containers around the present node, by address.
        keeps_unknown: whether leaves of unknown classes are kept.
        is_aside: whether the present node is reached through an attribute that is no field. There,
            leaves of unknown classes are kept, and a container may refer to one around it.
    """

    framework: adapter.Framework | None = None
    keeps_keys = False
    in_c: Callable[[Any, _Walk, str], Any] | None = None
    calls: tuple[str, ...] = ()

    def __init__(self, convert: Callable[[Any], Any], keeps_unknown: bool) -> None:
        self.convert = convert
        self.keeps_unknown = keeps_unknown
        self.memo = native.TreeMemo()
        self.above: set[int] = set()
        self.is_aside = False
        self.registered: dict[int, tuple[type, bool]] = {}

    def resume(self, node: Any, path: str, above: set[int]) -> Any:
        """Convert a node that the walk in C leaves to Python, within these containers."""
        before, self.above = self.above, above
        try:
            return self.node(node, path)
        finally:
            self.above = before

    def node(self, node: Any, path: str) -> Any:
        if type(node) in _PLAIN_AT_A_GLANCE:
            return node
        if self.is_aside or id(node) not in self.above:
            known = self.memo.find(node)
            if known is not None:
                return known
        made = self._make(node, path)
        self.memo.keep(node, made)
        return made

    def _make(self, node: Any, path: str) -> Any:
        if self._is_registered(node):
            with self._inside(node, path):
                return self._rebuild_registered(node, path)
        try:
            key = _take_key(node)
            if key is not None:
                return node if self.keeps_unknown else self._convert_key(key)
            if _is_tensor(node):
                return self.convert(node)
        except Exception as error:
            call, _, text = str(error).partition(": ")
            if isinstance(error, DLBridgeError) and call in self.calls:
                error.args = (f"convert_tree: {f'at {path}: ' if path else ''}{text}",)
            elif path:
                error.add_note(f"at {path} of the tree")
            raise
        rebuild = next((way for is_of_kind, way in _KINDS if is_of_kind(node)), None)
        if rebuild is not None:
            with self._inside(node, path):
                return rebuild(self, node, path)
        if not (self.keeps_unknown or self.is_aside or _is_plain(node)):
            _refuse_leaf(node, path)
        return node

    @contextmanager
    def _inside(self, node: Any, path: str) -> Iterator[None]:
        if id(node) in self.above:
            raise ArgumentError(f"convert_tree: the tree contains itself{_at(path)}")
        self.above.add(id(node))
        try:
            yield
        finally:
            self.above.remove(id(node))

    def _is_registered(self, node: Any) -> bool:
        kind = type(node)
        known = self.registered.get(id(kind))
        if known is None:
            known = self.registered[id(kind)] = kind, _is_registered(node)
        return known[1]

    def _convert_key(self, key: adapter.Key) -> Any:
        data = self.convert(key.data)
        is_kept = self.keeps_keys or key.framework is self.framework
        return key.remake(data) if is_kept else data

    # ---- attributes ----

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
        self.memo.keep(node, rebuilt)
        for name, value in made.items():
            object.__setattr__(rebuilt, name, value)
        if isinstance(node, dict):  # whose items may be its fields once more
            self._refill(rebuilt, self.rebuild_mapping(node, path), path)
        self._convert_attributes(rebuilt, path, made)
        return rebuilt

    def _convert_attributes(self, made: Any, path: str, done: Iterable[str] = ()) -> None:
        """Convert the attributes that the copy of a container shares with the container."""
        aside, self.is_aside = self.is_aside, True
        for name, value in _attributes(made).items():
            if name not in done:
                new = self.node(value, f"{path}.{name}")
                if new is not value:
                    _set_attribute(made, name, new)
        self.is_aside = aside

    # ---- items ----

    def rebuild_dict(self, node: Any, path: str) -> Any:
        if type(node) is dict:
            return self.rebuild_mapping(node, path)
        return self._rebuild_items(node, lambda: self.rebuild_mapping(node, path), path)

    def rebuild_mapping(self, node: Mapping[Any, Any], path: str) -> dict[Any, Any]:
        items = dict(node.items())
        if self.in_c is not None and all(type(key) in _PLAIN_AT_A_GLANCE for key in items):
            made: dict[Any, Any] = self.in_c(items, self, path)
            return made
        made = {}
        for key, value in items.items():
            if type(key) not in _PLAIN_AT_A_GLANCE and _holds_tensor(key):
                raise UnsupportedTypeError(
                    f"convert_tree: a key of the {protocol.describe(node)}{_at(path)} is or holds "
                    f"a tensor ({protocol.describe(key)}), and keys stay as they are; use names "
                    "for keys, as in a state_dict"
                )
            made[key] = self.node(value, f"{path}[{key!r}]")
        return made

    def rebuild_table(self, node: Any, path: str) -> Any:
        columns = adapter.columns_of(node) or []
        named = dict(columns)
        if len(named) < len(columns):
            names = [name for name, _ in columns]
            twice = next(name for name in names if names.count(name) > 1)
            _refuse(node, f"two of its columns are called {twice!r}", path)
        return self.rebuild_mapping(named, path)

    def rebuild_proxy(self, node: Any, path: str) -> Any:
        return MappingProxyType(self.rebuild_mapping(node, path))

    def rebuild_module(self, node: Any, path: str) -> Any:
        return self.node(_tie(node.state_dict()), path)

    def rebuild_list(self, node: Any, path: str) -> Any:
        if type(node) is list or isinstance(node, (ValuesView, ItemsView)):
            return self._items(node, path)
        return self._rebuild_items(node, lambda: dict(enumerate(self._items(node, path))), path)

    def _rebuild_items(self, node: Any, items: Callable[[], dict[Any, Any]], path: str) -> Any:
        """Return a copy of a container of its own class with its items and attributes converted."""
        rebuilt = _copy(node, path)
        self.memo.keep(node, rebuilt)  # an attribute of what is in it may refer to it
        self._refill(rebuilt, items(), path)
        if getattr(node, "__dict__", None) is node:
            rebuilt.__dict__ = rebuilt
        else:  # the items of a UserDict are in its `data`
            self._convert_attributes(rebuilt, path, ("data",) if isinstance(node, UserDict) else ())
        return rebuilt

    @staticmethod
    def _refill(rebuilt: Any, items: dict[Any, Any], path: str) -> None:
        for key, value in items.items():
            try:
                rebuilt[key] = value
            except not_from_handler(Exception) as error:  # the class may raise anything
                _refuse(rebuilt, error, path)

    def rebuild_tuple(self, node: tuple[Any, ...], path: str) -> Any:
        items = self._items(node, path)
        is_same = all(map(is_, items, node))
        if is_same and not _attributes(node):
            return node
        made = _make_tuple(node, items, path)
        self._convert_attributes(made, path)
        old, new = _attributes(node), _attributes(made)
        return node if is_same and all(new[name] is old[name] for name in old) else made

    def _items(self, node: Any, path: str) -> Any:
        items = list(node)
        if self.in_c is not None:
            return self.in_c(items, self, path)
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(items)]

    def rebuild_objects(self, node: Any, path: str) -> Any:
        """Return a NumPy array of objects, which may be tensors."""
        made = np.array(node, copy=True, subok=True)
        for at, item in np.ndenumerate(node):
            made[at] = self.node(item, f"{path}[{', '.join(map(str, at))}]")
        is_same = all(map(is_, made.ravel("K"), node.ravel("K")))
        return node if is_same else made

    def rebuild_slice(self, node: slice, path: str) -> Any:
        old = [node.start, node.stop, node.step]
        new = [
            self.node(x, f"{path}.{name}")
            for x, name in zip(old, ("start", "stop", "step"), strict=True)
        ]
        return node if all(map(is_, old, new)) else slice(*new)

    def _rebuild_registered(self, node: Any, path: str) -> Any:
        parts = _take_apart(node)
        assert parts is not None
        children = [
            self.node(child, path + name)
            for name, child in zip(parts.names, parts.children, strict=True)
        ]
        if isinstance(node, tuple) and all(map(is_, children, parts.children)):
            return node
        return parts.rebuild(children)


class _PathWalk(_Walk):
    """A walk that knows where it is.

    Attributes:
        path: to the present node.
    """

    path = ""

    def _make(self, node: Any, path: str) -> Any:
        self.path = path
        return super()._make(node, path)


_PLAIN_AT_A_GLANCE = frozenset((type(None), bool, int, float, complex, str, bytes))


def is_module(node: Any) -> bool:
    """Return whether an object is a torch.nn.Module."""
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(node, nn.Module)


# In this order; classes that somebody registered come before all of them.
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[_Walk, Any, str], Any]], ...] = (
    (lambda x: isinstance(x, dict) and not is_dataclass(x), _Walk.rebuild_dict),
    (lambda x: isinstance(x, (list, deque)), _Walk.rebuild_list),
    (lambda x: isinstance(x, tuple), _Walk.rebuild_tuple),
    (is_module, _Walk.rebuild_module),
    (lambda x: is_dataclass(x) and not isinstance(x, type), _Walk.rebuild_dataclass),
    (lambda x: hasattr(type(x), "__attrs_attrs__"), _Walk.rebuild_attrs),
    (lambda x: isinstance(x, UserDict), _Walk.rebuild_dict),
    (lambda x: isinstance(x, MappingProxyType), _Walk.rebuild_proxy),
    (lambda x: isinstance(x, Mapping), _Walk.rebuild_mapping),
    (lambda x: isinstance(x, (ValuesView, ItemsView)), _Walk.rebuild_list),
    (lambda x: isinstance(x, slice), _Walk.rebuild_slice),
    (_is_of_objects, _Walk.rebuild_objects),
    (lambda x: adapter.columns_of(x) is not None, _Walk.rebuild_table),
)


def _is_tensor(node: Any) -> bool:
    if isinstance(node, (np.ndarray, np.generic)):
        return node.dtype.kind not in "USTMmO" and node.dtype.type is not np.void
    kind = type(node)
    found = adapter.adapter_of_type(kind)
    if isinstance(node, native.TensorBase) or found is not None:
        return found is None or not found.is_text(node)
    if adapter.holder_of_type(kind) is not None:
        return True
    if isinstance(node, (array, memoryview)) or protocol.is_capsule(node):
        return True
    return protocol.is_spoken_by(node)


def _is_text(node: Any) -> bool:
    """Return whether a framework has made this array of text."""
    found = adapter.adapter_of_type(type(node))
    return found is not None and found.is_text(node)


def _take_key(node: Any) -> adapter.Key | None:
    """Return what a random key of a framework is made of, or None for any other object."""
    found = adapter.adapter_of_type(type(node))
    return None if found is None else found.take_key(node)


def _is_ordinary(node: Any) -> bool:
    """Return whether C may take objects of this class, a tuple's or that of a tensor.

    Of tuples it takes those that `tuple.__new__` makes, and which have nothing more.
    """
    if not isinstance(node, tuple):
        return not _is_registered(node)
    kind = type(node)
    is_named = hasattr(kind, "_fields") and kind.__base__ is tuple and not kind.__dictoffset__
    return is_named and not _is_tensor(node) and not _is_registered(node)


def _tie(state: Any) -> Any:
    """Return a module's state with one tensor for parameters that share their memory.

    `state_dict` makes a new tensor of each name, also of those that share a parameter.
    """
    first: dict[Any, Any] = {}
    for name, x in list(state.items()):
        if type(x) is sys.modules["torch"].Tensor and x.numel() and x.device.type != "meta":
            layout = x.data_ptr(), x.dtype, x.device, x.shape, x.stride()
            state[name] = first.setdefault(layout, x)
    return state


# ---- what a container is rebuilt from -----------------------------------------------------------


def _attributes(node: object) -> dict[str, Any]:
    """Return what the instance itself holds, in its `__dict__` and its slots, by name."""
    found = dict(getattr(node, "__dict__", {}))
    for cls in type(node).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{cls.__name__.lstrip('_')}{slot}" if is_private else slot
            if name not in ("__dict__", "__weakref__") and hasattr(node, name):
                found[name] = getattr(node, name)
    return found


def _set_attribute(made: object, name: str, value: object) -> None:
    held = getattr(made, "__dict__", {})
    if name in held:  # there may be a descriptor of that name, such as a cached property
        held[name] = value
    else:
        object.__setattr__(made, name, value)


def _make_tuple(node: tuple[Any, ...], items: list[Any], path: str) -> Any:
    kind = type(node)
    try:  # a structseq is made by its own constructor alone, a namedtuple needs none
        made = kind(items) if hasattr(kind, "n_fields") else tuple.__new__(kind, items)
    except not_from_handler(Exception) as error:  # the class may raise anything
        _refuse(node, error, path)
    getattr(made, "__dict__", {}).update(getattr(node, "__dict__", {}))
    return made


def _blank(node: Any, path: str) -> Any:
    """Return a second dataclass instance with the attributes of `node`, without `__init__`."""
    if isinstance(node, (dict, list, tuple, BaseException)):
        return _copy(node, path)
    made = object.__new__(type(node))
    for name, value in _attributes(node).items():
        object.__setattr__(made, name, value)
    return made


def _copy(node: Any, path: str) -> Any:
    try:
        made = copy(node)
    except not_from_handler(Exception) as error:  # the class may raise anything
        _refuse(node, error, path)
    if made is node or type(made) is not type(node):
        _refuse(node, "its copy is of another class, or itself", path)
    return made


def _refuse(node: Any, why: object, path: str) -> NoReturn:
    raise ArgumentError(
        f"convert_tree: the {protocol.describe(node)}{_at(path)} cannot be rebuilt: {why}"
    ) from (why if isinstance(why, BaseException) else None)


def _refuse_leaf(node: Any, path: str) -> NoReturn:
    what = f"convert_tree: the {protocol.describe(node)}{_at(path)} "
    keep = 'pass unknown="keep" to keep it as it is'
    if isinstance(node, (np.ndarray, np.generic)):
        raise UnsupportedTypeError(
            f"{what}has fields, which no tensor has; put {{name: x[name] for name in "
            f"x.dtype.names}} in its place, or {keep}"
        )
    if _is_function(node):
        raise UnsupportedTypeError(
            f"{what}is a function that binds a tensor, which would stay as it is; give it the "
            f"tensor as an argument, or {keep}"
        )
    if isinstance(node, (set, frozenset, *_PLAIN)) and _has_tensors_beside(node):
        raise UnsupportedTypeError(
            f"{what}has a tensor in an attribute, which would stay as it is; put both into a "
            f"dict or a dataclass, or {keep}"
        )
    if isinstance(node, (set, frozenset)) and _holds_tensor(node):
        raise UnsupportedTypeError(
            f"{what}holds tensors, which have no order there; put a list in its place, or {keep}"
        )
    raise UnsupportedTypeError(
        f"{what}is neither a tensor, a container nor plain data{protocol.advise(node)}; {keep}"
    )


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


# Every registry knows them; here their order and attributes are kept better.
_BUILT_IN = (NoneType, dict, list, tuple, OrderedDict, defaultdict, deque)


def _is_registered(node: Any) -> bool:
    return _take_apart(node) is not None


def _take_apart(node: Any) -> _Parts | None:
    """Return the parts of a node of a registered class, or None for any other object."""
    kind = type(node)
    if any(kind is each for each in _BUILT_IN):
        return None
    for module, way in _REGISTRIES.items():
        if module in sys.modules:
            parts = way(node, sys.modules[module])
            if parts is not None:
                return parts
    return None


def _by_jax(node: Any, tree_util: Any) -> _Parts | None:
    classes = tree_util.default_registry
    parts = classes.flatten_one_level(node)
    if parts is None or (isinstance(node, tuple) and parts[1] is type(node)):  # a namedtuple
        return None
    is_root = iter([True])  # one level is enough: what is in it is walked by the caller
    leaves, structure = tree_util.tree_flatten(node, is_leaf=lambda _: not next(is_root, False))
    made = _numbered(leaves, structure.unflatten)
    if hasattr(classes, "flatten_one_level_with_keys"):
        keyed, _ = classes.flatten_one_level_with_keys(node)
        return made._replace(names=[tree_util.keystr((key,)) for key, _ in keyed])
    return made


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

_FUNCTIONS = (
    *(FunctionType, BuiltinFunctionType, ModuleType, type, np.ufunc),
    *(MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, ClassMethodDescriptorType),
)
_BOUND = (BuiltinFunctionType, MethodWrapperType)  # which may be methods of an object
_PLAIN = (
    *(NoneType, bool, int, float, complex, str, bytes, bytearray, Number, Enum),
    *(date, time, timedelta, tzinfo, UUID, PurePath, range, re.Pattern),
    *(EllipsisType, NotImplementedType, *_FUNCTIONS),
    *(np.dtype, DType, Device, TensorShape),
)
# Names of the classes by which frameworks describe tensors and where they are, in lower case.
_DESCRIPTIONS = frozenset(
    (
        *("dtype", "datatype", "device", "layout", "memory_format", "size", "tensorshape"),
        *(
            "sharding",
            "mesh",
            "abstractmesh",
            "partitionspec",
            "p",
            "format",
            "devicemesh",
            "placement",
        ),
        *("shapedtypestruct", "typespec"),
    )
)


def _is_plain(x: Any) -> bool:
    """Return whether `x`, which is not a tensor and no container, is plain data."""
    if isinstance(x, _BOUND) and _is_tensor(x.__self__):
        return False
    if isinstance(x, (set, frozenset)):
        return all(map(_is_plain, x)) and not _has_tensors_beside(x)
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.names is None
    if isinstance(x, (*_FUNCTIONS, Enum)) or _is_description(x):
        return True
    if isinstance(x, _PLAIN):
        return not _has_tensors_beside(x)
    return _is_text(x) or (_is_function(x) and not _holds_tensor(x))


def _has_tensors_beside(x: object) -> bool:
    """Return whether attributes of plain data, of a class of its own, are or hold tensors."""
    return any(map(_holds_tensor, getattr(x, "__dict__", {}).values()))


def _is_description(x: object) -> bool:
    return any(
        cls.__name__.lower() in _DESCRIPTIONS and _is_of_framework(cls) for cls in type(x).__mro__
    )


def _is_of_framework(kind: type) -> bool:
    root = protocol.root_module(kind)
    return registry.row_of_root(root) is not None or registry.holder_of_root(root) is not None


def _is_function(x: object) -> bool:
    """Return whether `x` is a function, in the wide sense of what has the name of one.

    Decorators make objects of classes of their own: compiled functions, kernels, caches.
    """
    if isinstance(x, (*_FUNCTIONS, partial, MethodType)):
        return True
    return callable(x) and isinstance(getattr(x, "__name__", None), str)


def _holds_tensor(x: object) -> bool:
    """Return whether `x` is a tensor, or holds one in items or attributes, at any depth.

    Functions of Python hold none, whatever they refer to.
    """
    seen: dict[int, object] = {}  # which keeps them alive, so that no address is used twice
    ahead = [x]
    while ahead:
        each = ahead.pop()
        if isinstance(each, _BOUND):
            each = each.__self__
        if id(each) in seen or type(each) in _PLAIN_AT_A_GLANCE or isinstance(each, _PLAIN):
            continue
        seen[id(each)] = each
        if _is_tensor(each) or _take_key(each) is not None:
            return True
        ahead += _contents(each)
    return False


def _contents(x: Any) -> Iterable[Any]:
    if isinstance(x, partial):
        return [x.func, *x.args, *x.keywords.values(), *vars(x).values()]
    if isinstance(x, MethodType):
        return [x.__self__]
    parts = _take_apart(x)
    if parts is not None:
        return parts.children
    if is_module(x):
        return list(x.state_dict().values())
    inside = list(_attributes(x).values())
    if isinstance(x, (Mapping, UserDict)):
        inside += [*x.keys(), *x.values()]
    elif isinstance(x, (list, tuple, deque, set, frozenset)):
        inside += x
    elif isinstance(x, np.ndarray) and x.dtype.kind == "O":
        inside += x.ravel().tolist()
    elif isinstance(x, slice):
        inside += [x.start, x.stop, x.step]
    return inside
