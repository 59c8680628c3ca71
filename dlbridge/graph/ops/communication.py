"""Values that pass between processes: what a partition adds, and the calls of `dlbridge.mpi`."""

from __future__ import annotations

import sys
from typing import Any

from dlbridge.graph.core.inference import Inference, unknown
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Shapes, define, result
from dlbridge.mpi import operators
from dlbridge.mpi.linear import Parameters

_NAMES = (
    "tensor_name: string, send_device: string, send_device_incarnation: int, "
    "recv_device: string, client_terminated: bool = false"
)

define(f"_Send(tensor: T, *, T: type, {_NAMES})", shape=unknown, stateful=True)
define(
    f"_Recv(*, tensor_type: type, {_NAMES}) -> tensor: tensor_type",
    shape=unknown,
    stateful=True,
    distributed=True,
)


# ---- dlbridge.mpi with a Tensor of a graph -----------------------------------------------------


def _exchanged(c: Inference) -> Shapes:
    """Return the shapes that a graph knows; only a call asks how many processes there are."""
    dims, name = c.dims(0), c.attrs["call"]
    if dims is None or name in (b"allreduce", b"bcast", b"alltoall"):
        return [dims]
    if name == b"allgather":
        return [(None, *dims)]
    if not dims:
        raise c.error("reduce_scatter: Shape must be at least rank 1 but is rank 0")
    return [dims[1:]]


def parameters(attrs: Any) -> Parameters:
    """Return which call of `dlbridge.mpi` a node makes, by its attributes."""
    name, op = attrs["call"].decode(), attrs["op"].decode()
    return Parameters(name, op, attrs["root"], attrs["comm"])


_CALLS = '{"allreduce", "bcast", "allgather", "reduce_scatter", "alltoall"}'
define(
    f"DLBridge>Mpi(input: T, *, T: type, call: {_CALLS}, op: string, root: int, comm: int) "
    "-> output: T",
    shape=_exchanged,
    stateful=True,
)


def is_needed(x: Any, _: bool) -> bool:
    """Return whether a value is a Tensor of a graph."""
    return isinstance(x, Tensor)


def call(x: Any, what: Parameters) -> Tensor:
    """Return the Tensor of the result; the call is made whenever its operation runs."""
    return result("DLBridge>Mpi", (x,), call=what.name, op=what.op, root=what.root, comm=what.comm)


operators.add(sys.modules[__name__])
