"""On which task of a cluster each node runs, by the rules of TensorFlow's placer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.graph.core.scopes import DeviceSpec
from dlbridge.graph.distributed.cluster import Task
from dlbridge.proto.datatypes import DataType

_METADATA = ("Rank", "Shape", "Size")
Place = tuple[str | None, int | None, int | None]
"""Job, replica and task that a device string asks for; None is any."""
_ANYWHERE: Place = (None, None, None)
_SHOWN = 8  # tasks that an error names


def assign(nodes: Sequence[Any], tasks: Sequence[Task], default: Task) -> dict[Any, Task]:
    """Return the task of each node.

    A node runs on the first task that fits its device. What reads or writes a variable runs where
    the variable is, whatever its own device; a group of `colocate_with` runs on one task. Of the
    others without a device, one without inputs runs where all its consumers do, and one that only
    looks at the shape of its input where that is made; the rest run on `default`.

    Args:
        nodes: all of a graph, also those that a run does not need: all count as consumers.
        tasks: of the cluster.
        default: the task of the session.

    Raises:
        InvalidArgumentError: no task fits; nodes that must share one ask for different ones.
    """
    groups, users = _groups(nodes)
    finder = _Finder(tasks, default)
    asked = _asked(nodes, groups, users)
    members = _leaders(groups)
    found: dict[Any, Task] = {}
    late = []
    for node in nodes:
        leader = groups.get(node, node)
        device = asked.get(leader)
        if device is not None:
            found[node] = finder.find(device, node)
        elif leader is node and node not in members and _is_generator(node):
            late.append(node)
        elif leader is node and node not in members and node.type in _METADATA:
            found[node] = found.get(node.inputs[0].op, default)
        else:
            found[node] = default
    if late:
        consumers = _consumers(late, nodes)
        for node in late:
            places = {found.get(each, default) for each in consumers[node]}
            found[node] = places.pop() if len(places) == 1 else default
    return found


class _Finder:
    """Finds the first task that fits a device."""

    def __init__(self, tasks: Sequence[Task], default: Task) -> None:
        self._tasks = tasks
        self._default = default
        self._known: dict[Place, Task] = {}
        self._exact: dict[Place, Task] = {(task.job, 0, task.task): task for task in tasks}

    def find(self, device: Place, node: Any) -> Task:
        task = self._exact.get(device) or self._known.get(device)
        if task is None:
            task = self._known[device] = self._search(device, node)
        return task

    def _search(self, device: Place, node: Any) -> Task:
        job, replica, index = device
        for task in (self._default, *self._tasks) if job is None else self._tasks:
            if job in (None, task.job) and replica in (None, 0) and index in (None, task.task):
                return task
        there = ", ".join(map(str, self._tasks[:_SHOWN]))
        more = ", ..." if len(self._tasks) > _SHOWN else ""
        raise InvalidArgumentError(
            f"Cannot assign a device for operation {node.name}: it was explicitly assigned to "
            f"{node.device}, and the cluster has these tasks: {there}{more}. Change the device, "
            "or add the task to the ClusterSpec",
            node,
        )


# ---- nodes that share a task -------------------------------------------------------------------


def _groups(nodes: Sequence[Any]) -> tuple[dict[Any, Any], set[Any]]:
    """Return which nodes share a task, and those that do because they use a variable.

    Returns:
        One node of its group for each node that is in one, and the nodes that take a variable.
    """
    leader: dict[Any, Any] = {}
    users: set[Any] = set()

    def find(x: Any) -> Any:
        while (above := leader.setdefault(x, x)) is not x:
            leader[x] = leader[above]
            x = leader[x]
        return x

    by_name: dict[bytes, Any] | None = None
    for node in nodes:
        for i, each in enumerate(node.inputs):
            if _is_shared(each.dtype, node, i):
                users.add(node)
                leader[find(node)] = find(each.op)
        labels = node.attrs.get("_class")
        if labels:
            if by_name is None:
                by_name = {f"loc:@{each.name}".encode(): each for each in nodes}
            for label in labels:
                if label.startswith(b"loc:@"):
                    leader[find(node)] = find(by_name.setdefault(label, node))
    return {node: find(node) for node in leader}, users


def _is_shared(kind: DataType, node: Any, i: int) -> bool:
    """Return whether input `i` is a variable itself, not its value."""
    if not kind.is_ref:
        return kind.kind == "h"
    arguments = node.definition.inputs
    return bool(arguments[min(i, len(arguments) - 1)].is_ref)


def _leaders(groups: Mapping[Any, Any]) -> set[Any]:
    """Return the leaders of groups of several nodes."""
    return {leader for node, leader in groups.items() if leader is not node}


def _asked(
    nodes: Sequence[Any], groups: Mapping[Any, Any], users: Collection[Any]
) -> dict[Any, Place]:
    """Return for each group, by its leader, the task that its nodes ask for, if they do.

    What a variable asks for counts more than what its users do, and these in order of creation.
    """
    read: dict[str, Place] = {}
    asked: dict[Any, Place] = {}
    late = []
    for node in nodes:
        text = node.device
        if not text:
            continue
        if text not in read:
            spec = DeviceSpec.from_string(text)
            read[text] = spec.job, spec.replica, spec.task
        if read[text] == _ANYWHERE:
            continue
        if node in users:
            late.append(node)
        else:
            _ask(asked, groups.get(node, node), node, read[text])
    for node in late:
        leader = groups.get(node, node)
        if leader not in asked or _fits(asked[leader], read[node.device]):
            _ask(asked, leader, node, read[node.device])
    return asked


def _ask(asked: dict[Any, Place], leader: Any, node: Any, device: Place) -> None:
    """Add what a node asks for."""
    before = asked.setdefault(leader, device)
    if before == device:
        return
    if not _fits(before, device):
        raise InvalidArgumentError(
            f"Cannot colocate nodes {node.name} and {leader.name}: they must run on one task, and "
            f"ask for different ones; {node.name} for {node.device}, others of their group for "
            f"{DeviceSpec(*before).to_string()}",
            node,
        )
    spec = DeviceSpec(*before).make_merged_spec(DeviceSpec(*device))
    asked[leader] = spec.job, spec.replica, spec.task


def _fits(before: Place, device: Place) -> bool:
    """Return whether there may be a task for both."""
    return all(None in pair or pair[0] == pair[1] for pair in zip(before, device, strict=True))


# ---- nodes that follow others ------------------------------------------------------------------


def _is_generator(node: Any) -> bool:
    kinds = node.output_types
    return not node.inputs and len(kinds) == 1 and not kinds[0].is_ref


def _consumers(wanted: Sequence[Any], nodes: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return the nodes that take results of `wanted`, or run after them."""
    found: dict[Any, list[Any]] = {node: [] for node in wanted}
    for node in nodes:
        for each in node.inputs:
            if each.op in found:
                found[each.op].append(node)
        for before in node.control_inputs:
            if before in found:
                found[before].append(node)
    return found
