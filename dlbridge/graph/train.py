"""`tf.train`: clusters, and graphs that span their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.execution.planner import prune
from dlbridge.graph.core.default_graph import get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.scopes import DeviceSpec
from dlbridge.graph.distributed.assignment import assign
from dlbridge.graph.distributed.cluster import ClusterSpec as ClusterSpec
from dlbridge.graph.distributed.cluster import Task
from dlbridge.graph.distributed.cluster import replica_device_setter as replica_device_setter
from dlbridge.graph.distributed.partition import graph_def, partition
from dlbridge.graph.distributed.server import Server as Server
from dlbridge.graph.io import write_graph
from dlbridge.graph.session import feeds as fed
from dlbridge.graph.session import fetches as fetched

__all__ = ["ClusterSpec", "Server", "partition_graph", "replica_device_setter", "write_graph"]


def partition_graph(
    fetches: Any,
    feeds: Iterable[Any] = (),
    *,
    cluster: Any,
    client: str = "",
    graph: Graph | None = None,
) -> dict[str, Any]:
    """Return the part of each task in a run over a cluster, as TensorFlow would cut the graph.

    Between tasks, values go through pairs of `_Send` and `_Recv`: one for each value and task that
    takes it, and one, for an empty value, for each node and task that only waits for its end.

    Args:
        fetches: what to run, as in `Session.run`.
        feeds: the keys of its feed dict.
        cluster: a ClusterSpec, or a dict as it takes.
        client: the device string of the task of the session, such as "/job:worker/task:0", where
            values are fed and fetched, and nodes run that are placed nowhere; the first task of the
            job "worker", or of the only job, by default.
        graph: None is the default graph.

    Returns:
        A GraphDef message for each task that has a part, by the name of the task.

    Raises:
        ArgumentError: `client` is no task of the cluster.
        InvalidArgumentError: a device is on no task; nodes that share a variable are on several.

    Example:
        >>> import dlbridge.graph as tf
        >>> cluster = {"worker": ["a:2222", "b:2222"]}
        >>> with tf.Graph().as_default():
        ...     with tf.device("/job:worker/task:0"):
        ...         x = tf.constant([1.0, 2.0], name="x")
        ...     with tf.device("/job:worker/task:1"):
        ...         y = tf.negative(x, name="y")
        ...     parts = tf.train.partition_graph(y, cluster=cluster)
        >>> for task, part in parts.items():
        ...     print(task, *(node.name for node in part.node))
        /job:worker/replica:0/task:0 x x_S0 _send_y_0 y_S3
        /job:worker/replica:0/task:1 y x_S1 y_S2
    """
    graph = graph or get_default_graph()
    spec = ClusterSpec(cluster)
    home = _task_of(client, spec)
    found, keys = fetched.resolve(graph, fetches), fed.resolve(graph, feeds).tensors
    nodes = prune(found.tensors, found.targets, frozenset(keys))
    tasks = assign(graph.get_operations(), spec.tasks(), home)
    parts = partition(nodes, tasks, keys, found.tensors, [home])
    return {str(task): graph_def(parts[task], task) for task in spec.tasks() if task in parts}


def _task_of(client: str, cluster: ClusterSpec) -> Task:
    spec = DeviceSpec.from_string(client)
    jobs = cluster.jobs
    job = spec.job or ("worker" if "worker" in jobs else jobs[0] if len(jobs) == 1 else None)
    indices = cluster.task_indices(job) if job in jobs else []
    if job is None or not indices or spec.task not in (None, *indices):
        raise ArgumentError(
            f"partition_graph: client must be a task of the cluster, such as "
            f"'/job:worker/task:0', got {client!r}; the cluster is {cluster!r}"
        )
    return Task(job, indices[0] if spec.task is None else spec.task)
