"""The parts of a graph, one for each task, and the pairs of _Send and _Recv between them.

The rules are those of TensorFlow (core/graph/graph_partition.cc): a value that several nodes of a
task take is sent to it once, and so is the end of a node that several nodes there wait for. A value
of a reference is sent to each consumer on its own, and received after all else that the consumer
needs: it may have been written by then. Values that are fed come to the task of the session, and
fetched values leave from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dlbridge.execution.planner import PLACEHOLDERS
from dlbridge.graph.core.exporter import write_node
from dlbridge.graph.distributed.cluster import Task
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType, float32
from dlbridge.proto.values import make_value
from dlbridge.shape import Dims

DEVICE = "/device:CPU:0"
_CLIENT = 0  # the number of the part of the task of the session


Order = tuple[int, int, int, int]
"""The number of a node of the graph; 0 for what comes before it, 1 for itself, 2 for what comes
after; the number of the edge; what comes first of the two nodes of an edge."""
_BEFORE, _ITSELF, _AFTER = range(3)


class Edge(NamedTuple):
    """One value that a pair of _Send and _Recv passes.

    Attributes:
        tensor_name: the name that both have for it.
        source, target: the tasks; the same one where the value comes from or goes to the client.
        dtype: of the value.
        producer, consumer: the names of the nodes; "" for the client.
        number: unique in its graph; -1 where the client is one end.
        dims: of the value, as far as they are known.
    """

    tensor_name: str
    source: Task
    target: Task
    dtype: DataType
    producer: str = ""
    consumer: str = ""
    number: int = -1
    dims: Dims | None = None

    @property
    def client_terminated(self) -> bool:
        """Whether one end is the client: the value is fed or fetched."""
        return not self.producer


class PartNode:
    """A node of a part.

    Attributes:
        name, type: as in a NodeDef.
        inputs: node of the part and index of its result.
        controls: nodes of the part that run before.
        op: the Operation of the graph, or None for what was added.
        edge: of a _Send or _Recv.
        part: the number of its part.
        order: when it runs, among the nodes of all parts: what is sent goes right after the burst
            that made it, what is received comes right before that of its first consumer.
        output: the output of the graph that is fed or fetched there, or None.
    """

    __slots__ = ("controls", "edge", "inputs", "name", "op", "order", "output", "part", "type")

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002
        inputs: list[tuple[PartNode, int]],
        op: Any,
        edge: Edge | None,
        part: int,
        order: Order,
        output: Any = None,
    ) -> None:
        self.name = name
        self.type = type
        self.inputs = inputs
        self.controls: list[PartNode] = []
        self.op = op
        self.edge = edge
        self.part = part
        self.order = order
        self.output = output

    def __repr__(self) -> str:
        return f"<{self.type} {self.name}>"


def partition(
    nodes: Sequence[Any],
    tasks: Mapping[Any, Task],
    fed: Sequence[Any],
    outputs: Sequence[Any],
    clients: Sequence[Task],
    bursts: Sequence[int] = (),
) -> dict[Task, list[PartNode]]:
    """Return the nodes of each task, in no particular order.

    Args:
        nodes: that a run needs, each after those that it needs itself.
        tasks: where each of them runs.
        fed: outputs whose values the clients pass.
        outputs: whose values the clients get.
        clients: the task of the session. Of several, each passes the values that its own nodes
            take, the first one those of tasks without a client, and each gets all outputs.
        bursts: the sizes of consecutive groups of `nodes`, each of which runs on one task and
            neither receives nor sends in between; by default each node is a group of its own.
    """
    return _Partitioner(nodes, tasks, fed, clients, bursts).run(outputs)


class _Partitioner:
    """Makes parts.

    Received values are remembered by producer and target; the index -1 is the end of a node.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        tasks: Mapping[Any, Task],
        fed: Sequence[Any],
        clients: Sequence[Task],
        bursts: Sequence[int],
    ) -> None:
        self._nodes = nodes
        self._bursts: dict[int, tuple[int, int]] = {}  # node -> first and last of its burst
        start = 0
        for size in bursts:
            ends = start, start + size - 1
            if size > 1:
                self._bursts.update(dict.fromkeys(range(start, start + size), ends))
            start += size
        self._fed: Collection[Any] = frozenset(fed)
        self._fed_in: dict[tuple[Any, int], PartNode] = {}
        self._made: dict[Any, PartNode] = {}
        self._received: dict[tuple[PartNode, int, int], PartNode] = {}
        self._places = list(clients)
        self._clients = len(clients)
        self._parts: list[list[PartNode]] = [[] for _ in clients]
        self._names = {node.name for node in nodes}
        self._edges = self._number = 0
        numbers = {task: i for i, task in enumerate(clients)}
        for number, node in enumerate(nodes):
            task = tasks[node]
            part = numbers.setdefault(task, len(numbers))
            if part == len(self._places):
                self._places.append(task)
                self._parts.append([])
            order = number, _ITSELF, 0, 0
            self._made[node] = self._add(part, node.name, node.type, order, op=node)

    def run(self, outputs: Sequence[Any]) -> dict[Task, list[PartNode]]:
        """Connect all nodes, and return the parts."""
        for node in self._nodes:
            made = self._made[node]
            references: list[PartNode] = []
            for each in node.inputs:
                made.inputs.append(self._value(each, made, references))
            for each in node.control_inputs:
                self._run_before(self._before(each, made.part), made)
            if references:
                self._receive_last(references, made)
        for number, each in enumerate(outputs):
            if each not in self._fed:  # else the clients have it
                for part in range(self._clients):
                    self._fetch(each, part, number)
        return {task: part for task, part in zip(self._places, self._parts, strict=True) if part}

    def _add(
        self,
        part: int,
        name: str,
        kind: str,
        order: Order,
        inputs: list[tuple[PartNode, int]] | None = None,
        op: Any = None,
        edge: Edge | None = None,
        output: Any = None,
    ) -> PartNode:
        inputs = [] if inputs is None else inputs
        made = PartNode(name, kind, inputs, op, edge, part, order, output)
        self._parts[part].append(made)
        return made

    def _new_name(self, prefix: str) -> str:
        name = f"{prefix}_S{self._number}"
        self._number += 1
        return self._new_name(prefix) if name in self._names else name

    def _fetch(self, output: Any, part: int, number: int) -> None:
        """Add the node that sends a fetched value to the client of a part."""
        client = self._places[part]
        edge = Edge(output.name, client, client, output.dtype.base_dtype)
        name = f"_send_{output.op.name}_{output.value_index}"
        order = len(self._nodes) + number, _ITSELF, 0, 0
        made = self._add(part, name, "_Send", order, edge=edge, output=output)
        made.inputs.append(self._value(output, made, []))

    def _feed(self, output: Any, part: int) -> PartNode:
        """Return the node that receives from the client what is fed, for a node of a part."""
        part = part if part < self._clients else _CLIENT
        made = self._fed_in.get((output, part))
        if made is None:
            client = self._places[part]
            edge = Edge(output.name, client, client, output.dtype.base_dtype)
            name = f"_recv_{output.op.name}_{output.value_index}"
            order = -1, _ITSELF, 0, 0
            made = self._add(part, name, "_Recv", order, edge=edge, output=output)
            self._fed_in[output, part] = made
        return made

    def _before(self, node: Any, part: int) -> PartNode:
        """Return what others wait for that wait for a node: its feed, for a placeholder."""
        if node.type in PLACEHOLDERS and node.outputs[0] in self._fed:
            return self._feed(node.outputs[0], part)
        return self._made[node]

    def _value(
        self, output: Any, consumer: PartNode, references: list[PartNode]
    ) -> tuple[PartNode, int]:
        """Return a value where `consumer` runs; add the _Recv of a reference to `references`."""
        if output in self._fed:
            source, index, is_ref = self._feed(output, consumer.part), 0, False
        else:
            source, index = self._made[output.op], output.value_index
            is_ref = output.dtype.is_ref
        if source.part == consumer.part:
            return source, index
        key = (source, index, consumer.part)
        received = None if is_ref else self._received.get(key)
        if received is None:
            received = self._pass(source, index, output.dtype.base_dtype, consumer)
            if is_ref:
                references.append(received)
            else:
                self._received[key] = received
        return received, 0

    def _run_before(self, first: PartNode, then: PartNode) -> None:
        """Add a control edge; between tasks it is an empty value."""
        if first.part == then.part:
            then.controls.append(first)
            return
        key = (first, -1, then.part)
        received = self._received.get(key)
        if received is None:
            order = first.order[0], _AFTER, self._edges, 0
            empty = self._add(first.part, self._new_name(f"{first.name}/ctrl"), "Const", order)
            empty.controls.append(first)
            arrived = self._pass(empty, 0, float32, then, first.name)
            order = *arrived.order[:3], 1
            name = self._new_name(first.name)
            received = self._add(then.part, name, "Identity", order, [(arrived, 0)])
            self._received[key] = received
        then.controls.append(received)

    def _pass(
        self, source: PartNode, index: int, dtype: DataType, consumer: PartNode, name: str = ""
    ) -> PartNode:
        """Add a pair of _Send and _Recv, and return the latter.

        A reference is sent right after its producer and received right before its consumer, as
        what it refers to may change.
        """
        name = name or source.name
        here, there = self._places[source.part], self._places[consumer.part]
        number = self._edges
        self._edges += 1
        text = f"edge_{number}_{name}"
        output = source.output if source.op is None else source.op.outputs[index]
        dims = (0,) if output is None else output._dims
        edge = Edge(text, here, there, dtype, name, consumer.name, number, dims)
        made, taken = source.order[0], consumer.order[0]
        if output is None or not output.dtype.is_ref:
            made, taken = self._burst_of(made)[1], self._burst_of(taken)[0]
        order = made, _AFTER, number, 1
        inputs = [(source, index)]
        self._add(source.part, self._new_name(name), "_Send", order, inputs, edge=edge)
        order = taken, _BEFORE, number, 0
        return self._add(consumer.part, self._new_name(name), "_Recv", order, edge=edge)

    def _burst_of(self, number: int) -> tuple[int, int]:
        """Return the first and the last node of the burst of a node."""
        return self._bursts.get(number, (number, number))

    def _receive_last(self, references: list[PartNode], consumer: PartNode) -> None:
        others = [node for node, _ in consumer.inputs if node not in references]
        for number, received in enumerate(references):
            received.controls += dict.fromkeys([*others, *consumer.controls])
            received.order = *consumer.order[:1], _BEFORE, self._edges, number


# ---- as GraphDefs ------------------------------------------------------------------------------


def graph_def(
    part: Sequence[PartNode], task: Task, incarnations: Mapping[Task, int] | None = None
) -> Any:
    """Return a part as a GraphDef, as TensorFlow writes it.

    Args:
        part: the nodes.
        task: where they run.
        incarnations: a number of each task's process, 0 by default.
    """
    message = messages.GraphDef()
    for node in part:
        _write(node, task, message.node.add(), incarnations or {})
    return message


def _write(node: PartNode, task: Task, message: Any, incarnations: Mapping[Task, int]) -> None:
    if node.op is not None:
        write_node(node.op, message)
        del message.input[:]
    message.name, message.op, message.device = node.name, node.type, f"{task}{DEVICE}"
    message.input.extend([f"{each.name}:{i}" if i else each.name for each, i in node.inputs])
    message.input.extend([f"^{each.name}" for each in node.controls])
    if node.op is None:
        write_attributes(node, message, incarnations)


def write_attributes(
    node: PartNode, message: Any, incarnations: Mapping[Task, int] | None = None
) -> None:
    """Write the attributes of a node that a partition added."""
    for name, value in _attributes(node, incarnations or {}):
        write_attr(value, message.attr[name])


def _attributes(node: PartNode, incarnations: Mapping[Task, int]) -> list[tuple[str, Any]]:
    edge = node.edge
    if edge is None and node.type == "Const":
        return [("dtype", float32), ("value", make_value([], float32))]
    if edge is None:
        return [("T", float32)]
    found: list[tuple[str, Any]] = [
        ("T" if node.type == "_Send" else "tensor_type", edge.dtype),
        ("tensor_name", edge.tensor_name.encode()),
        ("send_device", f"{edge.source}{DEVICE}".encode()),
        ("send_device_incarnation", incarnations.get(edge.source, 0)),
        ("recv_device", f"{edge.target}{DEVICE}".encode()),
        ("client_terminated", edge.client_terminated),
    ]
    if edge.producer:
        found += [("_src", edge.producer.encode()), ("_dst", edge.consumer.encode())]
    return found
