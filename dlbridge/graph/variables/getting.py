"""get_variable: variables that are found again by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlbridge.graph.core.collecting import GraphKeys
from dlbridge.graph.core.graph import Graph, get_default_graph
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.variables.initializing import glorot_uniform_initializer, zeros_initializer
from dlbridge.graph.variables.scopes import VariableScope, get_variable_scope, join
from dlbridge.graph.variables.variables import Variable, refuse
from dlbridge.proto.datatypes import as_dtype
from dlbridge.shape import as_shape

__all__ = ["get_local_variable", "get_variable"]


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
    """Return the variable of that name in the variable scope, new or known as the scope says.

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
        ValueError: the variable exists and the scope does not reuse, or the other way round; the
            shape or dtype is not that of the known one; no shape.
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
    """Note what a regularizer makes of a variable."""
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
    """Return `get_variable` of what is neither trained nor saved: in `LOCAL_VARIABLES` only."""
    kwargs.setdefault("collections", [GraphKeys.LOCAL_VARIABLES])
    return get_variable(name, *args, **{**kwargs, "trainable": False})
