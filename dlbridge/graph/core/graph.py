"""Graph: operations, their names, and the scopes in which new ones are created."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from dlbridge.errors import FrameworkMissingError
from dlbridge.graph.core import lookup, scopes
from dlbridge.graph.core.collecting import Collections
from dlbridge.graph.core.defaults import Entering, Stack
from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.opdef import OpDef
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.scoped import Scoped
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.core.uncopied import Uncopied
from dlbridge.graph.core.versions import Versions
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims


class Graph(Scoped, Collections, Uncopied):
    """A dataflow graph: Operations as nodes, Tensors as edges; only ever added to.

    Several threads may add to one graph; each has its own scopes.

    Attributes:
        seed: of random operations, set by `set_random_seed`, or None.
        versions: those of the GraphDef that it came from, or of this package.
        library: functions that came with a GraphDef, by name, as they were written.

    Example:
        >>> import dlbridge.graph as tf
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     total = tf.constant(3.0) + tf.constant(4.0)
        >>> print(total)
        Tensor("add:0", shape=(), dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._finalized = False
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Tensor | Operation] = set()
        self._changes = 0  # of shapes, and of what may be fed and fetched: plans depend on them
        self._functions: list[Any] = []  # those that nodes call by token or name, kept alive
        self.seed: int | None = None
        self.versions = Versions()
        self.library: dict[str, bytes] = {}

    # ---- operations ----

    def add(
        self,
        op_def: OpDef,
        inputs: tuple[Tensor, ...],
        attrs: dict[str, Any],
        name: str,
        output_types: tuple[DataType, ...],
        control_inputs: tuple[Operation, ...] | None = None,
        device: str | None = None,
        dims: Sequence[Dims | None] | None = None,
    ) -> Operation:
        """Add an operation whose inputs and attributes were checked.

        Args:
            op_def: of its type.
            inputs: in one row.
            attrs: decoded, defaults filled in. The operation keeps the dict: do not write to it.
            name: full and unique.
            output_types: one for each result.
            control_inputs: instead of those of the scope.
            device: a canonical string instead of that of the scope.
            dims: of the results, where the caller knows them.
        """
        if dims is None:
            dims = op_def.shape(Inference(op_def.name, name, inputs, attrs, len(output_types)))
        op = Operation()
        op.graph = self
        op.name = name
        op.definition = op_def
        op.inputs = inputs
        op.attrs = attrs
        op.output_types = output_types
        if len(output_types) == 1:
            op.outputs = (Tensor(op, 0, output_types[0], dims[0]),)
        else:
            op.outputs = tuple([Tensor(op, i, t, dims[i]) for i, t in enumerate(output_types)])
        scope = self._scopes.state
        if scope.is_plain:
            op.control_inputs = control_inputs or ()
            op.device = device or ""
            op.framework = None
        else:
            _place(op, scope, control_inputs, device)
        self._insert(op)
        return op

    def _insert(self, op: Operation) -> None:
        """Give a complete operation its number and make it known."""
        name = op.name
        with self._lock:
            if self._finalized:
                self._check_not_finalized()
            if name in self._by_name:
                raise ValueError(f"Duplicate node name in graph: {name!r}")
            op.id = len(self._operations)
            self._operations.append(op)
            self._by_name[name] = op
            for tensor in op.inputs:
                if tensor._consumers is None:
                    tensor._consumers = [op]
                else:
                    tensor._consumers.append(op)

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Any],
        dtypes: Sequence[object] | None = None,
        input_types: Sequence[object] | None = None,
        name: str | None = None,
        attrs: dict[str, Any] | None = None,
        op_def: OpDef | None = None,
    ) -> Operation:
        """Create an operation from its inputs in one row.

        Args:
            op_type: a name in the registry.
            inputs: Tensors; lists are flat.
            dtypes: of the results, checked if given.
            input_types: of the inputs, checked if given.
            name: in the current scope; None is the op type.
            attrs: decoded values or AttrValue messages; what follows from the inputs may be left
                out.
            op_def: instead of the registered one.

        Raises:
            NotFoundError: an op type that is not registered.
            TypeError: dtypes that do not agree.
            ValueError: an attribute, a shape, the number of inputs.
        """
        from dlbridge.graph.core.creating import create_op

        return create_op(self, op_type, inputs, dtypes, input_types, name, attrs, op_def)

    def get_operations(self) -> list[Operation]:
        """Return all operations in order of creation, as a new list."""
        return list(self._operations)

    # ---- as a message ----

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """Return the graph as a new GraphDef message; `dump_graph` gives bytes at less cost.

        Args:
            from_version: leave out the operations there were when `version` was this.
            add_shapes: write what is known of shapes as the attribute `_output_shapes`.

        Raises:
            ArgumentError: a constant takes 2 GiB or more.
        """
        from dlbridge.graph.graphdef.exporter import graph_def

        return graph_def(self, from_version, add_shapes)

    @property
    def graph_def_versions(self) -> Any:
        """The versions of the GraphDef format that the graph needs, a VersionDef message."""
        from dlbridge.graph.graphdef.exporter import versions_message

        return versions_message(self.versions)

    # ---- looking up ----

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Tensor | Operation:
        """Return the Tensor or Operation of this graph that `obj` is, or names.

        Args:
            obj: one of them, a Variable, or a name: "Const:0" is a Tensor, "Const" an Operation.
            allow_tensor: whether it may be a Tensor.
            allow_operation: whether it may be an Operation.

        Raises:
            TypeError: it is neither, or not what is allowed.
            ValueError: of another graph; a name of the wrong form.
            KeyError: a name that does not exist.
        """
        return lookup.element(self, obj, allow_tensor, allow_operation)

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Return the Tensor of a name such as "Const:0".

        Raises:
            TypeError, ValueError, KeyError: see `as_graph_element`.
        """
        _require_name(name, "Tensor")
        return self.as_graph_element(name, allow_operation=False)  # type: ignore[return-value]

    def get_operation_by_name(self, name: str) -> Operation:
        """Return the Operation of a name.

        Raises:
            TypeError, ValueError, KeyError: see `as_graph_element`.
        """
        _require_name(name, "Operation")
        return self.as_graph_element(name, allow_tensor=False)  # type: ignore[return-value]

    # ---- state ----

    @property
    def version(self) -> int:
        """A number that grows with every operation: how many there are."""
        return len(self._operations)

    @property
    def finalized(self) -> bool:
        """Whether nothing can be added any more."""
        return self._finalized

    def finalize(self) -> None:
        """Let nothing be added any more; a RuntimeError tells who tries."""
        self._finalized = True

    def _check_not_finalized(self) -> None:
        if self._finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Make sessions refuse to be fed a value for `tensor`."""
        self._unfeedable.add(tensor)
        self._changes += 1

    def prevent_fetching(self, op: Tensor | Operation) -> None:
        """Make sessions refuse to fetch `op`."""
        self._unfetchable.add(op)
        self._changes += 1

    def is_feedable(self, tensor: Tensor) -> bool:
        """Tell whether sessions may be fed a value for `tensor`."""
        return tensor not in self._unfeedable

    def is_fetchable(self, tensor_or_op: Tensor | Operation) -> bool:
        """Tell whether sessions may fetch it: neither it nor its operation was excluded."""
        op = getattr(tensor_or_op, "op", tensor_or_op)
        return tensor_or_op not in self._unfetchable and op not in self._unfetchable

    def as_default(self) -> Entering:
        """Return a block in which this is the default graph of this thread."""
        return _DEFAULT.entering(self)

    # ---- pictures ----

    def to_dot(self, trace: Any = None) -> str:
        """Return a picture of the graph in Graphviz's language; see `dlbridge.graph.display.dot`.

        Args:
            trace: of a run, which says where operations ran and what was copied.
        """
        from dlbridge.graph.display.dot import to_dot

        return to_dot(self) if trace is None else to_dot(self, trace.places, trace.crossings)

    def _repr_svg_(self) -> str | None:
        """Return the picture that notebooks show, or None where Graphviz is not installed."""
        from dlbridge.graph.display.dot import to_svg

        try:
            return to_svg(self.to_dot())
        except FrameworkMissingError:
            return None


def _place(
    op: Operation,
    scope: scopes.Scope,
    control_inputs: tuple[Operation, ...] | None,
    device: str | None,
) -> None:
    """Give an operation what its scope says; what was passed counts before it."""
    op.framework = scope.framework
    op.device = ""
    if scope.colocation and "_class" not in op.attrs:
        op.attrs = {**op.attrs, "_class": scopes.colocation_groups(scope)}
    if control_inputs is None:
        control_inputs = scopes.control_inputs(scope, op.inputs) if scope.dependencies else ()
    op.control_inputs = control_inputs
    op.device = scopes.place(op, scope) if device is None else device
    for each in scope.dependencies:
        each.created.add(op)


def _require_name(name: object, kind: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{kind} names are strings (or similar), not {type(name).__name__}.")


# ---- default graphs ----------------------------------------------------------------------------

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


def reset_default_graph() -> None:
    """Replace this thread's global default graph by an empty one.

    Raises:
        AssertionError: within `Graph.as_default()`.
    """
    if _DEFAULT.items:
        raise AssertionError(
            "Do not use reset_default_graph() to clear nested graphs: leave the `with` block first"
        )
    _GLOBAL.graph = Graph()


def graph_of(inputs: Iterable[Any]) -> Graph:
    """Return the graph of the Tensors and Variables among `inputs`, or the default graph.

    Raises:
        ValueError: they are from several graphs.
    """
    found = _first_of(inputs, None)
    return get_default_graph() if found is None else found.graph


def _first_of(inputs: Iterable[Any], first: Any) -> Any:
    """Return the first element of a graph; raise if a later one is of another graph."""
    for each in inputs:
        if isinstance(each, list | tuple):
            first = _first_of(each, first)
        elif isinstance(each, Tensor | Operation) or hasattr(each, "_as_graph_tensor"):
            if first is None:
                first = each
            elif first.graph is not each.graph:
                raise ValueError(
                    f"{each!r} must be from the same graph as {first!r} "
                    f"(graphs are {each.graph} and {first.graph})."
                )
    return first
