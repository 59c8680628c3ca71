"""Classes that somebody registered as containers: with jax, torch or optree.

Each registry is asked only where its library is imported: nobody can have registered anything with
the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError
from dlbridge.exchange import protocol


class Parts(NamedTuple):
    """One node, taken apart by one level: its children, and how it is made of others again."""

    names: list[str]
    children: list[Any]
    rebuild: Callable[[list[Any]], Any]


def take_apart(node: Any) -> Parts | None:
    """Return the parts of a node of a registered class, or None for any other object."""
    for module, way in _REGISTRIES.items():
        if module in sys.modules:
            parts = way(node, sys.modules[module])
            if parts is not None:
                return parts
    return None


def _by_jax(node: Any, tree_util: Any) -> Parts | None:
    registry = tree_util.default_registry
    if registry.flatten_one_level(node) is None:
        return None
    is_root = iter([True])  # one level is enough: what is in it is walked by the caller
    leaves, structure = tree_util.tree_flatten(node, is_leaf=lambda _: not next(is_root, False))
    parts = _numbered(leaves, structure.unflatten)
    if hasattr(registry, "flatten_one_level_with_keys"):
        keyed, _ = registry.flatten_one_level_with_keys(node)
        return parts._replace(names=[tree_util.keystr((key,)) for key, _ in keyed])
    return parts


def _by_torch(node: Any, pytree: Any) -> Parts | None:
    way = pytree.SUPPORTED_NODES.get(type(node))
    if way is None:
        return None
    children, context = way.flatten_fn(node)
    return _numbered(children, lambda made: way.unflatten_fn(made, context))


def _by_optree(node: Any, optree: Any) -> Parts | None:
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


def _numbered(children: Iterable[Any], rebuild: Callable[[list[Any]], Any]) -> Parts:
    found = list(children)
    return Parts([f"<{i}>" for i in range(len(found))], found, rebuild)


# By the module that the registry is in.
_REGISTRIES: dict[str, Callable[[Any, Any], Parts | None]] = {
    "jax.tree_util": _by_jax,
    "torch.utils._pytree": _by_torch,
    "optree": _by_optree,
}
