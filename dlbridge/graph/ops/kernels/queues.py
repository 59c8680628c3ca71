"""Kernels of queues. Handles carry a `QueueState`; elements are NumPy arrays of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.queues import QueueState, queue_of
from dlbridge.execution.registry import Context, Given, Node, kernel


@kernel("FIFOQueueV2", only=("numpy",), traceable=False)
def handle(node: Node, context: Context) -> Callable[..., Any]:
    return Given(queue_of(node, context.resources))


def _queue(state: Any, node: Node) -> QueueState:
    """Return what the handle of a node is of, if that is a queue."""
    if not isinstance(state, QueueState):
        raise InvalidArgumentError(
            f"{node.type}: the handle must be that of a queue, got one of another resource", node
        )
    return state


@kernel("QueueSizeV2", handles=(0,), only=("numpy",), traceable=False)
def size(node: Node, context: Context) -> Callable[..., Any]:
    return lambda state: np.array(_queue(state, node).size, np.int32)


@kernel("QueueIsClosedV2", handles=(0,), only=("numpy",), traceable=False)
def is_closed(node: Node, context: Context) -> Callable[..., Any]:
    return lambda state: np.array(_queue(state, node).is_closed)


@kernel("QueueCloseV2", handles=(0,), only=("numpy",), traceable=False)
def close(node: Node, context: Context) -> Callable[..., Any]:
    cancels = node.attrs["cancel_pending_enqueues"]

    def run(state: QueueState) -> tuple[()]:
        _queue(state, node).close(cancels)
        return ()

    return run


def _check_types(state: QueueState, node: Node, name: str) -> None:
    kinds = tuple(node.attrs[name])
    if kinds != _queue(state, node).dtypes:
        raise InvalidArgumentError(
            f"{node.type}: the components of '{state.name}' are "
            f"{', '.join(each.name for each in state.dtypes)}; those of the operation are "
            f"{', '.join(each.name for each in kinds)}",
            node,
        )


def _require_shapes(state: QueueState, node: Node) -> None:
    if len(state.dims) != len(state.dtypes):
        raise InvalidArgumentError(
            f"{node.type} requires the components of '{state.name}' to have specified shapes", node
        )


@kernel("QueueEnqueueV2", handles=(0,), only=("numpy",), traceable=False)
def enqueue(node: Node, context: Context) -> Callable[..., Any]:
    ends = context.ends

    def run(state: QueueState, *values: Any) -> tuple[()]:
        _check_types(state, node, "Tcomponents")
        state.enqueue([tuple([np.array(each, order="C") for each in values])], ends)
        return ()

    return run


@kernel("QueueEnqueueManyV2", handles=(0,), only=("numpy",), traceable=False)
def enqueue_many(node: Node, context: Context) -> Callable[..., Any]:
    ends = context.ends

    def run(state: QueueState, *values: Any) -> tuple[()]:
        _check_types(state, node, "Tcomponents")
        counts = {np.shape(each)[:1] for each in values}
        if len(counts) != 1 or () in counts:
            raise InvalidArgumentError(
                f"{node.type}: all components must have the same first dimension, got shapes "
                f"{', '.join(str(list(np.shape(each))) for each in values)}",
                node,
            )
        copies = [np.array(each, order="C") for each in values]
        rows = range(counts.pop()[0])
        elements = [tuple([np.asarray(each[(i, ...)]) for each in copies]) for i in rows]
        state.enqueue(elements, ends)
        return ()

    return run


@kernel("QueueDequeueV2", handles=(0,), only=("numpy",), traceable=False)
def dequeue(node: Node, context: Context) -> Callable[..., Any]:
    ends = context.ends

    def run(state: QueueState) -> Any:
        _check_types(state, node, "component_types")
        (element,) = state.dequeue(1, ends)
        return element[0] if len(element) == 1 else element

    return run


@kernel(
    "QueueDequeueManyV2", "QueueDequeueUpToV2", host=(1,), handles=(0,), only=("numpy",),
    traceable=False,
)  # fmt: skip
def dequeue_many(node: Node, context: Context) -> Callable[..., Any]:
    ends, allows_fewer = context.ends, node.type == "QueueDequeueUpToV2"

    def run(state: QueueState, n: Any) -> Any:
        _check_types(state, node, "component_types")
        _require_shapes(state, node)
        if n.shape != () or n < 0:
            raise InvalidArgumentError(f"{node.type} requires a number from 0, got {n}", node)
        rows = state.dequeue(int(n), ends, allows_fewer=allows_fewer)
        made = tuple([_stacked(state, rows, i) for i in range(len(state.dtypes))])
        return made[0] if len(made) == 1 else made

    return run


def _stacked(state: QueueState, rows: list[Any], i: int) -> Any:
    if rows:
        return np.stack([row[i] for row in rows])
    dtype = state.dtypes[i].numpy
    return np.empty((0, *(state.dims[i] or ())), object if dtype is None else dtype)
