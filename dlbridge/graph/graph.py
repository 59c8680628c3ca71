"""Graph: operations, their names, and the scopes in which new ones are created."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlbridge.graph.inference import Inference
from dlbridge.graph.opdef import OpDef
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType


class Scopes(threading.local):
    """Where new operations of one graph go, for each thread its own."""

    def __init__(self) -> None:
        self.name = ""  # without the trailing slash
        self.framework: str | None = None


class Graph:
    """A dataflow graph: Operations as nodes, Tensors as edges; only ever added to.

    Example:
        >>> import dlbridge.graph as tf
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     total = tf.constant(3.0) + tf.constant(4.0)
        >>> print(total)
        Tensor("add:0", shape=(), dtype=float32)
    """

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._names: dict[str, int] = {}  # lower-case full name -> next suffix
        self._scopes = Scopes()
        self._finalized = False
        self._lock = threading.RLock()

    # ---- names ----

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name` in the current scope, with a suffix if it is taken, and take it."""
        scope = self._scopes.name
        if scope:
            name = f"{scope}/{name}"
        key = name.lower()
        names = self._names
        with self._lock:
            count = names.get(key, 0)
            if mark_as_used:
                names[key] = count + 1
            if not count:
                return name
            base = key
            while key in names:
                key = f"{base}_{count}"
                count += 1
            if mark_as_used:
                names[key] = 1
        return f"{name}_{count - 1}"

    def operation_name(self, name: str) -> str:
        """Return the full name of a new operation; one with a trailing slash is taken as it is."""
        return name[:-1] if name.endswith("/") else self.unique_name(name)

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Put new operations under `name`; see `dlbridge.graph.name_scope`."""
        scopes = self._scopes
        before = scopes.name
        if not name:
            after = ""
        elif name.endswith("/"):
            after = name[:-1]
        else:
            after = self.unique_name(name)
        scopes.name = after
        try:
            yield f"{after}/" if after else ""
        finally:
            scopes.name = before

    @contextmanager
    def framework(self, name: str | None) -> Iterator[None]:
        """Place new operations on a framework."""
        before = self._scopes.framework
        self._scopes.framework = name
        try:
            yield
        finally:
            self._scopes.framework = before

    # ---- operations ----

    def add(
        self,
        op_def: OpDef,
        inputs: tuple[Tensor, ...],
        attrs: dict[str, Any],
        name: str,
        output_types: tuple[DataType, ...],
    ) -> Operation:
        """Add an operation whose inputs and attributes were checked; `name` is full and unique."""
        dims = op_def.shape(Inference(op_def.name, name, inputs, attrs, len(output_types)))
        op = Operation()
        op.graph = self
        op.name = name
        op.op_def = op_def
        op.inputs = inputs
        op.control_inputs = ()
        op.attrs = attrs
        op.output_types = output_types
        op.device = ""
        op.framework = self._scopes.framework
        op.outputs = tuple([Tensor(op, i, kind, dims[i]) for i, kind in enumerate(output_types)])
        with self._lock:
            if self._finalized:
                raise RuntimeError("Graph is finalized and cannot be modified.")
            if name in self._by_name:
                raise ValueError(f"Duplicate node name in graph: {name!r}")
            op.id = len(self._operations)
            self._operations.append(op)
            self._by_name[name] = op
        for tensor in inputs:
            tensor._consumers.append(op)
        return op

    def get_operations(self) -> list[Operation]:
        """Return all operations in order of creation."""
        return list(self._operations)

    def as_default(self) -> Any:
        """Make this the default graph of this thread within a `with` block."""
        return _DEFAULT.entering(self)


class Stack(threading.local):
    """A stack of defaults, for each thread its own."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    @contextmanager
    def entering(self, item: Any) -> Iterator[Any]:
        """Make `item` the default within the block."""
        self.items.append(item)
        try:
            yield item
        finally:
            if self.items[-1] is not item:
                raise AssertionError(
                    f"Nesting violated: {item!r} left while {self.items[-1]!r} is the default"
                )
            self.items.pop()


_DEFAULT = Stack()
_GLOBAL = threading.local()


def get_default_graph() -> Graph:
    """Return the innermost graph of `as_default()`, or this thread's own global one."""
    items = _DEFAULT.items
    if items:
        graph: Graph = items[-1]
        return graph
    found = getattr(_GLOBAL, "graph", None)
    if found is None:
        found = _GLOBAL.graph = Graph()
    return found


def graph_of(inputs: Sequence[Any]) -> Graph:
    """Return the graph of the Tensors among `inputs`, or the default graph.

    Raises:
        ValueError: they are from several graphs.
    """
    found: Graph | None = None
    for each in inputs:
        if isinstance(each, Tensor):
            graph = each.op.graph
            if found is None:
                found = graph
            elif found is not graph:
                raise ValueError(f"Tensor {each.name!r} must be from the same graph as the others")
        elif isinstance(each, list | tuple):
            graph = graph_of([item for item in each if isinstance(item, Tensor)] or (found,))
    return found or get_default_graph()
