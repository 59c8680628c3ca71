"""`tf.collective_ops`: reductions, gathers and broadcasts between the tasks of a cluster."""

from dlbridge.graph.ops.collectives import all_gather, all_reduce, broadcast_recv, broadcast_send

__all__ = ["all_gather", "all_reduce", "broadcast_recv", "broadcast_send"]
