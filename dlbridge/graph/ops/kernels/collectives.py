"""Kernels of collective operations: groups of one member, and what members of others compute."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element, number, text
from dlbridge.graph.ops.kernels.arithmetic import truncated_quotient

_FUNCTIONS = {b"Add": "add", b"Mul": "multiply", b"Min": "minimum", b"Max": "maximum"}


@kernel(
    "CollectiveReduce", "CollectiveReduceV2", "CollectiveGather", "CollectiveGatherV2",
    "CollectiveBcastSend", "CollectiveBcastSendV2", "CollectiveBcastRecv", "CollectiveBcastRecvV2",
    traceable=False,
)  # fmt: skip
def alone(node: Node, _: Context) -> Function:
    """Return what a member computes in a session of one process: nothing, in a group of its own."""
    size = node.attrs.get("group_size")
    if "Bcast" in node.type or size not in (None, 1):
        _refuse(node, size)

    def run(value: Any, *keys: Any) -> Any:
        if keys and int(keys[0]) != 1:
            _refuse(node, int(keys[0]))
        return value

    return run


def _refuse(node: Node, size: int | None) -> None:
    raise InvalidArgumentError(
        f"{node.type} exchanges values between the tasks of a cluster, and this session is of one "
        f"process, for groups of 1 member; group_size is {size}; run the whole graph in a session "
        "with the target of a tf.train.Server",
        node,
    )


@kernel("DLBridge>Combine")
def combine(node: Node, context: Context) -> Function:
    """Return what reduces or joins the values of several members, in their order."""
    how, what = node.attrs["how"], node.attrs["what"].decode()

    def check(values: Any) -> None:
        shapes = [tuple(each.shape) for each in values]
        if len(set(shapes)) > 1:
            raise InvalidArgumentError(
                f"{what}: all members of its group must have tensors of the same shape, got "
                f"{', '.join(map(text, dict.fromkeys(shapes)))}",
                node,
            )

    if how == b"Gather":
        concat = context.xp.concat

        def gather(*values: Any) -> Any:
            check(values)
            if not values[0].ndim:
                raise InvalidArgumentError(
                    f"{what}: the tensors must have at least one dimension, got scalars", node
                )
            return concat(values, axis=0)

        return gather

    dtype = element(node)
    if not (dtype.is_floating or dtype.is_integer):
        raise InvalidArgumentError(f"{what}: {dtype.name} is not reduced", node)
    merge = getattr(context.xp, _FUNCTIONS[how])
    divide = _divider(node, context)

    def reduce(*values: Any) -> Any:
        check(values)
        total = values[0]
        for value in values[1:]:
            total = merge(total, value)
        return total if divide is None else divide(total)

    return reduce


def _divider(node: Node, context: Context) -> Function | None:
    """Return what divides by the number of members, integers toward zero; None for 1."""
    count, dtype, xp = node.attrs["divisor"], element(node), context.xp
    if count == 1:
        return None
    divisor = number(context, count, dtype)
    divide = truncated_quotient(xp) if dtype.is_integer else xp.divide
    return lambda x: divide(x, divisor)
