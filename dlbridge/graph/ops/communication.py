"""Values that pass between the tasks of a cluster: the op types of what a partition adds."""

from __future__ import annotations

from dlbridge.graph.core.inference import unknown
from dlbridge.graph.ops.shared import define

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
