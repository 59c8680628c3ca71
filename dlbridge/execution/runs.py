"""Runs: nodes that become one callable, as far as they follow each other on one framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlbridge.execution.failures import failure
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


def split(placed: Sequence[Placed]) -> list[Run]:
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
    inputs, operands, made = wire(builder, nodes)
    results = outside(builder, nodes)
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
        for each in placed.node.inputs:
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


def outside(builder: Any, nodes: Sequence[Placed]) -> list[Any]:
    """Return the outputs of nodes that other nodes take, or the user."""
    within = Counter([each for placed in nodes for each in placed.node.inputs])
    return [
        each
        for placed in nodes
        for each in placed.node.outputs
        if builder.uses[each] > within[each] and each not in builder.values
    ]
