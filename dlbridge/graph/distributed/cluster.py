"""ClusterSpec: the tasks of a cluster, and device functions that spread variables over them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple, Self

import numpy as np

from dlbridge import mpi
from dlbridge.errors import ArgumentError
from dlbridge.graph.core.scopes import DeviceSpec

__all__ = ["ClusterSpec", "replica_device_setter"]


_HOST = 256  # bytes for the name of a host


class Task(NamedTuple):
    """One process of a cluster; its string is the beginning of the names of its devices."""

    job: str
    task: int

    def __str__(self) -> str:
        return f"/job:{self.job}/replica:0/task:{self.task}"


class ClusterSpec:
    """The jobs of a cluster, each a number of tasks with their addresses.

    Args:
        cluster: a ClusterSpec, or a dict from the names of jobs to their addresses: a list, or a
            dict from the index of a task to its address.

    Raises:
        TypeError: it is none of these.

    Example:
        >>> import dlbridge.graph as tf
        >>> cluster = tf.train.ClusterSpec({"ps": ["a:2222"], "worker": ["a:2223", "b:2222"]})
        >>> cluster.jobs, cluster.num_tasks("worker"), cluster.task_address("worker", 1)
        (['ps', 'worker'], 2, 'b:2222')
    """

    _jobs: dict[str, dict[int, str]]

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs = {job: dict(tasks) for job, tasks in cluster._jobs.items()}
            return
        if not isinstance(cluster, Mapping):
            raise TypeError(
                "ClusterSpec: cluster must be a dict from the names of jobs to lists of addresses, "
                f"or a ClusterSpec, got {cluster!r}"
            )
        self._jobs = {_check_job(job): _read_tasks(job, cluster[job]) for job in sorted(cluster)}

    @classmethod
    def from_mpi(cls, jobs: Mapping[str, int] | None = None) -> Self:
        """Return the cluster of the MPI job that this process is in; all of its processes call it.

        The addresses are the names of the hosts, with the ranks after a colon. Tasks follow the
        ranks, job by job in the order of the names, as `Server` counts them.

        Args:
            jobs: how many tasks jobs have, all other processes being tasks of "worker"; by default
                all are.

        Raises:
            ArgumentError: there are not so many processes.
            FrameworkMissingError: mpi4py is not installed, or finds no MPI library.
        """
        counts = dict(jobs or {})
        if any(n < 1 for n in counts.values()):
            raise ArgumentError(f"from_mpi: jobs must be names to positive numbers, got {jobs!r}")
        host = socket.gethostname().encode()[:_HOST]
        name = np.zeros(_HOST, np.uint8)
        name[: len(host)] = np.frombuffer(host, np.uint8)
        hosts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in mpi.allgather(name)]
        rest = len(hosts) - sum(counts.values())
        if rest < 0 or ("worker" in counts and rest):
            raise ArgumentError(
                f"from_mpi: jobs {counts} have {sum(counts.values())} tasks, and mpiexec has "
                f"started {len(hosts)} processes"
            )
        if rest:
            counts["worker"] = rest
        addresses = iter([f"{each}:{rank}" for rank, each in enumerate(hosts)])
        return cls({job: [next(addresses) for _ in range(counts[job])] for job in sorted(counts)})

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Return how many tasks a job has."""
        return len(self._tasks_of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of the tasks of a job."""
        return list(self._tasks_of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of a task."""
        tasks = self._tasks_of(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}.")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of the tasks of a job; None where an index has no task."""
        tasks = self._tasks_of(job_name)
        return [tasks.get(i) for i in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """Return what `ClusterSpec` takes: lists where the indices of tasks have no gaps."""
        return {
            job: list(tasks.values())
            if tasks and list(tasks) == list(range(len(tasks)))
            else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def tasks(self) -> list[Task]:
        """Return all tasks, job by job."""
        return [Task(job, index) for job, tasks in self._jobs.items() for index in tasks]

    def _tasks_of(self, job: str) -> dict[int, str]:
        if job not in self._jobs:
            raise ValueError(f"No such job in cluster: {job!r}")
        return self._jobs[job]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def _check_job(name: Any) -> Any:
    spec = DeviceSpec.from_string(f"/job:{name}") if isinstance(name, str) and name else None
    if spec is None or spec.job != name:
        raise TypeError(f"ClusterSpec: the name of a job must be a word, got {name!r}")
    return name


def _read_tasks(job: str, given: Any) -> dict[int, str]:
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise TypeError(
            f"ClusterSpec: job {job!r} must have a list of addresses, or a dict from indices to "
            f"addresses, got {given!r}"
        )
    items = given.items() if isinstance(given, Mapping) else enumerate(given)
    tasks: dict[int, str] = {}
    for index, address in items:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise TypeError(f"ClusterSpec: job {job!r} has a task {index!r}; expected 0, 1, ...")
        if not isinstance(address, str):
            raise TypeError(
                f"ClusterSpec: task {index} of job {job!r} must have an address such as "
                f"'host:2222', got {address!r}"
            )
        tasks[index] = address
    return dict(sorted(tasks.items()))


# ---- variables on parameter servers ------------------------------------------------------------

PS_OPS = (
    "AutoReloadVariable", "MutableDenseHashTable", "MutableDenseHashTableV2", "MutableHashTable",
    "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2", "MutableHashTableV2",
    "VarHandleOp", "Variable", "VariableV2",
)  # fmt: skip


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Collection[str] | None = None,
    ps_strategy: Callable[[Any], int] | None = None,
) -> Callable[[Any], str] | None:
    """Return a function for `tf.device` that places variables on `ps_device`, all else on a worker.

    Args:
        ps_tasks: how many tasks of the job of `ps_device` there are; 0 without `cluster` is none.
        ps_device: where variables are.
        worker_device: where all other operations run.
        merge_devices: whether operations in inner blocks of `tf.device` are placed as well: what
            the inner block says takes precedence.
        cluster: a ClusterSpec or a dict as it takes, from which `ps_tasks` is read.
        ps_ops: the op types of variables.
        ps_strategy: returns the index of the task for an operation; in turn by default.

    Returns:
        The function; None where there are no tasks for variables.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        ...     w, b = (tf.Variable(0.0, name=name) for name in "wb")
        ...     print(w.device, b.device, (w + b).device)
        /job:ps/task:0 /job:ps/task:1 /job:worker
    """
    if cluster is not None:
        spec, job = ClusterSpec(cluster), DeviceSpec.from_string(ps_device).job
        if job is None or job not in spec.jobs:
            return None
        ps_tasks = spec.num_tasks(job)
    if not ps_tasks:
        return None
    turns = cycle(range(ps_tasks))
    choose = ps_strategy or (lambda _: next(turns))
    if not callable(choose):
        raise TypeError(f"replica_device_setter: ps_strategy must be callable, got {ps_strategy!r}")
    variables = frozenset(PS_OPS if ps_ops is None else ps_ops)
    servers, workers = DeviceSpec.from_string(ps_device), DeviceSpec.from_string(worker_device)

    def place(op: Any) -> str:
        if op.device and not merge_devices:
            return str(op.device)
        inner = DeviceSpec.from_string(op.device or "")
        if op.type not in variables or not ps_device:
            return workers.make_merged_spec(inner).to_string()
        outer = servers
        if servers.job and inner.job in (None, servers.job):
            outer = servers._replace(task=choose(op))
        return outer.make_merged_spec(inner).to_string()

    return place
