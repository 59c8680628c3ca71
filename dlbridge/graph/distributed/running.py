"""A graph over the tasks of a cluster, planned: the part of each task as bytes, and as a plan."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.execution.backend import giver
from dlbridge.execution.builder import Runtime
from dlbridge.execution.plan import Plan, Step
from dlbridge.execution.planner import Edges, arrange, make_plan, prune
from dlbridge.graph.core.exporter import write_node
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.scopes import DeviceSpec
from dlbridge.graph.distributed.assignment import assign
from dlbridge.graph.distributed.cluster import Task
from dlbridge.graph.distributed.collectives import expand
from dlbridge.graph.distributed.order import in_bursts, is_quick
from dlbridge.graph.distributed.partition import PartNode, partition, write_attributes
from dlbridge.graph.graphdef.importer import load_graph
from dlbridge.graph.session import feeds as fed
from dlbridge.graph.session.limits import Limit
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType
from dlbridge.proto.tensors import TensorFields, dump_tensor
from dlbridge.shape import TensorShape

_VIEWS = frozenset(("ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice", "Transpose"))
_GIVEN = frozenset(("_Recv", "Const", "Placeholder", "ReadVariableOp"))  # in memory that is there
_HEAD = 4096  # bytes that dtype and shape of a TensorProto take at most


class Part(NamedTuple):
    """The part of a graph that one task runs.

    Attributes:
        graph: a GraphDef, as bytes; what is fed is placeholders there.
        fed: for each value fed, its number among the feeds, and the placeholder's name.
        fetched: the names of the tensors to return.
        targets: the names of the nodes to run.
        heard: the tasks whose nodes have all run when this part ends, as its messages show.
    """

    graph: bytes
    fed: tuple[tuple[int, str], ...] = ()
    fetched: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    heard: frozenset[Task] = frozenset()


def cut(
    graph: Graph,
    outputs: Sequence[Any],
    targets: Sequence[Any],
    keys: Sequence[Any],
    tasks: Sequence[Task],
    default: Task,
    clients: Sequence[Task],
) -> dict[Task, Part]:
    """Return what each task runs for the given fetches and feeds.

    Args:
        graph: the whole graph.
        outputs: tensors to fetch.
        targets: operations to run.
        keys: the tensors to feed.
        tasks: of the cluster.
        default: where nodes run that are placed nowhere.
        clients: the tasks where values are fed and fetched.
    """
    known = frozenset(keys)
    needed = prune(outputs, targets, known)
    edges = Edges(needed, known)
    nodes = arrange(needed, known, edges)
    places = assign(graph.get_operations(), tasks, default)
    without = expand(graph, nodes, known, places, tasks)
    if without is not None:
        named, tensor = without.get_operation_by_name, without.get_tensor_by_name
        outputs = [tensor(each.name) for each in outputs]
        targets = [named(each.name) for each in targets]
        keys = [tensor(each.name) for each in keys]
        return cut(without, outputs, targets, keys, tasks, default, clients)
    nodes, sizes = in_bursts(nodes, places, edges)
    parts = partition(nodes, places, keys, outputs, clients, sizes)
    numbers = {each: i for i, each in enumerate(keys)}
    for part in parts.values():
        part.sort(key=_order)
    written = {
        task: _write_part(parts.get(task, []), numbers, outputs if task in clients else ())
        for task in tasks
    }
    for task, heard in _heard(parts).items():
        written[task] = written[task]._replace(heard=heard)
    return written


def _heard(parts: Mapping[Task, Sequence[PartNode]]) -> dict[Task, frozenset[Task]]:
    """Return whose nodes have all run when a task's own part ends, as its messages show.

    A task's messages are passed one after the other, so each says what the ones before it said the
    sender, and from the last one on that needs nodes which can fail, that all of these have run.
    """
    tasks = list(parts)
    idle = sum([1 << number for number, task in enumerate(tasks) if not _can_fail(parts[task])])
    known = [idle] * len(tasks)  # a bit for each task
    events: list[tuple[tuple[int, int, int, int], int, PartNode, bool]] = []
    for number, task in enumerate(tasks):
        chain = [node for node in parts[task] if _is_message(node)]
        last = _last_that_needs(parts[task], chain)
        events += [(node.order, number, node, i >= last) for i, node in enumerate(chain)]
    said: dict[int, int] = {}
    for _, number, node, is_over in sorted(events, key=lambda event: event[0]):
        assert node.edge is not None
        if node.type == "_Recv":
            known[number] |= said[node.edge.number]
        if is_over:
            known[number] |= 1 << number
        if node.type == "_Send":
            said[node.edge.number] = known[number]
    return {
        task: frozenset(other for k, other in enumerate(tasks) if found >> k & 1 or other == task)
        for task, found in zip(tasks, known, strict=True)
    }


def _can_fail(part: Sequence[PartNode]) -> bool:
    """Return whether a part has nodes of its own, or values that are fed."""
    return not all(_is_message(node) or node.type == "_Send" for node in part)


def _is_message(node: PartNode) -> bool:
    return node.edge is not None and not node.edge.client_terminated


def _last_that_needs(part: Sequence[PartNode], chain: Sequence[PartNode]) -> int:
    """Return the index in `chain` of the first message after which nothing else can fail."""
    first: dict[PartNode, int] = {}  # node -> the first message that waits for it
    for number, message in enumerate(chain):
        waiting = [message]
        while waiting:
            node = waiting.pop()
            if node not in first:
                first[node] = number
                waiting += [each for each, _ in node.inputs]
                waiting += node.controls
    fallible = [node for node in part if node.edge is None]
    return max((first.get(node, len(chain)) for node in fallible), default=0)


def _write_part(
    part: Sequence[PartNode], numbers: Mapping[Any, int], outputs: Sequence[Any]
) -> Part:
    message = messages.GraphDef()
    targets, previous = [], None
    placeholders: dict[Any, str] = {}
    fetched: dict[Any, str] = {}
    names = _names_of(part)
    for node in part:
        is_client = node.edge is not None and node.edge.client_terminated
        if is_client and node.type == "_Send":
            ((source, index),) = node.inputs
            fetched[node.output] = f"{names[source]}:{index}"
            continue
        written = message.node.add()
        if is_client:
            placeholders[node.output] = names[node]
            _write_placeholder(node.output, written)
        else:
            _write(node, written)
            targets.append(names[node])
        written.name = names[node]
        written.input.extend(
            [f"{names[each]}:{i}" if i else names[each] for each, i in node.inputs]
        )
        written.input.extend([f"^{names[each]}" for each in node.controls])
        if node.edge is not None and not is_client:  # one after the other
            if previous is not None:
                written.input.append(f"^{previous}")
            previous = names[node]
    for output in outputs:  # what is fed may be fetched
        if output in numbers:
            if output not in placeholders:
                name = placeholders[output] = f"fed_{numbers[output]}_S"
                written = message.node.add(name=name)
                _write_placeholder(output, written)
            fetched[output] = f"{placeholders[output]}:0"
    found = tuple((numbers[output], name) for output, name in placeholders.items())
    results = tuple([fetched[each] for each in outputs])
    return Part(message.SerializeToString(deterministic=True), found, results, tuple(targets))


def _order(node: PartNode) -> tuple[int, int, int, int]:
    return node.order


def _names_of(part: Sequence[PartNode]) -> dict[PartNode, str]:
    """Return names that a graph takes: those of what feeds begin with an underscore."""
    taken = {node.name for node in part}
    names = {}
    for node in part:
        name = node.name
        if name.startswith("_"):
            name = name.lstrip("_")
            while name in taken:
                name += "_"
            taken.add(name)
        names[node] = name
    return names


def _write_placeholder(output: Any, message: Any) -> None:
    message.op = "Placeholder"
    write_attr(output.dtype.base_dtype, message.attr["dtype"])
    write_attr(TensorShape(output._dims), message.attr["shape"])


def _write(node: PartNode, message: Any) -> None:
    """Write a node that runs, on a device of its task alone."""
    message.op = node.type
    if node.op is None:
        write_attributes(node, message)
        if node.type == "_Recv" and node.edge is not None:  # so that plans know how large it is
            write_attr([TensorShape(node.edge.dims)], message.attr["_output_shapes"])
        return
    write_node(node.op, message)
    del message.input[:]
    if is_quick(node.op):
        write_attr(True, message.attr["_quick"])
    message.attr.pop("_class", None)  # colocation was heeded, and may be with a node of no part
    spec = DeviceSpec.from_string(node.op.device or "")
    message.device = spec._replace(job=None, replica=None, task=None).to_string()


# ---- plans ------------------------------------------------------------------------------------


class Ends:
    """Makes the functions of the `_Send` and `_Recv` nodes of one plan.

    Args:
        transport: of the process.
        ranks: of the tasks.
        near: ranks that share memory with this process.
        limit: on the size of the values, or None.
        check: called with the number of a step; raises if that has failed on another task.
        pause: called with the rendezvous while a node waits for runs of other tasks.
    """

    def __init__(
        self,
        transport: native.Transport,
        ranks: Mapping[str, int],
        near: Collection[int] = (),
        limit: Limit | None = None,
        check: Callable[[int], None] | None = None,
        pause: Callable[[native.Rendezvous], None] | None = None,
    ) -> None:
        self._check = check
        self._pause = pause
        self.rendezvous = native.Rendezvous(transport, _most(limit, _HEAD))
        self._transport = transport
        self._ranks = ranks
        self._near = near
        self._limit = limit
        self._sends: dict[Any, tuple[native.Edge, int]] = {}  # node -> edge, rank

    def check(self) -> None:
        """Raise if the run has failed elsewhere, before a node takes what others could have."""
        if self._check is not None:
            self._check(self.rendezvous.step)

    def pause(self) -> None:
        """Let other tasks go on while a node waits for their runs; raise where they cannot."""
        if self._pause is not None:
            self._pause(self.rendezvous)

    def sender(self, node: Any) -> Callable[..., Any]:
        """Return what sends the value of a node."""
        dtype: DataType = node.attrs["T"]
        peer = self._ranks[_task_of(node.attrs["recv_device"])]
        send = self._edge(node, dtype, peer)
        self._sends[node] = send, peer
        return send if _is_plain(dtype) else lambda value: send(_pack(value, dtype))

    def coalesce(self, steps: Sequence[Step]) -> None:
        """Let values wait for the next one to the same task, if only quick nodes run until then.

        They also go before the next wait, and at the end of the plan, so that nobody waits for
        them longer than these nodes take. Nothing is between that could wait for another task.
        """
        slow: set[int] = set()  # ranks to which nothing is sent before what may take long
        ranks = {peer for _, peer in self._sends.values()}
        for step in reversed(steps):
            if len(step.nodes) == 1 and step.nodes[0] in self._sends:
                edge, peer = self._sends[step.nodes[0]]
                edge.more = peer not in slow
                slow.discard(peer)
            elif not _is_quick_step(step):
                slow |= ranks

    def allocated(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the steps, of which those that make a large value to be lent do so in the arena.

        A value that is looked at through a view was made by a step before. Functions of the user,
        and frameworks other than NumPy, allocate by themselves: their values are copied there. So
        is everything where `max_bytes` limits what NumPy allocates.
        """
        if self._limit is not None or not self._transport.arena()[0]:
            return steps
        wanted: set[int] = set()
        made = list(steps)
        for i, step in reversed(list(enumerate(steps))):
            if len(step.nodes) == 1 and step.nodes[0] in self._sends:
                if _may_be_large(step.nodes[0].inputs[0], self._transport.largest_inside):
                    wanted.update(step.inputs)
            elif wanted.intersection(_filled(step)):
                if step.function is None or (step.nodes and step.nodes[-1].type in _VIEWS):
                    wanted.update(step.inputs)
                if step.function is not None and _allocates(step):
                    function = native.InArena(self._transport, step.function)
                    made[i] = step._replace(function=function)
        return self._copied_once(made)

    def _copied_once(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps, of which one copies what lies elsewhere and several tasks are lent.

        A value that is known to be large: else the sends copy it. That of a reference is read by
        each send.
        """
        most = self._transport.largest_inside
        sends: dict[int, list[int]] = {}  # value -> steps that lend it
        for i, step in enumerate(steps):
            if len(step.nodes) == 1 and step.nodes[0] in self._sends:
                value, peer = step.nodes[0].inputs[0], self._sends[step.nodes[0]][1]
                is_lent = peer in self._near and (_nbytes(value) or 0) > most
                if is_lent and _is_plain(value.dtype) and not value.dtype.is_ref:
                    sends.setdefault(step.inputs[0], []).append(i)
        shared = {
            value: of for value, of in sends.items() if len(of) > 1 and _lies_outside(value, steps)
        }
        if not shared:
            return list(steps)
        made, copies = list(steps), {}
        unused = 1 + max(each for step in steps for each in (*step.inputs, *_filled(step)))
        for value, of in shared.items():
            copy = native.InArena(self._transport, partial(np.array, order="C"))
            copies[of[0]] = Step(copy, (value,), unused, framework="numpy", label="lend")
            for i in of:
                made[i] = made[i]._replace(inputs=(unused,))
            unused += 1
        return [each for i, step in enumerate(made) for each in (copies.get(i), step) if each]

    def receiver(self, node: Any) -> Callable[..., Any]:
        """Return what waits for the value of a node."""
        dtype: DataType = node.attrs["tensor_type"]
        receive = self._edge(node, dtype, -1)
        return receive if _is_plain(dtype) else lambda: self._unpack(node, receive())

    def _unpack(self, node: Any, data: Any) -> Any:
        """Return what `_pack` packed, once its header says that it is not too large."""
        fields = TensorFields(memoryview(bytes(data)))
        if self._limit is not None:
            self._limit.check_value(node, fields.shape, fields.dtype)
        return fields.decode()

    def _edge(self, node: Any, dtype: DataType, peer: int) -> native.Edge:
        number = int(node.attrs["tensor_name"].split(b"_")[1])
        kind = dtype.numpy if _is_plain(dtype) else np.dtype(np.uint8)
        limit = self._limit
        most = _most(limit, 0 if _is_plain(dtype) else _HEAD)
        refuse = None if limit is None else partial(limit.refuse, node)
        return native.Edge(
            self.rendezvous, number, dtype.as_datatype_enum, kind, peer, most, refuse
        )


def _allocates(step: Step) -> bool:
    """Return whether a step makes arrays of NumPy, by no function of the user."""
    is_numpy = step.framework in ("", "numpy") and not step.calls_user
    return is_numpy and bool(step.nodes) and step.nodes[-1].type not in _GIVEN


def _lies_outside(value: int, steps: Sequence[Step]) -> bool:
    """Return whether a value lies outside of the arena, as what other frameworks and users make."""
    makers = {each: step for step in steps for each in _filled(step)}
    while value in makers:
        step = makers[value]
        is_view = step.function is None or (step.nodes and step.nodes[-1].type in _VIEWS)
        if isinstance(step.function, native.InArena) and not is_view:
            return False
        if not is_view:
            return not (step.nodes and step.nodes[-1].type == "_Recv")
        value = step.inputs[0]
    return True


def _filled(step: Step) -> tuple[int, ...]:
    return step.outputs if isinstance(step.outputs, tuple) else (step.outputs,)


def _may_be_large(output: Any, most: int) -> bool:
    """Return whether a value may have more than so many bytes."""
    nbytes = _nbytes(output)
    return nbytes is None or nbytes > most


def _nbytes(output: Any) -> int | None:
    """Return the size of a value where it is known."""
    dims, dtype = output._dims, output.dtype.numpy
    if dims is None or None in dims or dtype is None:
        return None
    return int(math.prod(dims) * dtype.itemsize)


def _is_quick_step(step: Step) -> bool:
    if step.calls_user or step.device or step.framework not in ("", "numpy"):
        return False
    return bool(step.nodes) and all(
        node.type == "_Recv" or node.attrs.get("_quick") for node in step.nodes
    )


def _most(limit: Limit | None, more: int) -> int:
    """Return the limit of a message that has so many bytes more than the value."""
    return -1 if limit is None else min(limit.max_bytes + more, sys.maxsize)


def _task_of(device: bytes) -> str:
    return device.decode().partition("/device:")[0]


def _is_plain(dtype: DataType) -> bool:
    return dtype.kind not in "sq"


def _pack(value: Any, dtype: DataType) -> Any:
    """Return strings as the bytes of a TensorProto."""
    return np.frombuffer(dump_tensor(value, dtype), np.uint8)


class LocalPart:
    """A part as a plan of this process.

    Attributes:
        plan: what it runs.
        graph: of the part.
        ends: its rendezvous.
        numbers: of the values fed that it takes.
    """

    def __init__(
        self,
        part: Part,
        runtime: Runtime,
        ends: Ends,
        keys: Sequence[Any] = (),
        to: str = "numpy",
        copy: bool = True,
        single: bool = False,
    ) -> None:
        self.ends = ends
        self.graph = load_graph(part.graph)
        named = self.graph.get_operation_by_name
        inputs = [named(name).outputs[0] for _, name in part.fed]
        shown = {each: keys[i] for each, (i, _) in zip(inputs, part.fed, strict=True)}
        self.plan: Plan = make_plan(
            runtime,
            [self.graph.get_tensor_by_name(name) for name in part.fetched],
            [named(name) for name in part.targets],
            inputs,
            lambda output, framework: fed.feeder(shown[output], framework),
            giver(to, copy),
            giver(to, False),
            to,
            single,
        )
        if not self.plan.is_concurrent:
            ends.coalesce(self.plan.steps)
        self.numbers = tuple([i for i, _ in part.fed])
