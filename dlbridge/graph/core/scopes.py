"""Scopes: names, devices and control dependencies of the operations created in `with` blocks.

The state of all `with` blocks is one immutable `Scope`; entering a block replaces it, leaving the
block restores the previous one. Each thread has its own for each graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.graph.core import device_spec, lookup, names

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation
    from dlbridge.graph.core.tensor import Tensor

DeviceFunction = Callable[["Operation"], str]


class Dependencies(NamedTuple):
    """One `control_dependencies` block: what it adds, and the operations created in it."""

    inputs: tuple[Operation, ...]
    created: set[Operation]


class Scope(NamedTuple):
    """The settings for operations created here.

    Attributes:
        name: prefix of names, without the trailing slash.
        framework: the framework to run in, or None.
        devices: device strings and functions, the outermost first.
        device: the merged device string, or None if there are functions to call.
        dependencies: the blocks of control dependencies, the outermost first.
        colocation: operations to be placed with, the outermost first.
        is_plain: whether all but `name` is as at the start.
    """

    name: str = ""
    framework: str | None = None
    devices: tuple[str | DeviceFunction, ...] = ()
    device: str | None = ""
    dependencies: tuple[Dependencies, ...] = ()
    colocation: tuple[Operation, ...] = ()
    is_plain: bool = True

    def but(self, **changes: Any) -> Scope:
        """Return this scope with some parts replaced."""
        other = self._replace(**changes)
        plain = not (other.framework or other.devices or other.dependencies or other.colocation)
        return other._replace(is_plain=plain)


class Scopes(threading.local):
    """The current Scope of one graph, for each thread its own."""

    def __init__(self) -> None:
        self.state = Scope()


class Block:
    """A `with` block that changes the Scope; it is reentrant."""

    __slots__ = ("_before", "_change", "_result", "_scopes")

    def __init__(
        self,
        scopes: Scopes,
        change: Callable[[Scope], Scope],
        result: Callable[[Scope], Any] | None = None,
    ) -> None:
        self._scopes = scopes
        self._change = change
        self._result = result
        self._before: list[Scope] = []

    def __enter__(self) -> Any:
        before = self._scopes.state
        after = self._change(before)
        self._before.append(before)
        self._scopes.state = after
        return None if self._result is None else self._result(after)

    def __exit__(self, *details: object) -> None:
        self._scopes.state = self._before.pop()


def name_scope(graph: Graph, name: str | None) -> Block:
    """Return the block of `Graph.name_scope`."""

    def change(scope: Scope) -> Scope:
        if not name:
            return scope._replace(name="")
        names.check(name, scope.name, "name_scope")
        inner = name[:-1] if name[-1] == "/" else graph.unique_name(name)
        return scope._replace(name=inner)

    def result(scope: Scope) -> str:
        if name and name[-1] == "/":
            return name  # "/" is a scope that names as the root does, yet is given back as it came
        return f"{scope.name}/" if scope.name else ""

    return Block(graph._scopes, change, result)


# ---- devices -----------------------------------------------------------------------------------


def device(graph: Graph, spec: object) -> Block:
    """Return the block of `Graph.device`."""
    entry = spec if callable(spec) else None if spec is None else device_spec.canonical(_text(spec))

    def change(scope: Scope) -> Scope:
        if entry is None:
            return scope.but(devices=(), device="")
        if not entry:
            return scope
        known = None if callable(entry) or scope.device is None else scope.device
        merged = None if known is None else device_spec.merge(known, entry)
        return scope.but(devices=(*scope.devices, entry), device=merged)

    return Block(graph._scopes, change)


def _text(spec: object) -> str:
    """Return a device string, also that of an object such as TensorFlow's DeviceSpec."""
    text = spec if isinstance(spec, str) else getattr(spec, "to_string", lambda: None)()
    if not isinstance(text, str):
        raise TypeError(f"device: expected a string, a function or None, got {spec!r}")
    return text


def place(op: Operation, scope: Scope) -> str:
    """Return the device of a new operation; functions see it with what inner blocks say."""
    found = scope.device
    if found is None:
        found = ""
        for each in reversed(scope.devices):
            if isinstance(each, str):
                found = device_spec.merge(each, found)
            else:
                op.device = found
                found = device_spec.canonical(_text(each(op)))
    return colocated(scope, found)


def colocated(scope: Scope, device: str) -> str:
    """Return the device of the operations that new ones are placed with, `device` if none has."""
    return next((other.device for other in scope.colocation if other.device), device)


def colocate(graph: Graph, op: Operation | None, ignore_existing: bool) -> Block:
    """Return the block of `Graph.colocate_with`."""
    if op is None and not ignore_existing:
        raise ValueError("colocate_with: to leave a colocation, pass None and ignore_existing=True")

    def change(scope: Scope) -> Scope:
        before = () if ignore_existing else scope.colocation
        after = before if op is None else (*before, op)
        return scope.but(colocation=after, devices=(), device="")

    return Block(graph._scopes, change)


def colocation_groups(scope: Scope) -> list[bytes]:
    """Return the attribute `_class` of operations that are created here."""
    return sorted({group for op in scope.colocation for group in op.colocation_groups()})


# ---- control dependencies ----------------------------------------------------------------------


def control_dependencies(graph: Graph, inputs: Iterable[Any] | None) -> Block:
    """Return the block of `Graph.control_dependencies`."""
    if inputs is None:
        return Block(graph._scopes, lambda scope: scope.but(dependencies=()))
    ops = {lookup.operation_of(graph, each): None for each in inputs}

    def change(scope: Scope) -> Scope:
        outer = {op for each in scope.dependencies for op in each.inputs}
        new = tuple([op for op in ops if op not in outer])
        return scope.but(dependencies=(*scope.dependencies, Dependencies(new, set())))

    return Block(graph._scopes, change)


def control_inputs(scope: Scope, inputs: Sequence[Tensor]) -> tuple[Operation, ...]:
    """Return the control inputs of a new operation.

    Operations whose results it takes are left out, and all those of a block in which one of its
    data inputs was created, since that input waits for them.
    """
    ops = {tensor.op for tensor in inputs}
    return tuple([
        op
        for each in scope.dependencies
        if each.created.isdisjoint(ops)
        for op in each.inputs
        if op not in ops
    ])  # fmt: skip
