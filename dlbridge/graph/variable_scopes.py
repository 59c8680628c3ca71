"""variable_scope and get_variable: variables that are found again by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.initializers import Initializer, glorot_uniform_initializer, zeros_initializer
from dlbridge.graph.variables import Variable
from dlbridge.proto.datatypes import as_dtype, float32
from dlbridge.shape import as_shape

__all__ = ["AUTO_REUSE", "VariableScope", "get_variable", "get_variable_scope", "variable_scope"]


class _Reuse(Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE


@dataclass(frozen=True)
class VariableScope:
    """Where `get_variable` looks: a prefix of names, and what it does about known ones.

    Attributes:
        name: the prefix, without a trailing slash.
        reuse: False: variables must be new; True: they must exist; AUTO_REUSE: either.
        initializer, dtype: for variables that name none.
        original_name_scope: the name scope that it opened, with a trailing slash.
    """

    name: str = ""
    reuse: bool | _Reuse = False
    initializer: Initializer | None = None
    dtype: object = float32
    original_name_scope: str = ""


class _Store:
    """The variables of one graph by name, and the scope of each thread."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.opened: dict[str, int] = {}  # how often default names were taken


def _store(graph: Graph) -> _Store:
    key = "dlbridge_variable_store"
    found: list[_Store] = graph.get_collection_ref(key)
    if not found:
        found.append(_Store())
    return found[0]


def get_variable_scope() -> VariableScope:
    """Return the variable scope in force in this thread and graph."""
    scope: VariableScope | None = getattr(get_default_graph()._scopes, "variable_scope", None)
    return scope or VariableScope()


@contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Any = None,
    initializer: Initializer | None = None,
    reuse: bool | _Reuse | None = None,
    dtype: object = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Put a prefix before the names of `get_variable`, and open the name scope of that name.

    Args:
        name_or_scope: added to the prefix; a VariableScope replaces it; None takes a new one made
            from `default_name`.
        default_name: made unique among the scopes opened with it.
        values: as for `name_scope`.
        initializer, dtype: for variables that name none.
        reuse: True or AUTO_REUSE; None and False inherit it.
        auxiliary_name_scope: whether the name scope is opened.

    Raises:
        ValueError: no name at all.
    """
    graph = get_default_graph()
    outer = get_variable_scope()
    prefix, leaf = _enter(graph, outer, name_or_scope, default_name)
    base = name_or_scope if isinstance(name_or_scope, VariableScope) else outer
    scope = replace(
        base,
        name=prefix,
        reuse=reuse or outer.reuse or base.reuse,
        initializer=initializer or base.initializer,
        dtype=base.dtype if dtype is None else dtype,
    )
    scopes = graph._scopes
    before = getattr(scopes, "variable_scope", None)
    scopes.variable_scope = scope
    try:
        if not auxiliary_name_scope:
            yield scope
            return
        with graph.name_scope(leaf) as opened:
            scopes.variable_scope = scope = replace(scope, original_name_scope=opened)
            yield scope
    finally:
        scopes.variable_scope = before


def _enter(
    graph: Graph, outer: VariableScope, asked: str | VariableScope | None, default: str | None
) -> tuple[str, str]:
    """Return the prefix of variables, and the name of the name scope."""
    if isinstance(asked, VariableScope):
        return asked.name, asked.name.rpartition("/")[2]
    if asked is None:
        if default is None:
            raise ValueError("variable_scope: name_or_scope or default_name must be given")
        asked = _unique(_store(graph), outer, default)
    return (f"{outer.name}/{asked}" if outer.name else asked), asked


def _unique(store: _Store, outer: VariableScope, name: str) -> str:
    full = f"{outer.name}/{name}"
    count = store.opened.get(full, 0)
    store.opened[full] = count + 1
    return name if not count else f"{name}_{count}"


def get_variable(
    name: str,
    shape: object = None,
    dtype: object = None,
    initializer: Any = None,
    regularizer: None = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    validate_shape: bool = True,
) -> Variable:
    """Return the variable of that name in the variable scope, new or known as the scope says.

    Args:
        name: under the prefix of the scope.
        shape: of a new variable; may be left out if `initializer` is a value.
        dtype: of a new variable; None is the scope's, float32.
        initializer: a function of shape and dtype, or a value; None is the scope's, else
            `glorot_uniform_initializer` for floating dtypes, zeros for others.
        regularizer: not supported.
        trainable, collections, validate_shape: as for `Variable`.

    Raises:
        ValueError: the variable exists and the scope does not reuse, or the other way round; the
            shape or dtype is not that of the known one; no shape.
    """
    if regularizer is not None:
        raise ValueError("get_variable: regularizer is not supported; leave it out")
    graph, scope = get_default_graph(), get_variable_scope()
    full = f"{scope.name}/{name}" if scope.name else name
    store = _store(graph)
    known = store.variables.get(full)
    if known is not None:
        return _reused(known, full, scope, shape, dtype)
    if scope.reuse is True:
        raise ValueError(
            f"Variable {full} does not exist, or was not created with tf.get_variable(). Did you "
            "mean to set reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    kind = as_dtype(scope.dtype if dtype is None else dtype)
    start = _initial(full, shape, kind, initializer or scope.initializer)
    with graph.name_scope(None):
        variable = Variable(start, trainable, collections, validate_shape, None, full, kind)
    store.variables[full] = variable
    return variable


def _reused(
    known: Variable, name: str, scope: VariableScope, shape: object, dtype: object
) -> Variable:
    if scope.reuse is False:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    if shape is not None and not known.shape.is_compatible_with(shape):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {as_shape(shape)} and found "
            f"shape {known.shape}."
        )
    if dtype is not None and as_dtype(dtype) is not known.dtype:
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {as_dtype(dtype).name} and "
            f"found dtype {known.dtype.name}."
        )
    return known


def _initial(name: str, shape: object, dtype: Any, initializer: Any) -> Callable[[], Any]:
    """Return the function that makes the initial value."""
    if initializer is not None and not callable(initializer):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return lambda: initializer
    if shape is None or not as_shape(shape).is_fully_defined():
        raise ValueError(
            f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}."
        )
    if initializer is None:
        chosen = glorot_uniform_initializer if dtype.is_floating else zeros_initializer
        initializer = chosen()
    elif isinstance(initializer, type):  # tf.zeros_initializer itself, not called
        initializer = initializer()
    return lambda: initializer(shape, dtype=dtype)
