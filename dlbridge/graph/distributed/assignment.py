"""On which task of a cluster each node runs, by the rules of TensorFlow's placer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.graph.core.scopes import DeviceSpec
from dlbridge.graph.distributed.cluster import Task
from dlbridge.proto.datatypes import DataType

_METADATA = ("Rank", "Shape", "Size")
_PLACE = ("job", "replica", "task")
_SHOWN = 8  # tasks that an error names


def assign(nodes: Sequence[Any], tasks: Sequence[Task], default: Task) -> dict[Any, Task]:
    """Return the task of each node.

    A node runs on the first task that fits its device. Nodes that share a variable or a group of
    `colocate_with` run on one task. Of the others without a device, one without inputs runs where
    all its consumers do, and one that only looks at the shape of its input where that is made;
    the rest run on `default`.

    Args:
        nodes: all of a graph, also those that a run does not need: all count as consumers.
        tasks: of the cluster.
        default: the task of the session.

    Raises:
        InvalidArgumentError: no task fits; nodes that must share one ask for different ones.
    """
    groups = _groups(nodes)
    finder = _Finder(tasks, default)
    asked = _asked(nodes, groups)
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
        self._known: dict[tuple[Any, ...], Task] = {}
        self._exact = {(task.job, 0, task.task): task for task in tasks}

    def find(self, device: tuple[Any, ...], node: Any) -> Task:
        task = self._exact.get(device) or self._known.get(device)
        if task is None:
            task = self._known[device] = self._search(device, node)
        return task

    def _search(self, device: tuple[Any, ...], node: Any) -> Task:
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


def _groups(nodes: Sequence[Any]) -> dict[Any, Any]:
    """Return the first node of the group of each node that must share its task with others."""
    leader: dict[Any, Any] = {}

    def find(x: Any) -> Any:
        while (above := leader.setdefault(x, x)) is not x:
            leader[x] = leader[above]
            x = leader[x]
        return x

    by_name: dict[bytes, Any] | None = None
    for node in nodes:
        for i, each in enumerate(node.inputs):
            if _is_shared(each.dtype, node, i):
                leader[find(node)] = find(each.op)
        labels = node.attrs.get("_class")
        if labels:
            if by_name is None:
                by_name = {f"loc:@{each.name}".encode(): each for each in nodes}
            for label in labels:
                if label.startswith(b"loc:@"):
                    leader[find(node)] = find(by_name.setdefault(label, node))
    return {node: find(node) for node in leader}


def _is_shared(kind: DataType, node: Any, i: int) -> bool:
    """Tell whether input `i` is a variable itself, not its value."""
    if not kind.is_ref:
        return kind.kind == "h"
    arguments = node.definition.inputs
    return bool(arguments[min(i, len(arguments) - 1)].is_ref)


def _leaders(groups: Mapping[Any, Any]) -> set[Any]:
    """Return the leaders of groups of several nodes."""
    return {leader for node, leader in groups.items() if leader is not node}


def _asked(nodes: Sequence[Any], groups: Mapping[Any, Any]) -> dict[Any, tuple[Any, ...]]:
    """Return for each group, by its leader, the task that its nodes ask for, if they do."""
    read: dict[str, tuple[Any, ...] | None] = {}
    asked: dict[Any, tuple[Any, ...]] = {}
    for node in nodes:
        text = node.device
        if not text:
            continue
        if text not in read:
            spec = DeviceSpec.from_string(text)
            wanted = tuple([getattr(spec, part) for part in _PLACE])
            read[text] = None if wanted == (None, None, None) else wanted
        device = read[text]
        if device is None:
            continue
        leader = groups.get(node, node)
        before = asked.setdefault(leader, device)
        if before != device:
            asked[leader] = _merge(before, device, node, leader)
    return asked


def _merge(
    before: tuple[Any, ...], device: tuple[Any, ...], node: Any, leader: Any
) -> tuple[Any, ...]:
    merged = []
    for name, a, b in zip(_PLACE, before, device, strict=True):
        if None not in (a, b) and a != b:
            raise InvalidArgumentError(
                f"Cannot colocate nodes {node.name} and {leader.name}: they must run on one task, "
                f"and ask for different ones: {name} {a} and {name} {b} ({node.device}). Nodes "
                "share a task that use one variable, or are in one group of colocate_with",
                node,
            )
        merged.append(b if a is None else a)
    return tuple(merged)


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
