"""Collective operations of a graph, written as nodes that pass values from member to member.

The graph is copied; in the copy each member is an ordinary node, which takes values of others. So
the partition sends them like all values that pass between tasks, in the one order that all tasks
have: a collective adds no way to wait for each other, and one of which a member fails ends like any
run. What cannot be done is refused before anything runs.

A reduction takes log2(n) rounds, in each of which a member adds the value of a partner to its own,
the lower one's first: so all have the same bits. A member beyond a power of two gives its value to
a partner before, and takes the result after. A gather and a broadcast send values as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.planner import Edges
from dlbridge.graph.core.exporter import FRAMEWORK, graph_def
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.inference import constant_dims, constant_value
from dlbridge.graph.core.scopes import DeviceSpec
from dlbridge.graph.distributed.cluster import Task
from dlbridge.graph.graphdef.importer import load_graph
from dlbridge.proto.attributes import write_attr
from dlbridge.shape import Dims, TensorShape

_KEYS = ("group_size", "group_key", "instance_key")
_MERGES = (b"Add", b"Mul", b"Min", b"Max")


class Member(NamedTuple):
    """A collective operation.

    Attributes:
        op: of the graph.
        kind: "Reduce", "Gather" or "Bcast".
        size: of its group.
        group, instance: its keys.
        task: where it runs.
        receives: whether it has no value of its own.
        dims: the static shape of its value, or of that which it receives.
    """

    op: Any
    kind: str
    size: int
    group: int
    instance: int
    task: Task
    receives: bool
    dims: Dims | None

    def said(self) -> str:
        """Return what it says of its call, as errors have it."""
        attrs = self.op.attrs
        shape = TensorShape(self.dims)
        text = f"{self.op.name} on {self.task}: {self.op.type} of {attrs['T'].name}, shape {shape}"
        if self.kind == "Reduce":
            text += f", {attrs['merge_op'].decode()} and {attrs['final_op'].decode()}"
        return f"{text}, group_size {self.size}"


def expand(
    graph: Graph,
    nodes: Sequence[Any],
    fed: Collection[Any],
    places: Mapping[Any, Task],
    tasks: Sequence[Task],
) -> Graph | None:
    """Return a copy of a graph without the collective operations of a run, None if there are none.

    Args:
        graph: the whole graph.
        nodes: that the run needs.
        fed: the tensors that are fed.
        places: the task of each node.
        tasks: of the cluster: they are the order of the members.

    Raises:
        InvalidArgumentError: members are missing, differ, or wait for each other.
    """
    numbers = {task: i for i, task in enumerate(tasks)}
    members = [_read(node, places[node]) for node in nodes if node.type.startswith("Collective")]
    if not members:
        return None
    groups: dict[tuple[int, int], list[Member]] = {}
    for each in sorted(members, key=lambda each: (numbers[each.task], each.op.id)):
        groups.setdefault((each.group, each.instance), []).append(each)
    _check_sizes(members)
    for group in groups.values():
        _check(group)
    _check_order(nodes, fed, groups.values())
    message = graph_def(graph)
    writer = _Writer(message)
    for group in groups.values():
        _WRITERS[group[0].kind](writer, group)
    return load_graph(message)


def _read(node: Any, task: Task) -> Member:
    """Return a member; the second version of an op type has its keys as inputs."""
    kind = next((each for each in _WRITERS if each in node.type), None)
    if kind is None:
        raise InvalidArgumentError(f"{node.type} runs in no session of dlbridge", node)
    receives, attrs = "Recv" in node.type, node.attrs
    if not node.type.endswith("V2"):
        size, group, instance = (attrs[key] for key in _KEYS)
        dims = attrs["shape"].dims if kind == "Bcast" else node.inputs[0]._dims
        return Member(node, kind, size, group, instance, task, receives, dims)
    first = 0 if receives else 1
    values = [constant_value(node.inputs[first + i]) for i in range(3)]
    for key, value in zip(_KEYS, values, strict=True):
        if value is None or value.shape:
            raise InvalidArgumentError(
                f"{node.type}: {key} must be a constant of the graph, a scalar", node
            )
    size, group, instance = map(int, values)
    dims = constant_dims(node.inputs[3]) if receives else node.inputs[0]._dims
    return Member(node, kind, size, group, instance, task, receives, dims)


# ---- checks ------------------------------------------------------------------------------------


def _check_sizes(members: Sequence[Member]) -> None:
    """Raise unless all members of a group say the same size of it."""
    first: dict[int, Member] = {}
    for each in members:
        other = first.setdefault(each.group, each)
        if each.size != other.size:
            raise _differ(f"group_key {each.group}", "have the same group_size", (other, each))


def _check(group: Sequence[Member]) -> None:
    """Raise unless the members of one operation belong together, and are all there."""
    first = group[0]
    where = f"group_key {first.group} and instance_key {first.instance}"
    if len(group) != first.size:
        raise InvalidArgumentError(
            f"Collective operations of {where} have group_size {first.size}, and this run has "
            f"{len(group)} of them: {', '.join(each.op.name for each in group)}; fetch all in one "
            "run, each with keys of its own group and operation",
            first.op,
        )
    senders = [each for each in group if not each.receives]
    if first.kind == "Bcast" and len(senders) != 1:
        raise _differ(where, "be one CollectiveBcastSend and otherwise CollectiveBcastRecv", group)
    dims, other = None, first
    for each in group:
        same = each.kind == first.kind and all(
            each.op.attrs.get(name) == first.op.attrs.get(name)
            for name in ("T", "merge_op", "final_op")
        )
        if not same or not _fit(dims, each.dims):
            raise _differ(where, "be of the same kind, dtype and shape", (other, each))
        if dims is None:
            dims, other = each.dims, each


def _fit(one: Dims | None, other: Dims | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def _differ(where: str, rule: str, members: Sequence[Member]) -> InvalidArgumentError:
    said = "; ".join(each.said() for each in members[:_NAMED])
    return InvalidArgumentError(
        f"Collective operations of {where} must {rule}; got {said}", members[-1].op
    )


_NAMED = 4


def _check_order(nodes: Sequence[Any], fed: Collection[Any], groups: Collection[Any]) -> None:
    """Raise where members would wait for each other: a group runs when all of it can."""
    leader = {each.op: group[0].op for group in groups for each in group}
    before: dict[Any, set[Any]] = {}
    for node, needed in Edges(nodes, fed).before.items():
        before.setdefault(leader.get(node, node), set()).update(leader.get(x, x) for x in needed)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = set(error.args[1])
        names = [op.name for op, first in leader.items() if first in cycle]
        raise InvalidArgumentError(
            f"Collective operations wait for each other: {', '.join(names)}; a member cannot need "
            "the result of its own group, and all members of two groups need these in the same "
            "order",
            next(iter(leader)),
        ) from None


# ---- members as ordinary nodes -----------------------------------------------------------------


class _Writer:
    """Writes into the GraphDef of the copy."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._nodes = {node.name: node for node in message.node}

    def value(self, member: Member) -> str:
        """Add the member's own value, once all that the member waits for has run."""
        written = self._nodes[member.op.name]
        made = self._add(member, "input", "Identity")
        made.input.extend([written.input[0], *self._controls(written)])
        made.attr["T"].CopyFrom(written.attr["T"])
        return str(made.name)

    def combine(
        self, member: Member, values: Sequence[str], how: bytes, divisor: int = 1, *, last: bool
    ) -> str:
        """Add what combines values on the member's task; the last one is the member's result."""
        written = self._result(member) if last else self._add(member, "merge", "DLBridge>Combine")
        written.op = "DLBridge>Combine"
        written.input.extend(values)
        write_attr(member.op.attrs["T"], written.attr["T"])
        for name, value in (
            ("N", len(values)),
            ("how", how),
            ("divisor", divisor),
            ("what", f"{member.op.type} {member.op.name}".encode()),
        ):
            write_attr(value, written.attr[name])
        return str(written.name)

    def take(self, member: Member, value: str) -> None:
        """Make a value the member's result."""
        written = self._result(member)
        written.op = "Identity"
        written.input.append(value)
        write_attr(member.op.attrs["T"], written.attr["T"])

    def receive(self, member: Member, value: str) -> None:
        """Make a value the member's result, if it has the shape that the member says."""
        controls = self._controls(self._nodes[member.op.name])
        written = self._result(member)
        written.op = "EnsureShape"
        written.input.extend([value, *controls])
        write_attr(member.op.attrs["T"], written.attr["T"])
        write_attr(TensorShape(member.dims), written.attr["shape"])

    def _result(self, member: Member) -> Any:
        """Return the member's node, without what its op type had."""
        written = self._nodes[member.op.name]
        kept = {
            name: written.attr.pop(name) for name in (FRAMEWORK, "_class") if name in written.attr
        }
        del written.input[:]
        written.attr.clear()
        for name, value in kept.items():
            written.attr[name].CopyFrom(value)
        written.device = self._device(member)
        return written

    def _add(self, member: Member, name: str, kind: str) -> Any:
        full, number = f"{member.op.name}/{name}", 0
        while full in self._nodes:
            number += 1
            full = f"{member.op.name}/{name}_{number}"
        made = self._nodes[full] = self._message.node.add(name=full, op=kind)
        made.device = self._device(member)
        source = self._nodes[member.op.name]
        if FRAMEWORK in source.attr:
            made.attr[FRAMEWORK].CopyFrom(source.attr[FRAMEWORK])
        return made

    @staticmethod
    def _controls(written: Any) -> list[str]:
        return [each for each in written.input if each.startswith("^")]

    @staticmethod
    def _device(member: Member) -> str:
        spec = DeviceSpec.from_string(member.op.device or "")
        return spec._replace(job=member.task.job, replica=0, task=member.task.task).to_string()


def _write_reduce(writer: _Writer, group: Sequence[Member]) -> None:
    attrs = group[0].op.attrs
    how, count = attrs["merge_op"], len(group)
    divisor = count if attrs["final_op"] == b"Div" else 1
    values = [writer.value(each) for each in group]
    power = 1 << count.bit_length() - 1
    for i in range(power, count):
        other = i - power
        pair = [values[other], values[i]]
        values[other] = writer.combine(group[other], pair, how, last=False)
    distance = 1
    while distance < power:
        last = 2 * distance == power
        values[:power] = [
            writer.combine(
                group[i],
                [values[i & ~distance], values[i | distance]],
                how,
                divisor if last else 1,
                last=last,
            )
            for i in range(power)
        ]
        distance *= 2
    if power == 1:
        writer.take(group[0], values[0])
    for i in range(power, count):
        writer.take(group[i], group[i - power].op.name)


def _write_gather(writer: _Writer, group: Sequence[Member]) -> None:
    values = [writer.value(each) for each in group]
    for each in group:
        writer.combine(each, values, b"Gather", last=True)


def _write_broadcast(writer: _Writer, group: Sequence[Member]) -> None:
    (sender,) = [each for each in group if not each.receives]
    value = writer.value(sender)
    for each in group:
        writer.receive(each, value)


_WRITERS: dict[str, Callable[[_Writer, Sequence[Member]], None]] = {
    "Reduce": _write_reduce,
    "Gather": _write_gather,
    "Bcast": _write_broadcast,
}
