"""The names that an import's operations get in the graph: those of the nodes, made unique."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.graph.core.names import check

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph


def scope_name(graph: Graph, name: str | None) -> tuple[str, str]:
    """Return the prefix of an import with its slash, "" without one, and what it takes of names.

    What it takes is to be given to `Graph.unique_name` once the import has succeeded, and is ""
    where nothing is taken.

    Raises:
        TypeError, ValueError: the name is no text, or no name of a scope.
    """
    wanted = "import" if name is None else name
    if not isinstance(wanted, str):
        raise TypeError(f"import_graph_def: name must be a string or None, got {wanted!r}")
    if not wanted:
        return "", ""
    scope = graph._scopes.state.name
    check(wanted, scope, "import_graph_def")
    if wanted[-1] == "/":
        return wanted, ""
    return f"{graph.unique_name(wanted, mark_as_used=False)}/", wanted


def full_names(graph: Graph, prefix: str, nodes: Sequence[str]) -> list[str]:
    """Return a name for each node that no operation of the graph has, and no scope of one.

    Capital letters count: operations whose names differ only in them may come from a GraphDef.
    """
    full = [prefix + name for name in nodes]
    taken = graph._by_name
    if not taken:
        return full
    scopes = _scopes(taken, prefix)
    if taken.keys().isdisjoint(full) and scopes.isdisjoint(full):
        return full
    own = {*full, *_scopes(full, "")}
    return [_unique(name, taken, scopes, own) for name in full]


def _unique(name: str, taken: dict[str, Any], scopes: set[str], own: set[str]) -> str:
    found, count = name, 0
    while found in taken or found in scopes or (count and found in own):
        count += 1
        found = f"{name}_{count}"
    own.add(found)
    return found


def _scopes(names: Iterable[str], prefix: str) -> set[str]:
    """Return the scopes in which names stand, of those that begin with a prefix."""
    found: set[str] = set()
    for name in names:
        if not name.startswith(prefix):
            continue
        end = name.rfind("/")
        while end > 0 and name[:end] not in found:
            found.add(name[:end])
            end = name.rfind("/", 0, end)
    return found
