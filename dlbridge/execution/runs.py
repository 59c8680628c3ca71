"""Runs: nodes that become one callable, as far as they follow each other on one framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlbridge.execution.loops import make_loops, result_dtype
from dlbridge.execution.placement import HOST, Placed
from dlbridge.execution.plan import Step


class Run(NamedTuple):
    """Nodes that run one after another.

    Attributes:
        nodes: in their order.
        make: adds one step for all of them to a plan's builder; None where each has its own.
    """

    nodes: Sequence[Placed]
    make: Callable[[Any, Sequence[Placed]], None] | None = None


def split(
    placed: Sequence[Placed],
    fed: Collection[Any],
    fetched: Collection[Any],
    compiled: Collection[str],
) -> list[Run]:
    """Return the nodes of a plan as runs."""
    found: list[Run] = []
    for is_loop, nodes in groupby(placed, _is_loop):
        if is_loop:
            found += _loops(list(nodes))
        else:
            found.append(Run(list(nodes)))
    return found


# ---- NumPy -------------------------------------------------------------------------------------


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
        for each in node.inputs:
            if each.op.type != "Const":
                leader[find(each.op)] = find(node)
    parts: dict[Any, list[Placed]] = {}
    for placed in nodes:
        parts.setdefault(find(placed.node), []).append(placed)
    return list(parts.values())


def _add_loops(builder: Any, nodes: Sequence[Placed]) -> None:
    """Add the step that runs element-wise nodes on NumPy's inner loops."""
    arguments: dict[int, int] = {}  # number in the plan -> number in the run
    dtypes: list[Any] = []
    inside: dict[Any, int] = {}
    operands: list[list[Any]] = []
    for placed in nodes:
        row: list[Any] = []
        for each in placed.node.inputs:
            if each in inside:
                row.append(each)
                continue
            slot = builder.read(each, HOST)
            if slot not in arguments:
                arguments[slot] = len(arguments)
                dtypes.append(each.dtype.numpy)
            row.append(arguments[slot])
        operands.append(row)
        inside[placed.node.outputs[0]] = len(inside)
    count = len(arguments)
    taken = {each for placed in nodes for each in placed.node.inputs if each in inside}
    outside = builder.taken_outside(nodes)
    results = [each for each in inside if each in outside and each not in builder.values]
    del taken
    instructions = [
        (placed.spec.ufunc, [count + inside[x] if x in inside else x for x in row])
        for placed, row in zip(nodes, operands, strict=True)
    ]
    if not results:
        return
    single = len(results) == 1
    function = make_loops(
        dtypes, instructions, [count + inside[each] for each in results], single=single
    )
    slots = tuple([builder.result(each, HOST) for each in results])
    builder.steps.append(
        Step(
            function,
            tuple(arguments),
            slots[0] if single else slots,
            tuple([placed.node for placed in nodes]),
            "numpy",
            f"{nodes[0].node.name} … {nodes[-1].node.name}",
        )
    )
