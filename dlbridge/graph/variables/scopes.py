"""variable_scope and get_variable: variables that are found again by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from dlbridge.graph.core.collecting import GraphKeys
from dlbridge.graph.core.graph import Graph, get_default_graph
from dlbridge.graph.variables.initializing import Initializer
from dlbridge.graph.variables.variables import Variable, refuse
from dlbridge.proto.datatypes import float32

__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_variable_scope",
    "variable_scope",
]


class Reuse(Enum):
    """What is neither True nor False for `reuse`."""

    AUTO_REUSE = 1


AUTO_REUSE = Reuse.AUTO_REUSE
"""Take the variable of a name if there is one, else make it."""


class VariableScope:
    """Where `get_variable` looks: a prefix of names, and what it does about known ones.

    Attributes:
        name: the prefix, without a trailing slash.
        reuse: False: variables must be new; True: they must exist; AUTO_REUSE: either.
        initializer, regularizer, dtype: for variables that name none.
        original_name_scope: the name scope that it opened, with a trailing slash.
    """

    def __init__(
        self,
        reuse: bool | Reuse = False,
        name: str = "",
        initializer: Initializer | None = None,
        regularizer: Any = None,
        dtype: object = float32,
        original_name_scope: str = "",
    ) -> None:
        self.name = name
        self.reuse = reuse
        self.initializer = initializer
        self.regularizer = regularizer
        self.dtype = dtype
        self.original_name_scope = original_name_scope

    def reuse_variables(self) -> None:
        """Let variables have to exist from now on."""
        self.reuse = True

    def set_initializer(self, initializer: Initializer) -> None:
        """Set what variables start with that name no initializer."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Set the regularizer of variables that name none."""
        self.regularizer = regularizer

    def set_dtype(self, dtype: object) -> None:
        """Set the dtype of variables that name none."""
        self.dtype = dtype

    def get_collection(self, name: Any) -> list[Any]:
        """Return the items of a collection of the default graph that are in this scope."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else None)

    def global_variables(self) -> list[Variable]:
        """Return the global variables in this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Variable]:
        """Return the local variables in this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Variable]:
        """Return the variables in this scope that are to be trained."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)


class _Scopes:
    """The variable scopes of one thread in one graph.

    Attributes:
        current: the scope in force.
        opened: full name -> how often a scope of that name was opened.
    """

    def __init__(self) -> None:
        self.current = VariableScope()
        self.opened: dict[str, int] = {}

    def unique(self, default: str) -> str:
        """Return the name of a scope under the current one that was not opened yet."""
        full = join(self.current.name, default)
        if not self.opened.get(full):
            return default
        number = 1
        while self.opened.get(f"{full}_{number}"):
            number += 1
        return f"{default}_{number}"

    def leave(self, name: str) -> None:
        """Let the names below a scope be opened anew."""
        for each in self.opened:
            if each.startswith(f"{name}/"):
                self.opened[each] = 0


def _scopes(graph: Graph) -> _Scopes:
    """Return the scopes of this thread."""
    local: Any = graph._scopes
    found: _Scopes | None = getattr(local, "variable_scopes", None)
    if found is None:
        found = local.variable_scopes = _Scopes()
    return found


def join(prefix: str, name: str) -> str:
    """Return the full name of what is called `name` under a prefix."""
    return f"{prefix}/{name}" if prefix and name else prefix or name


def get_variable_scope() -> VariableScope:
    """Return the variable scope in force in this thread and graph."""
    return _scopes(get_default_graph()).current


@contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Any = None,  # noqa: ARG001
    initializer: Initializer | None = None,
    regularizer: Any = None,
    caching_device: None = None,
    partitioner: None = None,
    custom_getter: None = None,
    reuse: bool | Reuse | None = None,
    dtype: object = None,
    use_resource: bool | None = None,  # noqa: ARG001
    constraint: None = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Put a prefix before the names of `get_variable`, and open the name scope of that name.

    Args:
        name_or_scope: added to the prefix; a VariableScope replaces it; None takes a new one made
            from `default_name`.
        default_name: made unique among the scopes opened here.
        values: without effect.
        initializer: for variables that name none.
        regularizer: for variables that name none.
        caching_device: not supported.
        partitioner: not supported.
        custom_getter: not supported.
        reuse: True or AUTO_REUSE; None and False inherit it.
        dtype: for variables that name none.
        use_resource: without effect: there is one kind of variable.
        constraint: not supported.
        auxiliary_name_scope: whether the name scope is opened.

    Raises:
        TypeError: no name at all.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     with tf.variable_scope("layer"):
        ...         first = tf.get_variable("w", [2, 3])
        ...     with tf.variable_scope("layer", reuse=True):
        ...         print(tf.get_variable("w") is first, first.name)
        True layer/w:0
    """
    refuse(
        "variable_scope",
        caching_device=caching_device,
        partitioner=partitioner,
        custom_getter=custom_getter,
        constraint=constraint,
    )
    graph = get_default_graph()
    scopes = _scopes(graph)
    base, name, leaf = _enter(scopes, name_or_scope, default_name)
    scope = VariableScope(
        reuse or base.reuse,
        name,
        initializer or base.initializer,
        regularizer or base.regularizer,
        base.dtype if dtype is None else dtype,
        _original_name_scope(graph, name_or_scope),
    )
    again = isinstance(name_or_scope, VariableScope)
    with _current(scopes, scope, again):
        if not (auxiliary_name_scope and leaf):
            yield scope
            return
        with graph.name_scope(leaf) as full:
            if not again:
                scope.original_name_scope = full
            yield scope


@contextmanager
def _current(scopes: _Scopes, scope: VariableScope, again: bool) -> Iterator[None]:
    """Make a scope the one in force; `again` if it was opened before."""
    outer, opened = scopes.current, dict(scopes.opened)
    scopes.current = scope
    scopes.opened[scope.name] = scopes.opened.get(scope.name, 0) + 1
    try:
        yield
    finally:
        scopes.current = outer
        if again:
            scopes.opened = opened
        else:
            scopes.leave(scope.name)


def _original_name_scope(graph: Graph, asked: object) -> str:
    """Return the name scope of a scope that opens none: its own, or the one in force."""
    if isinstance(asked, VariableScope):
        return asked.original_name_scope
    name = graph.get_name_scope()
    return f"{name}/" if name else ""


def _enter(
    scopes: _Scopes, asked: str | VariableScope | None, default: str | None
) -> tuple[VariableScope, str, str]:
    """Return the scope that gives the defaults, the prefix, and the name of the name scope."""
    if isinstance(asked, VariableScope):
        return asked, asked.name, asked.name.rpartition("/")[2]
    if asked is None:
        if default is None:
            raise TypeError("variable_scope: name_or_scope is required, or default_name")
        asked = scopes.unique(default)
    return scopes.current, join(scopes.current.name, asked), asked
