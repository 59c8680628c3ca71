"""The order in which the tasks of a cluster together run the nodes of a graph.

No run can wait forever for another task. All tasks cut the graph from one order of its nodes, in
which each value is sent after its producer and received before its first consumer; each task sends
and receives in that order, by control edges that are added; and a send never waits. So of all the
receives at which tasks wait, the first in that order waits for a send which is earlier still, and
whose task has no earlier receive to wait at.

Within that rule, short operations on small values are gathered into bursts: what they send goes
together, and so does what they wait for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dlbridge.execution.planner import Edges, gather
from dlbridge.graph.distributed.cluster import Task

_SMALL = 4096  # elements of the values of what is quick
# Operations that neither wait nor call functions of the user.
_QUICK = frozenset((
    "Abs", "Add", "AddN", "AddV2", "All", "Any", "Assign", "AssignAdd", "AssignAddVariableOp",
    "AssignSub", "AssignSubVariableOp", "AssignVariableOp", "BiasAdd", "Cast", "ConcatV2",
    "Const", "Div", "Equal", "Exp", "ExpandDims", "Fill", "Floor", "FloorDiv", "GatherV2",
    "Greater", "GreaterEqual", "Identity", "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot",
    "LogicalOr", "MatMul", "Max", "Maximum", "Mean", "Min", "Minimum", "Mul", "Neg", "NoOp",
    "NotEqual", "OnesLike", "Pack", "Placeholder", "Pow", "Prod", "RandomStandardNormal",
    "RandomUniform", "Rank", "ReadVariableOp", "RealDiv", "Relu", "Reshape", "Rsqrt", "Select",
    "SelectV2", "Shape", "Sigmoid", "Sign", "Size", "Slice", "Softmax", "Sqrt", "Square",
    "Squeeze", "StridedSlice", "Sub", "Sum", "Tanh", "Transpose", "TruncatedNormal",
    "VarHandleOp", "VariableV2", "ZerosLike",
))  # fmt: skip


def is_quick(op: Any) -> bool:
    """Return whether a node takes no longer than a message."""
    if op.type not in _QUICK:
        return False
    for each in (*op.outputs, *op.inputs):
        dims = each._dims
        is_small = dims is not None and None not in dims and math.prod(dims) <= _SMALL
        if not is_small and each.dtype.kind != "h":
            return False
    return True


def in_bursts(
    nodes: Sequence[Any], tasks: Mapping[Any, Task], edges: Edges
) -> tuple[list[Any], list[int]]:
    """Return nodes in an order in which they can run, and the sizes of their bursts.

    A burst is a group of consecutive nodes of one task. It receives all values of other tasks that
    it needs before it begins. Only quick nodes are moved past others.

    Args:
        nodes: each after those that it needs.
        tasks: where they run.
        edges: between them, to which the order of stateful nodes is added.
    """
    order: list[Any] = []
    sizes: list[int] = []
    for quick, group in groupby(nodes, is_quick):
        found = list(group)
        if quick and len(found) > 1:
            for burst in _gathered(found, tasks, edges):
                order += burst
                sizes.append(len(burst))
        else:
            order += found
            sizes += [1] * len(found)
    return order, sizes


def _gathered(
    nodes: Sequence[Any], tasks: Mapping[Any, Task], edges: Edges
) -> Iterator[Sequence[Any]]:
    own: dict[Task, list[Any]] = {}
    for node in nodes:
        own.setdefault(tasks[node], []).append(node)
    for each in own.values():  # as tasks do not wait for each other's state
        edges.keep_order(each)
    for task, group in groupby(gather(nodes, tasks, edges), tasks.__getitem__):
        first: list[Any] = []
        then: dict[Any, None] = {}
        for node in group:
            for each in edges.before[node]:
                if tasks[each] != task or each in then:
                    then[node] = None
                    break
            else:
                first.append(node)
        if first:
            yield first
        if then:
            yield list(then)
