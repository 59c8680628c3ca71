"""Collective operations: reductions, gathers and broadcasts between the tasks of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.inference import Inference, merge, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Shapes, as_tensor, define, result
from dlbridge.proto.datatypes import as_dtype
from dlbridge.shape import as_shape

__all__ = ["all_gather", "all_reduce", "broadcast_recv", "broadcast_send"]

_REDUCED = "{bfloat16, float32, float16, float64, int32, int64}"
_GATHERED = "{float32, float16, float64, int32, int64}"
_SENT = "{bool, float32, float16, float64, int32, int64}"
_KEYS = "group_size: int, group_key: int, instance_key: int"
_KEY_INPUTS = "group_size: int32, group_key: int32, instance_key: int32"
_OPTIONS = 'communication_hint: string = "auto", timeout_seconds: float = 0.0'
_OPS = 'merge_op: {"Min", "Max", "Mul", "Add"}, final_op: {"Id", "Div"}'
_ORDER = "ordering_token: Nordering_token * resource"
_STATE = "is_stateless: bool = false, Nordering_token: int >= 0 = 0"


# ==== op types ====================================================================================


def _declared(c: Inference) -> Shapes:
    return [c.attrs["shape"].dims]


def _declared_v2(c: Inference) -> Shapes:
    return [c.constant_dims(3)]


def _gathered(c: Inference) -> Shapes:
    """All that is known before the group is: the first dimension grows."""
    dims = c.dims(0)
    return [(None, *dims[1:]) if dims else None]


def _combined(c: Inference) -> Shapes:
    dims = c.dims(0)
    for i in range(1, len(c.inputs)):
        dims = merge(dims, c.dims(i), c)
    if c.attrs["how"] != b"Gather" or not dims:
        return [dims]
    return [(None if dims[0] is None else dims[0] * len(c.inputs), *dims[1:])]


define(
    f"CollectiveReduce(input: T, *, T: {_REDUCED}, {_KEYS}, {_OPS}, subdiv_offsets: list(int), "
    f"wait_for: list(int) = [], {_OPTIONS}) -> data: T",
    shape=unchanged,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveReduceV2(input: T, {_KEY_INPUTS}, {_ORDER}, *, T: {_REDUCED}, {_OPS}, {_OPTIONS}, "
    f"{_STATE}, max_subdivs_per_device: int = -1) -> data: T",
    shape=unchanged,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveGather(input: T, *, T: {_GATHERED}, {_KEYS}, shape: shape, {_OPTIONS}) -> data: T",
    shape=_gathered,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveGatherV2(input: T, {_KEY_INPUTS}, {_ORDER}, *, T: {_GATHERED}, {_OPTIONS}, "
    f"{_STATE}) -> data: T",
    shape=_gathered,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveBcastSend(input: T, *, T: {_SENT}, {_KEYS}, shape: shape, {_OPTIONS}) -> data: T",
    shape=_declared,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveBcastSendV2(input: T, {_KEY_INPUTS}, *, T: {_SENT}, {_OPTIONS}) -> data: T",
    shape=unchanged,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveBcastRecv(*, T: {_SENT}, {_KEYS}, shape: shape, {_OPTIONS}) -> data: T",
    shape=_declared,
    stateful=True,
    distributed=True,
)
define(
    f"CollectiveBcastRecvV2({_KEY_INPUTS}, shape: Tshape, *, T: {_SENT}, "
    f"Tshape: {{int32, int64}} = int32, {_OPTIONS}) -> data: T",
    shape=_declared_v2,
    stateful=True,
    distributed=True,
)
# One member combines the values of several; `what` names the member in errors.
define(
    "DLBridge>Combine(values: N * T, *, N: int >= 1, T: type, "
    'how: {"Add", "Mul", "Min", "Max", "Gather"}, divisor: int >= 1 = 1, what: string) -> data: T',
    shape=_combined,
)


# ==== functions ===================================================================================


def all_reduce(
    t: Any,
    group_size: int,
    group_key: int,
    instance_key: int,
    merge_op: str = "Add",
    final_op: str = "Id",
    subdiv_offsets: Sequence[int] = (0,),
    communication_hint: str = "auto",
    timeout: float = 0,
) -> Tensor:
    """Reduce tensors element by element across the members of a group; each gets the result.

    The members are operations on the tasks of a cluster, all of them in one graph and in one run.

    Args:
        t: this member's tensor: bfloat16, float16, float32, float64, int32 or int64; the others
            have the same dtype and shape.
        group_size: the number of members.
        group_key: the number of the group; its members say the same size everywhere.
        instance_key: which operation of the group it is: the members of one have the same.
        merge_op: "Add", "Mul", "Min" or "Max".
        final_op: "Id", or "Div" for division by the number of members.
        subdiv_offsets: without effect.
        communication_hint: without effect.
        timeout: without effect.

    Raises:
        ValueError: `group_size` is less than 1.

    When it runs:
        InvalidArgumentError: on all tasks: members are missing from the run, or differ in size of
            the group, kind, dtype, shape or operations; or they wait for each other.

    All members get the same bits.
    """
    _check_size("all_reduce", group_size, 1)
    said = _said(group_size, group_key, instance_key, communication_hint, timeout)
    return result(
        "CollectiveReduce",
        (t,),
        merge_op=merge_op,
        final_op=final_op,
        subdiv_offsets=subdiv_offsets,
        **said,
    )


def all_gather(
    t: Any,
    group_size: int,
    group_key: int,
    instance_key: int,
    communication_hint: str = "auto",
    timeout: float = 0,
) -> Tensor:
    """Concatenate the tensors of a group's members along the first dimension; each gets the result.

    They come in the order of the tasks. Arguments and errors are those of `all_reduce`.

    Args:
        t: this member's tensor: float16, float32, float64, int32 or int64, with at least one
            dimension.
        group_size, group_key, instance_key: as of `all_reduce`.
        communication_hint, timeout: without effect.
    """
    _check_size("all_gather", group_size, 1)
    said = _said(group_size, group_key, instance_key, communication_hint, timeout)
    return result("CollectiveGather", (t,), shape=[0], **said)


def broadcast_send(
    t: Any,
    shape: Any,
    dtype: Any,
    group_size: int,
    group_key: int,
    instance_key: int,
    communication_hint: str = "auto",
    timeout: float = 0,
) -> Tensor:
    """Send a tensor to all other members of a group, each a `broadcast_recv`; return it.

    Args:
        t: the tensor: bool, float16, float32, float64, int32 or int64.
        shape: of `t`, all of it known.
        dtype: of `t`.
        group_size: the number of members, this one included.
        group_key, instance_key: as of `all_reduce`.
        communication_hint, timeout: without effect.

    Raises:
        ValueError: `group_size` is less than 2; `t` has another shape or dtype.
    """
    _check_size("broadcast_send", group_size, 2)
    t = as_tensor(t, as_dtype(dtype))
    if t.shape.as_list() != as_shape(shape).as_list():
        raise ValueError(
            "Shape of broadcast_send tensor `t` not equal to declared shape. "
            f"Received {t.shape}, expected {as_shape(shape)}."
        )
    if t.dtype != as_dtype(dtype):
        raise ValueError(
            "Type of broadcast_send tensor `t` not equal to declared type. "
            f"Received {t.dtype}, expected {as_dtype(dtype)}."
        )
    said = _said(group_size, group_key, instance_key, communication_hint, timeout)
    return result("CollectiveBcastSend", (t,), shape=as_shape(shape), **said)


def broadcast_recv(
    shape: Any,
    dtype: Any,
    group_size: int,
    group_key: int,
    instance_key: int,
    communication_hint: str = "auto",
    timeout: float = 0,
) -> Tensor:
    """Return the tensor of the `broadcast_send` of a group, which has this shape and dtype.

    Args:
        shape, dtype: of the tensor.
        group_size: the number of members, the sender included.
        group_key, instance_key: as of `all_reduce`.
        communication_hint, timeout: without effect.

    Raises:
        ValueError: `group_size` is less than 2.
    """
    _check_size("broadcast_recv", group_size, 2)
    said = _said(group_size, group_key, instance_key, communication_hint, timeout)
    return result("CollectiveBcastRecv", (), T=as_dtype(dtype), shape=as_shape(shape), **said)


def _said(size: int, group: int, instance: int, hint: str, timeout: float) -> dict[str, Any]:
    """Return the attributes that all members of an operation have."""
    return {
        "group_size": size,
        "group_key": group,
        "instance_key": instance,
        "communication_hint": hint.lower(),
        "timeout_seconds": timeout,
    }


def _check_size(call: str, size: int, least: int) -> None:
    if size < least:
        raise ValueError(
            f"Parameter `group_size` to {call} must be at least {least}. Received: {size}."
        )
