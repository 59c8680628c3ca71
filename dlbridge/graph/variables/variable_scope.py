"""variable_scope and get_variable: variables that are shared by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from dlbridge.graph.core.default_graph import GraphKeys, get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.variables.initializers import (
    Initializer,
    glorot_uniform_initializer,
    zeros_initializer,
)
from dlbridge.graph.variables.variable import Variable, refuse
from dlbridge.proto.datatypes import as_dtype, float32
from dlbridge.shape import as_shape

__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "variable_scope",
]


class Reuse(Enum):
    """The third value of `reuse`, besides True and False."""

    AUTO_REUSE = 1


AUTO_REUSE = Reuse.AUTO_REUSE
"""Reuse the variable of a name if there is one, else create it."""


class VariableScope:
    """The settings of `get_variable`: a prefix of names, reuse, and defaults.

    Attributes:
        name: the prefix, without a trailing slash.
        reuse: False: variables must be new; True: they must exist; AUTO_REUSE: either.
        initializer, regularizer, dtype: the defaults of variables.
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
        """Require variables to exist from now on."""
        self.reuse = True

    def set_initializer(self, initializer: Initializer) -> None:
        """Set the default initializer of variables."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Set the default regularizer of variables."""
        self.regularizer = regularizer

    def set_dtype(self, dtype: object) -> None:
        """Set the default dtype of variables."""
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
        """Return the trainable variables in this scope."""
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
        """Return a name under the current scope that no scope was opened with."""
        full = join(self.current.name, default)
        if not self.opened.get(full):
            return default
        number = 1
        while self.opened.get(f"{full}_{number}"):
            number += 1
        return f"{default}_{number}"

    def leave(self, name: str) -> None:
        """Reset the counts of scopes below one, whose names may be opened again."""
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
    """Return the full name of `name` under a prefix."""
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
    """Prefix the names of `get_variable`, and open the name scope of that name.

    Args:
        name_or_scope: added to the prefix; a VariableScope replaces it; None takes a new one made
            from `default_name`.
        default_name: made unique among the scopes opened here.
        values: without effect.
        initializer: the default of variables in the scope.
        regularizer: the default of variables in the scope.
        caching_device: not supported.
        partitioner: not supported.
        custom_getter: not supported.
        reuse: True or AUTO_REUSE; None and False inherit it.
        dtype: the default of variables in the scope.
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

    def restore() -> None:
        scopes.current = outer
        if again:
            scopes.opened = opened
        else:
            scopes.leave(scope.name)

    try:
        try:
            scopes.current = scope
            scopes.opened[scope.name] = scopes.opened.get(scope.name, 0) + 1
            yield
        finally:
            restore()
    finally:  # once more, for an interrupt of the first time
        restore()


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


# ---- get_variable ------------------------------------------------------------------------------


def _variables(graph: Graph) -> dict[str, Variable]:
    """Return the variables made by `get_variable`, by name."""
    found = graph.get_collection_ref(("variable store",))
    if not found:
        found.append({})
    variables: dict[str, Variable] = found[0]
    return variables


def get_variable(
    name: str,
    shape: object = None,
    dtype: object = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    caching_device: None = None,
    partitioner: None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,  # noqa: ARG001
    custom_getter: None = None,
    constraint: None = None,
) -> Variable:
    """Return the variable of a name in the variable scope, a new or an existing one.

    Args:
        name: under the prefix of the scope.
        shape: of a new variable; must be left out if `initializer` is a value.
        dtype: of a new variable; None is that of a value, else the scope's, float32.
        initializer: a function of shape and dtype, or a value; None is the scope's, else
            `glorot_uniform_initializer` for floating dtypes, zeros for others.
        regularizer: a function of the variable; its result, unless None, is added to the
            collection `REGULARIZATION_LOSSES`. None is the scope's.
        trainable: as for `Variable`.
        collections: as for `Variable`.
        caching_device: not supported.
        partitioner: not supported.
        validate_shape: as for `Variable`.
        use_resource: without effect: there is one kind of variable.
        custom_getter: not supported.
        constraint: not supported.

    Raises:
        ValueError: the variable exists and the scope does not reuse, or the reverse; the shape or
            dtype differs from that of the existing one; no shape.
    """
    refuse(
        "get_variable",
        caching_device=caching_device,
        partitioner=partitioner,
        custom_getter=custom_getter,
        constraint=constraint,
    )
    graph = get_default_graph()
    scope, variables = get_variable_scope(), _variables(graph)
    full = join(scope.name, name)
    if full in variables:
        return _reused(variables[full], full, scope, shape, dtype)
    if scope.reuse is True:
        raise ValueError(
            f"Variable {full} does not exist, or was not created with tf.get_variable(). Did you "
            "mean to set reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    initializer = scope.initializer if initializer is None else initializer
    start, kind = _initial(full, shape, dtype, scope, initializer)
    with graph.name_scope(None):
        variable = Variable(start, trainable, collections, validate_shape, name=full, dtype=kind)
        variables[full] = variable
        _regularize(variable, full, regularizer or scope.regularizer)
    return variable


def _regularize(variable: Variable, name: str, regularizer: Any) -> None:
    """Add the loss of a regularizer to its collection."""
    if regularizer is not None:
        with variable.graph.name_scope(f"{name}/Regularizer/"):
            loss = regularizer(variable)
        if loss is not None:
            variable.graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def _reused(
    known: Variable, name: str, scope: VariableScope, shape: object, dtype: object
) -> Variable:
    if scope.reuse is False:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    if shape is not None and not known.shape.is_compatible_with(as_shape(shape)):
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


def _initial(
    name: str, shape: object, dtype: object, scope: VariableScope, initializer: Any
) -> tuple[Any, object]:
    """Return the initial value, or a function that makes it, and its dtype or None for its own."""
    if initializer is not None and not callable(initializer):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return initializer, dtype
    kind = as_dtype(scope.dtype if dtype is None else dtype)
    if shape is None or not as_shape(shape).is_fully_defined():
        raise ValueError(
            f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}."
        )
    if initializer is None:
        initializer = glorot_uniform_initializer if kind.is_floating else zeros_initializer
    if isinstance(initializer, type) or initializer is glorot_uniform_initializer:
        initializer = initializer()  # tf.zeros_initializer itself, not called

    def make() -> Tensor:
        value: Tensor = initializer(shape, dtype=kind)
        return value

    return make, kind


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Variable:
    """Return `get_variable` of a local variable: not trainable, in `LOCAL_VARIABLES` only."""
    kwargs.setdefault("collections", [GraphKeys.LOCAL_VARIABLES])
    return get_variable(name, *args, **{**kwargs, "trainable": False})
