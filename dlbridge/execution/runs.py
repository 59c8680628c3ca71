"""Runs: nodes that become one callable, as far as they follow each other on one framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlbridge.execution.compiled import add_compiled
from dlbridge.execution.failures import failure
from dlbridge.execution.loops import make_loops, result_dtype
from dlbridge.execution.order import Edges, gather
from dlbridge.execution.placement import HOST, Place, Placed
from dlbridge.execution.plan import Step


class Run(NamedTuple):
    """Nodes that run one after another.

    Attributes:
        nodes: in their order.
        make: adds one step for all of them to a plan's builder; None where each has its own.
    """

    nodes: Sequence[Placed]
    make: Callable[[Any, Sequence[Placed]], None] | None = None


def split(placed: Sequence[Placed], fed: Collection[Any], compiled: Collection[str]) -> list[Run]:
    """Return the nodes of a plan as runs, in an order in which these can run.

    Args:
        placed: in an order in which they can run.
        fed: outputs whose values come from outside.
        compiled: frameworks whose runs are compiled.
    """
    if not any(_is_compiled(each, compiled) for each in placed):
        return list(_split_loops([each for each in placed if not each.is_silent]))
    kinds = _kinds(placed, compiled)
    by_node = {each.node: each for each in placed}
    nodes = list(by_node)
    if len(set(kinds.values())) > 1:
        nodes = gather(nodes, kinds, Edges(nodes, fed))
    found: list[Run] = []
    for kind, group in groupby(nodes, kinds.__getitem__):
        members = [by_node[node] for node in group if not by_node[node].is_silent]
        if kind is None:
            found += _split_loops(members)
        else:
            found += [Run(part, add_compiled) for part in _cut(members)]
    return found


# ---- compiled ----------------------------------------------------------------------------------


def _is_compiled(placed: Placed, compiled: Collection[str]) -> bool:
    """Tell whether a node can be part of a compiled run of its framework."""
    node, spec = placed.node, placed.spec
    return (
        placed.place.framework in compiled
        and spec.traceable
        and not node.stateful
        and bool(node.inputs)
        and not any(kind.is_ref or kind.kind == "h" for kind in node.output_types)
        and not any(each.dtype.is_ref or each.dtype.kind == "h" for each in node.inputs)
    )


def _kinds(placed: Sequence[Placed], compiled: Collection[str]) -> dict[Any, Place | None]:
    """Return the place of each node whose run is compiled, None of others.

    What is computed on the host from shapes of such a run is part of it.
    """
    kinds: dict[Any, Place | None] = {}
    for each in placed:
        kind = each.place if _is_compiled(each, compiled) and not each.is_silent else None
        if kind is None and (each.on_host or each.is_silent):
            kinds_in = (kinds.get(tensor.op) for tensor in each.inputs)
            kind = next((found for found in kinds_in if found is not None), None)
        kinds[each.node] = kind
    return kinds


def _cut(members: Sequence[Placed]) -> list[list[Placed]]:
    """Part nodes of one kind where the host needs what the run before it computes."""
    parts: list[list[Placed]] = [[]]
    inside: dict[Any, bool] = {}  # node of the part -> whether its results are on the host
    for placed in members:
        on_host = placed.place == HOST
        for i, each in enumerate(placed.inputs):
            if (on_host or i in placed.host) and inside.get(each.op, True) is False:
                parts.append([])
                inside = {}
                break
        parts[-1].append(placed)
        inside[placed.node] = placed.result == HOST
    return [part for part in parts if part]


# ---- NumPy -------------------------------------------------------------------------------------


def _split_loops(placed: Sequence[Placed]) -> Iterator[Run]:
    """Return runs of element-wise nodes on NumPy, and what is between them."""
    for is_loop, nodes in groupby(placed, _is_loop):
        if is_loop:
            yield from _loops(list(nodes))
        else:
            yield Run(list(nodes))


def _is_loop(placed: Placed) -> bool:
    """Tell whether NumPy has an inner loop for a node, with just its dtypes."""
    if placed.spec.ufunc is None or placed.place != HOST:
        return False
    kinds = [each.dtype for each in placed.node.inputs]
    if any(kind.is_ref or kind.dlpack is None for kind in kinds):
        return False
    found = result_dtype(placed.spec.ufunc, *[kind.numpy for kind in kinds])
    return found is not None and found == placed.node.output_types[0].numpy


def _loops(nodes: list[Placed]) -> Iterator[Run]:
    """Part what is not connected: arrays of different shapes do not fit into one run."""
    for part in _connected(nodes):
        yield Run(part, _add_loops if len(part) > 1 else None)


def _connected(nodes: list[Placed]) -> list[list[Placed]]:
    """Return nodes by which of them pass values to each other, or take the same one."""
    leader: dict[Any, Any] = {}

    def find(x: Any) -> Any:
        while leader.setdefault(x, x) is not x:
            leader[x] = leader[leader[x]]
            x = leader[x]
        return x

    for placed in nodes:
        node = placed.node
        for each in placed.inputs:
            if each.op.type != "Const":
                leader[find(each.op)] = find(node)
    parts: dict[Any, list[Placed]] = {}
    for placed in nodes:
        parts.setdefault(find(placed.node), []).append(placed)
    return list(parts.values())


def _add_loops(builder: Any, nodes: Sequence[Placed]) -> None:
    """Add the step that runs element-wise nodes on NumPy's inner loops."""
    inputs, operands, made = wire(builder, nodes)
    results = builder.outside(nodes)
    if not results:
        return
    count, single = len(inputs), len(results) == 1
    instructions = [
        (str(placed.spec.ufunc), [count + at if inside else at for inside, at in row])
        for placed, row in zip(nodes, operands, strict=True)
    ]
    function = make_loops(
        [dtype.numpy for dtype in inputs.values()],
        instructions,
        [count + made[each] for each in results],
        single=single,
        on_error=lambda number, error: failure(nodes[number].node, error),
    )
    slots = tuple([builder.result(each, HOST) for each in results])
    builder.steps.append(
        Step(
            function,
            tuple(inputs),
            slots[0] if single else slots,
            tuple([placed.node for placed in nodes]),
            "numpy",
            f"{nodes[0].node.name} … {nodes[-1].node.name}",
        )
    )


# ---- wiring ------------------------------------------------------------------------------------


def wire(
    builder: Any, nodes: Sequence[Placed]
) -> tuple[dict[int, Any], list[list[tuple[bool, int]]], dict[Any, int]]:
    """Return how the values of element-wise nodes, with one result each, hang together.

    Returns:
        The numbers of what comes from outside, with the DataType of each; for each node its
        operands, as (whether it is the result of a node, index among those or the former); the
        index of each output among the nodes.
    """
    inputs: dict[int, Any] = {}
    position: dict[int, int] = {}
    made: dict[Any, int] = {}
    operands = []
    for number, placed in enumerate(nodes):
        row = []
        for each in placed.inputs:
            if each in made:
                row.append((True, made[each]))
                continue
            slot = builder.read(each, placed.place)
            inputs.setdefault(slot, each.dtype)
            row.append((False, position.setdefault(slot, len(position))))
        operands.append(row)
        if placed.node.outputs[0] not in builder.values:  # else it is fed, though it runs
            made[placed.node.outputs[0]] = number
    return inputs, operands, made
