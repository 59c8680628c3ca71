"""Scopes: names, devices and control dependencies of the operations created in `with` blocks.

A device is named by up to five parts, as in `/job:worker/replica:0/task:1/device:GPU:2`; each may
be left out. `/gpu:2` and `/GPU` are short for `/device:GPU:2` and `/device:GPU:*`.

The state of all `with` blocks is one immutable `Scope`; entering a block replaces it, leaving the
block restores the previous one. Each thread has its own for each graph.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from dlbridge.errors import UnsupportedTypeError
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation, Tensor


DeviceFunction = Callable[["Operation"], str]
_Item = TypeVar("_Item")


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
    """A `with` block that changes the Scope; it is reentrant.

    An interrupt may come before the first statement of `__exit__`: then the end of the block object
    undoes the change, if nothing else was entered or left in between.

    Args:
        scopes: where the current Scope is.
        change: makes the new Scope of the current one.
        result: makes what the block returns of the new Scope.
        stack: the field of a Scope, if any, whose blocks must be left in the order of a stack.
    """

    __slots__ = ("_change", "_entered", "_result", "_scopes", "_stack")

    def __init__(
        self,
        scopes: Scopes,
        change: Callable[[Scope], Scope],
        result: Callable[[Scope], Any] | None = None,
        stack: str = "",
    ) -> None:
        self._scopes = scopes
        self._change = change
        self._result = result
        self._stack = stack
        self._entered: list[tuple[Scope, Scope]] = []  # before and after

    def __enter__(self) -> Any:
        before = self._scopes.state
        after = self._change(before)
        result = None if self._result is None else self._result(after)
        self._entered.append((before, after))
        try:
            self._scopes.state = after
            return result
        except BaseException:
            self._scopes.state = before
            raise

    def __exit__(self, *details: object) -> None:
        before, after = self._entered[-1]
        if self._scopes.state is after:
            self._scopes.state = before
        else:
            self._scopes.state = _without(self._scopes.state, before, after, self._stack)
        self._entered.pop()

    def __del__(self) -> None:
        for before, after in reversed(getattr(self, "_entered", ())):
            if self._scopes.state is after:
                self._scopes.state = before


_NESTING = {
    "devices": (RuntimeError, "Exiting device scope without properly nesting."),
    "dependencies": (AssertionError, "Exiting control_dependencies without properly nesting."),
}


def _without(state: Scope, before: Scope, after: Scope, stack: str) -> Scope:
    """Return a Scope with the fields that a block changed as they were; others left meanwhile.

    Raises:
        RuntimeError, AssertionError: blocks of one kind must be left in the order of a stack.
    """
    if stack and getattr(state, stack) is not getattr(after, stack):
        kind, text = _NESTING[stack]
        raise kind(text)
    changed = {
        name: old
        for name, old, new in zip(Scope._fields, before, after, strict=True)
        if old is not new
    }
    changed.pop("is_plain", None)
    return state.but(**changed)


def name_scope(graph: Graph, name: str | None) -> Block:
    """Return the block of `Graph.name_scope`."""
    if not isinstance(name, str | None):
        raise UnsupportedTypeError(f"name_scope: name must be a string or None, got {name!r}")

    def change(scope: Scope) -> Scope:
        if not name:
            return scope._replace(name="")
        check_name(name, scope.name, "name_scope")
        inner = name[:-1] if name[-1] == "/" else graph.unique_name(name)
        return scope._replace(name=inner)

    def result(scope: Scope) -> str:
        if name and name[-1] == "/":
            return name  # "/" is a scope that names as the root does, yet is given back as it came
        return f"{scope.name}/" if scope.name else ""

    return Block(graph._scopes, change, result)


# Names of operations and scopes.
_ROOT = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_NESTED = re.compile(r"[A-Za-z0-9_.\\/>-]*")
NESTED_ONLY = frozenset("_-/\\>")  # begin no full name

# Names that were checked before, most of them op types; their number is bounded.
CHECKED_NAMES: set[str] = set()
_MOST_CHECKED = 4096


def check_name(name: str, scope: str, call: str) -> None:
    """Raise ValueError unless `name` may stand at this place: in a scope, or at the root.

    At the root a name begins with a letter, a digit or a dot; anywhere it may contain `_`, `.`,
    `/`, `-`, `>` and a backslash besides.
    """
    pattern = _NESTED if scope else _ROOT
    if pattern.fullmatch(name) is None:
        where = f"below {scope!r}" if scope else "at the root of a graph"
        raise ValueError(
            f"{call}: {name!r} is not a valid name {where}; expected {pattern.pattern}"
        )
    if not scope and len(CHECKED_NAMES) < _MOST_CHECKED:
        CHECKED_NAMES.add(name)


def split_tensor_name(name: str) -> tuple[str, int] | None:
    """Return operation and index of a Tensor's name such as "Const:0"; None for other text."""
    operation, colon, index = name.partition(":")
    if not colon or not (index.isascii() and index.isdigit()):
        return None
    return operation, int(index)


# ---- devices -----------------------------------------------------------------------------------


def device(graph: Graph, spec: object) -> Block:
    """Return the block of `Graph.device`."""
    entry = spec if callable(spec) else None if spec is None else canonical_device(_text(spec))

    def change(scope: Scope) -> Scope:
        if entry is None:
            return scope.but(devices=(), device="")
        if not entry:
            return scope
        known = None if callable(entry) or scope.device is None else scope.device
        merged = None if known is None else merge_devices(known, entry)
        return scope.but(devices=(*scope.devices, entry), device=merged)

    return Block(graph._scopes, change, stack="devices")


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
                found = merge_devices(each, found)
            else:
                op.device = found
                found = canonical_device(_text(each(op)))
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


_SHORT_TYPES = ("CPU", "GPU", "TPU", "CUSTOM", "EPU")


class DeviceSpec(NamedTuple):
    """A device, fully or partly specified; None is an unspecified part.

    Example:
        >>> DeviceSpec.from_string("/job:w/gpu:1").to_string()
        '/job:w/device:GPU:1'
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def from_string(cls, spec: str) -> Self:
        """Read a device string.

        Raises:
            ValueError: a part that is none of job, replica, task and device; two device types.
        """
        fields: dict[str, str | int | None] = {}
        for part in spec.split("/"):
            words = part.split(":")
            if not part:
                continue
            if words[0] == "job" and len(words) == 2:
                fields["job"] = words[1]
            elif words[0] in ("replica", "task") and len(words) == 2:
                fields[words[0]] = _device_number(words[1], spec)
            else:
                _read_device_type(words, spec, fields)
        return cls(**fields)  # type: ignore[arg-type]

    def to_string(self) -> str:
        """Return the canonical form; "" for an unspecified device."""
        text = "" if self.job is None else f"/job:{self.job}"
        if self.replica is not None:
            text += f"/replica:{self.replica}"
        if self.task is not None:
            text += f"/task:{self.task}"
        if self.device_type is not None:
            index = "*" if self.device_index is None else self.device_index
            text += f"/device:{self.device_type}:{index}"
        return text

    def make_merged_spec(self, inner: DeviceSpec) -> DeviceSpec:
        """Return this device with the parts that `inner` specifies replaced."""
        known = {key: value for key, value in inner._asdict().items() if value is not None}
        return self._replace(**known)


def _read_device_type(words: list[str], spec: str, fields: dict[str, str | int | None]) -> None:
    """Read `device:GPU:0`, `gpu:0` or `gpu`."""
    if words[0] == "device" and len(words) == 3:
        kind, index = words[1].upper(), words[2]
    elif words[0].upper() in _SHORT_TYPES and len(words) <= 2:
        kind, index = words[0].upper(), words[1] if len(words) == 2 else "*"
    else:
        raise ValueError(
            f"device {spec!r}: unknown attribute {words[0]!r}; expected parts such as /job:w, "
            f"/replica:0, /task:0, /device:GPU:0, /cpu:0 (short for {', '.join(_SHORT_TYPES)})"
        )
    if "device_type" in fields:
        raise ValueError(f"device {spec!r}: multiple device types are not allowed")
    fields["device_type"] = kind
    if index != "*":
        fields["device_index"] = _device_number(index, spec)


def _device_number(text: str, spec: str) -> int:
    try:
        return int(text)
    except not_from_handler(ValueError):
        raise ValueError(f"device {spec!r}: expected a number, got {text!r}") from None


@lru_cache(maxsize=1024)
def canonical_device(spec: str) -> str:
    """Return the canonical form of a device string: `/cpu:0` is `/device:CPU:0`."""
    return DeviceSpec.from_string(spec).to_string()


@lru_cache(maxsize=1024)
def merge_devices(outer: str, inner: str) -> str:
    """Return two merged device strings in canonical form; `inner` takes precedence."""
    return DeviceSpec.from_string(outer).make_merged_spec(DeviceSpec.from_string(inner)).to_string()


# ---- control dependencies ----------------------------------------------------------------------


def control_dependencies(graph: Graph, inputs: Iterable[Operation] | None) -> Block:
    """Return the block of `Graph.control_dependencies`."""
    if inputs is None:
        return Block(graph._scopes, lambda scope: scope.but(dependencies=()))
    ops = tuple(dict.fromkeys(inputs))

    def change(scope: Scope) -> Scope:
        outer = {op for each in scope.dependencies for op in each.inputs}
        new = tuple([op for op in ops if op not in outer])
        return scope.but(dependencies=(*scope.dependencies, Dependencies(new, set())))

    return Block(graph._scopes, change, stack="dependencies")


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


# ---- defaults of a thread ----------------------------------------------------------------------


class DefaultStack(threading.local):
    """A stack of defaults, one for each thread.

    Attributes:
        items: the defaults, the innermost last.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []

    def block(self, item: _Item, enforce_nesting: bool = True) -> DefaultBlock[_Item]:
        """Return a block in which `item` is the default."""
        return DefaultBlock(self, item, enforce_nesting)


class DefaultBlock(Generic[_Item]):
    """A `with` block in which one item is the default; it returns the item.

    After an interrupt of `__exit__` the end of the block object undoes what is left, as in `Block`.
    """

    __slots__ = ("_enforce_nesting", "_entered", "_item", "_stack")

    def __init__(self, stack: DefaultStack, item: _Item, enforce_nesting: bool) -> None:
        self._stack = stack
        self._item = item
        self._enforce_nesting = enforce_nesting
        self._entered: list[tuple[list[Any], int]] = []  # the items of a thread, and how many

    def __enter__(self) -> _Item:
        items = self._stack.items
        count = len(items)
        self._entered.append((items, count))
        try:
            items.append(self._item)
            return self._item
        except BaseException:
            del items[count:]
            raise

    def __exit__(self, *details: object) -> None:
        items = self._stack.items
        if items and items[-1] is self._item:
            items.pop()
        elif self._enforce_nesting:
            raise AssertionError(
                f"Nesting violated: {self._item!r} was left while "
                f"{items[-1] if items else None!r} is the default; leave the inner block first"
            )
        else:
            items.remove(self._item)
        self._entered.pop()

    def __del__(self) -> None:
        for items, count in reversed(getattr(self, "_entered", ())):
            if len(items) == count + 1 and items[-1] is self._item:
                items.pop()


GRAPHS = DefaultStack()
SESSIONS = DefaultStack()


# ---- sessions ----------------------------------------------------------------------------------


class Session(Protocol):
    """The methods of a session that elements of a graph call."""

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, to: str = "numpy"
    ) -> Any:
        """Return the values of `fetches`."""

    def state_of(self, variable: Any) -> Any:
        """Return the state of a variable."""


def get_default_session() -> Any:
    """Return the innermost session of this thread, or None."""
    return SESSIONS.items[-1] if SESSIONS.items else None


def chosen_session(session: Session | None, call: str) -> Session:
    """Return the session that a call was given, or else the default session.

    Raises:
        UnsupportedTypeError: it is something else.
        ValueError: no session was given and there is no default one.
    """
    session = _given_or_default(session, call)
    if session is None:
        raise ValueError(
            f"{call}: No default session is registered. Use `with sess.as_default()` or pass an "
            "explicit session"
        )
    return session


def _given_or_default(session: Session | None, call: str) -> Session | None:
    if session is None:
        default: Session | None = get_default_session()
        return default
    if not callable(getattr(session, "run", None)):
        raise UnsupportedTypeError(f"{call}: session must be a Session, got {session!r}")
    return session


def evaluate(
    fetch: Tensor | Operation,
    feed_dict: Mapping[Any, Any] | None,
    session: Session | None,
    call: str,
) -> Any:
    """Run a tensor (`call` is "eval") or an operation ("run") in a session, or the default one."""
    chosen = _given_or_default(session, call)
    if chosen is None:
        action = "evaluate tensor" if call == "eval" else "execute operation"
        raise ValueError(
            f"Cannot {action} using `{call}()`: No default session is registered. Use `with "
            f"sess.as_default()` or pass an explicit session to `{call}(session=sess)`"
        )
    if session is None and chosen.graph is not fetch.graph:
        raise ValueError(
            f"Cannot use the default session to evaluate {fetch!r}: its graph is different "
            "from the session's graph. Pass an explicit session of its graph"
        )
    return chosen.run(fetch, feed_dict)
