"""Convert every tensor of a nested container."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from dlbridge import adapter
from dlbridge._core import native

_ATTRIBUTES = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")


def convert_tree(tree: Any, to: object, /, **policies: Any) -> Any:
    """Return `tree` with every tensor in it converted for the framework `to`.

    Containers are rebuilt, never changed: dict (and its subclasses), list, tuple, namedtuple,
    dataclass instances, and, where optree is installed, every node type registered with it. What
    is neither container nor tensor is kept as it is. A failure in one leaf fails the whole call;
    the converted leaves before it are dropped again.

    Args:
        tree: the container, or one tensor.
        to: the framework, as of `convert`.
        **policies: as of `convert`.

    Raises:
        ExchangeError: a leaf cannot be converted; the text ends with the path to it.

    Example:
        >>> import numpy
        >>> convert_tree({"x": numpy.ones(2), "name": "a"}, "dlbridge")["name"]
        'a'
    """
    return _walk(tree, lambda leaf: native.convert(leaf, to, **policies), "")


def _walk(node: Any, convert: Callable[[Any], Any], path: str) -> Any:
    if _is_tensor(node):
        try:
            return convert(node)
        except Exception as error:
            if path:
                error.add_note(f"at {path} of the tree")
            raise
    if isinstance(node, dict):
        return _rebuild_dict(node, convert, path)
    if isinstance(node, (list, tuple)):
        items = [_walk(item, convert, f"{path}[{i}]") for i, item in enumerate(node)]
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if is_dataclass(node) and not isinstance(node, type):
        return _rebuild_dataclass(node, convert, path)
    return _registered(node, convert, path)


def _is_tensor(node: Any) -> bool:
    if isinstance(node, native.TensorBase) or adapter.adapter_of_type(type(node)) is not None:
        return True
    return any(hasattr(type(node), name) for name in _ATTRIBUTES)


def _rebuild_dict(node: dict[Any, Any], convert: Callable[[Any], Any], path: str) -> Any:
    items = {key: _walk(value, convert, f"{path}[{key!r}]") for key, value in node.items()}
    if type(node) is dict:
        return items
    rebuilt = node.copy()  # keeps a defaultdict's factory and an OrderedDict's order
    rebuilt.update(items)
    return rebuilt


def _rebuild_dataclass(node: Any, convert: Callable[[Any], Any], path: str) -> Any:
    rebuilt = object.__new__(type(node))
    for name, value in getattr(node, "__dict__", {}).items():
        object.__setattr__(rebuilt, name, value)
    for field in fields(node):
        if hasattr(node, field.name):
            value = _walk(getattr(node, field.name), convert, f"{path}.{field.name}")
            object.__setattr__(rebuilt, field.name, value)
    return rebuilt


def _registered(node: Any, convert: Callable[[Any], Any], path: str) -> Any:
    """Walk a node type that somebody registered with optree; others are leaves."""
    optree = sys.modules.get("optree")
    if optree is None or optree.tree_structure(node).is_leaf():
        return node
    leaves, structure = optree.tree_flatten(node)
    return optree.tree_unflatten(
        structure, [_walk(leaf, convert, f"{path}<{i}>") for i, leaf in enumerate(leaves)]
    )
