"""Placement of imported operations: devices, frameworks, colocation, control dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dlbridge.errors import ArgumentError
from dlbridge.execution.backend import FRAMEWORKS
from dlbridge.graph.core import device_spec as devices
from dlbridge.graph.core import scopes
from dlbridge.graph.core.exporter import FRAMEWORK
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.graphdef.source import Node

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph

COLOCATION = "_class"
GROUP = b"loc:@"


def place(graph: Graph, nodes: Sequence[Node], operations: Mapping[str, Operation]) -> None:
    """Set devices, frameworks and control inputs from the nodes and the current scope.

    Raises:
        ValueError: an invalid device string; an unknown framework; colocation with a node that is
            not in the GraphDef.
    """
    scope = graph._scopes.state
    controls = [op for each in scope.dependencies for op in each.inputs]
    colocated = []
    for node in nodes:
        op = operations[node.name]
        op.framework = scope.framework
        op.device = "" if scope.is_plain and not node.device else _device(op, node, scope)
        if controls:
            op.control_inputs = tuple(dict.fromkeys([*op.control_inputs, *controls]))
        if FRAMEWORK in op.attrs:
            _read_framework(op, node)
        if COLOCATION in op.attrs:
            colocated.append((op, _colocate(op, node, operations)))
    for op, others in colocated:
        if others:
            op.device = ""
    for op, others in colocated:
        op.device = next((each.device for each in others if each.device), op.device)
    if scope.colocation:
        groups = scopes.colocation_groups(scope)
        for op in operations.values():
            op.attrs = {**op.attrs, COLOCATION: groups}
            op.device = scopes.colocated(scope, op.device)


def _device(op: Operation, node: Node, scope: scopes.Scope) -> str:
    """Return the device of a node within blocks; the node takes precedence."""
    try:
        own = devices.canonical(node.device)
    except ValueError as error:
        raise _refusal(node, str(error)) from error
    if scope.device is not None:
        return devices.merge(scope.device, own)
    return scopes.place(op, scope._replace(devices=(*scope.devices, own), colocation=()))


def _read_framework(op: Operation, node: Node) -> None:
    """Turn the attribute into the operation's framework."""
    value = op.attrs[FRAMEWORK]
    name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if name not in FRAMEWORKS:
        known = ", ".join(FRAMEWORKS)
        raise _refusal(node, f"attribute {FRAMEWORK!r} is {name!r}; known are {known}")
    op.framework = name
    op.attrs = {key: value for key, value in op.attrs.items() if key != FRAMEWORK}


def _colocate(op: Operation, node: Node, operations: Mapping[str, Operation]) -> list[Operation]:
    """Return the operations to colocate with, after renaming the groups to their new names."""
    groups = op.attrs[COLOCATION]
    if not isinstance(groups, list) or not all(isinstance(each, bytes) for each in groups):
        return []
    others = {each: _colocated(each, node, operations) for each in _members(groups)}
    renamed = [GROUP + others[each].name.encode() if each in others else each for each in groups]
    op.attrs = {**op.attrs, COLOCATION: renamed}
    return list(others.values())


def _members(groups: Iterable[bytes]) -> list[bytes]:
    return [each for each in groups if each.startswith(GROUP)]


def _colocated(group: bytes, node: Node, operations: Mapping[str, Operation]) -> Operation:
    name = group.removeprefix(GROUP).decode("utf-8", "replace")
    if name not in operations:
        raise _refusal(node, f"it expects to be colocated with unknown node {name!r}")
    return operations[name]


def _refusal(node: Node, text: str) -> ArgumentError:
    return ArgumentError(f"import_graph_def: node {node.name!r} ({node.type}): {text}")
