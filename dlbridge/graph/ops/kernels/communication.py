"""Kernels of what passes values between tasks; a session with a target makes their functions."""

from __future__ import annotations

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Ends, Node, kernel
from dlbridge.graph.ops.communication import parameters
from dlbridge.graph.ops.kernels import Function
from dlbridge.mpi import linear


@kernel("_Send", only=("numpy",), traceable=False)
def send(node: Node, context: Context) -> Function:
    return _ends(node, context).sender(node)


@kernel("_Recv", only=("numpy",), traceable=False)
def receive(node: Node, context: Context) -> Function:
    return _ends(node, context).receiver(node)


@kernel("DLBridge>Mpi", traceable=False)
def exchange(node: Node, context: Context) -> Function:
    """Return what makes a call of `dlbridge.mpi`, which the other processes make as well."""
    if context.ends is not None:
        raise InvalidArgumentError(
            f"mpi.{node.attrs['call'].decode()} in a graph is of sessions of one process, one on "
            "each rank; in a session with a target, tf.collective_ops exchanges values between "
            "tasks",
            node,
        )
    what = parameters(node.attrs)
    return lambda value: linear.run(value, what)


def _ends(node: Node, context: Context) -> Ends:
    if context.ends is None:
        raise InvalidArgumentError(
            f"{node.type} passes a value between the tasks of a cluster, and this session is of "
            "one process; run the whole graph, in a session with the target of a tf.train.Server",
            node,
        )
    return context.ends
