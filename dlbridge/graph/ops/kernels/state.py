"""Kernels of variables. Handles and references carry a `VariableState`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Given, Node, find, kernel
from dlbridge.execution.variables import VariableState, describe, reader, state_of, typed


@kernel("VarHandleOp", "VariableV2", "Variable", traceable=False)
def handle(node: Node, context: Context) -> Callable[..., Any]:
    return Given(state_of(node, context.resources))


@kernel("ReadVariableOp", handles=(0,), traceable=False)
def read(node: Node, context: Context) -> Callable[..., Any]:
    return typed(node, reader(context.framework, context.device_name))


@kernel("VariableShape", host_result=True, handles=(0,), traceable=False)
def variable_shape(node: Node, context: Context) -> Callable[..., Any]:
    dtype = node.output_types[0].numpy
    framework, device = context.framework, context.device_name
    return lambda state: np.array(state.read(framework, False, device).shape, dtype)


@kernel("VarIsInitializedOp", "IsVariableInitialized", handles=(0,), traceable=False)
def is_initialized(node: Node, context: Context) -> Callable[..., Any]:
    return lambda state: context.asarray(np.array(state.value is not None))


@kernel("DestroyResourceOp", handles=(0,), traceable=False)
def destroy(node: Node, context: Context) -> Callable[..., Any]:
    def run(state: VariableState) -> tuple[()]:
        state.release()
        return ()

    return run


# ---- assignments -------------------------------------------------------------------------------


@kernel("AssignVariableOp", handles=(0,), traceable=False)
def assign(node: Node, context: Context) -> Callable[..., Any]:
    def run(state: VariableState, value: Any) -> tuple[()]:
        state.assign(value)
        return ()

    return typed(node, run)


@kernel("Assign", handles=(0,), traceable=False)
def assign_reference(node: Node, context: Context) -> Callable[..., Any]:
    validate = node.attrs["validate_shape"]

    def run(state: VariableState, value: Any) -> VariableState:
        if not validate:
            state.dims = None
        state.assign(value)
        return state

    return run


def _updating(change: Callable[[Context], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the factory of an op that replaces a variable's value by a function of it."""

    def factory(node: Node, context: Context) -> Callable[..., Any]:
        function, framework, device = change(context), context.framework, context.device_name
        returns_state = bool(node.output_types)

        def run(state: VariableState, *values: Any) -> Any:
            state.update(framework, lambda old: function(old, *values), device)
            return state if returns_state else ()

        return typed(node, run)

    return factory


def _check_equal(old: Any, new: Any) -> None:
    """Require that shapes are equal: nothing is broadcast here."""
    if tuple(old.shape) != tuple(new.shape):
        raise InvalidArgumentError(
            f"Cannot update variable with shape {describe(tuple(old.shape))} using a Tensor with "
            f"shape {describe(tuple(new.shape))}, shapes must be equal."
        )


def _elementwise(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def change(old: Any, new: Any) -> Any:
        _check_equal(old, new)
        return function(old, new)

    return change


def _add(context: Context) -> Callable[..., Any]:
    return _elementwise(context.xp.add)


def _descend(_context: Context) -> Callable[..., Any]:
    def change(old: Any, rate: Any, delta: Any) -> Any:
        _check_equal(old, delta)
        return old - rate * delta

    return change


kernel("AssignAddVariableOp", "AssignAdd", handles=(0,), traceable=False)(_updating(_add))
kernel("AssignSubVariableOp", "AssignSub", handles=(0,), traceable=False)(
    _updating(lambda context: _elementwise(context.xp.subtract))
)
kernel("ResourceApplyGradientDescent", "ApplyGradientDescent", handles=(0,), traceable=False)(
    _updating(_descend)
)


# ---- slices ------------------------------------------------------------------------------------


@kernel("ResourceGather", host=(1,), handles=(0,), traceable=False)
def gather(node: Node, context: Context) -> Callable[..., Any]:
    framework, device, batch = context.framework, context.device_name, node.attrs["batch_dims"]

    def run(state: VariableState, indices: Any) -> Any:
        value = state.read(framework, False, device)
        if not -1 < batch < value.ndim or value.shape[:batch] != indices.shape[:batch]:
            raise InvalidArgumentError(
                f"batch_dims = {batch} requires that params and indices begin with as many equal "
                f"dimensions, got shapes {describe(tuple(value.shape))} and "
                f"{describe(indices.shape)}",
                node,
            )
        _check_indices(indices, value.shape[batch], node)
        if not batch:
            return value[context.asarray(indices)]
        grid = np.ogrid[tuple([slice(extent) for extent in indices.shape[:batch]])]
        filled = [each.reshape(each.shape[:batch] + (1,) * (indices.ndim - batch)) for each in grid]
        return value[tuple([context.asarray(each) for each in (*filled, indices)])]

    return typed(node, run)


def _check_indices(indices: Any, extent: int, node: Node) -> None:
    wrong = (indices < 0) | (indices >= extent)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise InvalidArgumentError(
            f"indices{list(place)} = {indices[place]} is not in [0, {extent})", node
        )


def _scattering(how: str, sign: int = 1) -> Callable[..., Any]:
    """Return the factory of an op that changes slices of a variable."""

    def factory(node: Node, context: Context) -> Callable[..., Any]:
        framework, device = context.framework, context.device_name
        write = context.backend.scatter(how)
        returns_state = bool(node.output_types)

        def run(state: VariableState, indices: Any, updates: Any) -> Any:
            changes = -updates if sign < 0 else updates

            def change(old: Any) -> Any:
                _check_indices(indices, old.shape[0], node)
                slices = (*indices.shape, *old.shape[1:])
                if updates.ndim and tuple(updates.shape) != slices:
                    raise InvalidArgumentError(
                        f"updates must be a scalar or have shape {describe(slices)}, got "
                        f"{describe(tuple(updates.shape))}",
                        node,
                    )
                return write(old, context.asarray(indices), changes)

            state.update(framework, change, device)
            return state if returns_state else ()

        return typed(node, run)

    return factory


kernel("ResourceScatterAdd", "ScatterAdd", host=(1,), handles=(0,), traceable=False)(
    _scattering("Add")
)
kernel("ResourceScatterSub", "ScatterSub", host=(1,), handles=(0,), traceable=False)(
    _scattering("Add", -1)
)
kernel("ResourceScatterUpdate", "ScatterUpdate", host=(1,), handles=(0,), traceable=False)(
    _scattering("Update")
)


# ---- slices at vectors of indices --------------------------------------------------------------


class _Like:
    """A node seen as one of another op type, whose first input is the value of the variable."""

    def __init__(self, node: Node, type_: str) -> None:
        self._node = node
        self.type = type_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _on_value(node: Node, context: Context, type_: str) -> Callable[..., Any]:
    """Return what an op type on tensors computes, its indices checked whatever the framework.

    Unless the node says that bad indices are ignored.
    """
    like: Any = _Like(node, type_)
    compute = find(like, context.framework).factory(like, context)
    ignores = node.attrs.get("bad_indices_policy") == b"IGNORE"

    def run(value: Any, indices: Any, *updates: Any) -> Any:
        extents = tuple(value.shape)[: indices.shape[-1]]
        if len(extents) == indices.shape[-1] and not ignores:
            wrong = ((indices < 0) | (indices >= extents)).any(axis=-1)
            if wrong.any():
                place = tuple(np.argwhere(wrong)[0].tolist())
                raise InvalidArgumentError(
                    f"indices{list(place)} = {indices[place].tolist()} does not index into shape "
                    f"{describe(tuple(value.shape))}",
                    node,
                )
        return compute(value, context.asarray(indices), *updates)

    return run


@kernel("ResourceGatherNd", host=(1,), handles=(0,), traceable=False)
def gather_nd(node: Node, context: Context) -> Callable[..., Any]:
    gather = _on_value(node, context, "GatherNd")
    framework, device = context.framework, context.device_name

    def run(state: VariableState, indices: Any) -> Any:
        return gather(state.read(framework, False, device), indices)

    return typed(node, run)


@kernel(
    "ResourceScatterNdUpdate", "ResourceScatterNdAdd", "ResourceScatterNdSub",
    "ResourceScatterNdMin", "ResourceScatterNdMax", "ScatterNdUpdate", "ScatterNdAdd",
    "ScatterNdSub", host=(1,), handles=(0,), traceable=False,
)  # fmt: skip
def scatter_nd(node: Node, context: Context) -> Callable[..., Any]:
    framework, device = context.framework, context.device_name
    scatter = _on_value(node, context, f"TensorScatter{node.type.rpartition('Nd')[2]}")

    def run(state: VariableState, indices: Any, updates: Any) -> Any:
        state.update(framework, lambda old: scatter(old, indices, updates), device)
        return state if node.output_types else ()

    return typed(node, run)
