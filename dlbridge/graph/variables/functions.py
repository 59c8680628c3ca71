"""Functions on variables: all those of a graph, and the assignments of TensorFlow 1.x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.collections import GraphKeys
from dlbridge.graph.core.constants import constant, convert_to_tensor
from dlbridge.graph.core.default_graph import get_default_graph
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.basic import group, no_op
from dlbridge.graph.ops.indexing import boolean_mask
from dlbridge.graph.ops.joining import stack
from dlbridge.graph.ops.logic import logical_not
from dlbridge.graph.variables.variable import Variable
from dlbridge.proto.datatypes import string

__all__ = [
    "all_variables",
    "assign",
    "assign_add",
    "assign_sub",
    "global_variables",
    "global_variables_initializer",
    "initialize_all_variables",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "model_variables",
    "report_uninitialized_variables",
    "scatter_add",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "trainable_variables",
    "variables_initializer",
]


def global_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables of the default graph, or those whose names match `scope`."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `LOCAL_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `MODEL_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """Return the trainable variables; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def variables_initializer(variables: Sequence[Variable], name: str = "init") -> Operation:
    """Return an operation that runs the initializers of `variables`."""
    if not variables:
        return no_op(name)
    return group(*[each.initializer for each in variables], name=name)


def global_variables_initializer() -> Operation:
    """Return an operation that initializes every variable made so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Return an operation that initializes the variables in `LOCAL_VARIABLES`."""
    return variables_initializer(local_variables())


# Their older names.
all_variables = global_variables
initialize_all_variables = global_variables_initializer


def is_variable_initialized(variable: Variable) -> Tensor:
    """Return a bool Tensor: whether `variable` has a value in the session."""
    return variable.is_initialized()


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """Return a vector of strings: the names of the variables that have no value in the session.

    Args:
        var_list: the variables to check, by default the global and local ones.
        name: of the scope.
    """
    asked = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    graph = get_default_graph()
    with graph.name_scope(name):
        if not asked:
            return constant([], string)
        missing = logical_not(stack([each.is_initialized() for each in asked]))
        return boolean_mask(constant([each.op.name for each in asked]), missing)


# ---- functions of TensorFlow 1.x ---------------------------------------------------------------


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool = True,  # noqa: ARG001
    use_locking: bool = True,
    name: str | None = None,
) -> Any:
    """Assign `value` to the variable `ref`, and return it after that; see `Variable.assign`.

    Args:
        ref: a Variable.
        value: of its dtype and shape.
        validate_shape: without effect: a value of another shape needs a variable that was made
            with `validate_shape=False`.
        use_locking: without effect: changes of one variable never overlap.
        name: of the operation.
    """
    return ref.assign(value, use_locking, name)


def assign_add(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Any:
    """Add `value` to the variable `ref`, and return it after that; see `Variable.assign_add`."""
    return ref.assign_add(value, use_locking, name)


def assign_sub(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Any:
    """Subtract `value` from `ref`, and return it after that; see `Variable.assign_sub`."""
    return ref.assign_sub(value, use_locking, name)


def scatter_add(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Add `updates` to the slices of `ref` at `indices`, which may repeat, and return it.

    Args:
        ref: a Variable.
        indices: integers, of any shape.
        updates: of the shape of the indices and then of the slices.
        use_locking: without effect: changes of one variable never overlap.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, an index is out of range.
    """
    return _scatter(ref, "ResourceScatterAdd", indices, updates, name)


def scatter_sub(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Subtract `updates` from the slices of `ref` at `indices`; see `scatter_add`."""
    return _scatter(ref, "ResourceScatterSub", indices, updates, name)


def scatter_update(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Overwrite the slices of `ref` at `indices` with `updates`; see `scatter_add`."""
    return _scatter(ref, "ResourceScatterUpdate", indices, updates, name)


def scatter_nd_update(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Overwrite slices of `ref` at vectors of indices; see `scatter_nd`."""
    return _scatter(ref, "ResourceScatterNdUpdate", indices, updates, name)


def _scatter(
    ref: Variable,
    op_type: str,
    indices: Any,
    updates: Any,
    name: str | None,
) -> Any:
    return ref._write(op_type, (indices, convert_to_tensor(updates, ref.dtype)), name)
