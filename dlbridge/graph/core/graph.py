"""Graph: operations, their names, and the scopes in which new ones are created."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

from dlbridge import registry
from dlbridge.errors import FrameworkMissingError, UnsupportedTypeError
from dlbridge.execution.backend import framework_of_nodes
from dlbridge.execution.trace import Trace
from dlbridge.graph.core import construction, scopes
from dlbridge.graph.core.dot import to_dot, to_svg
from dlbridge.graph.core.exporter import Versions, graph_def, versions_message
from dlbridge.graph.core.inference import STEPS_OF_A_NODE, Budget, Inference
from dlbridge.graph.core.opdef import OpDef
from dlbridge.graph.core.operation import NonCopyable, Operation, Tensor
from dlbridge.graph.core.scopes import GRAPHS, Block, DefaultBlock, DeviceFunction
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims


class Graph(NonCopyable):
    """A dataflow graph: Operations are nodes, Tensors edges; nothing is ever removed.

    Several threads may add to one graph; each has its own scopes.

    Attributes:
        seed: of random operations, set by `set_random_seed`, or None.
        versions: those of the imported GraphDefs, or of this package.
        library: the serialized functions of imported GraphDefs, by name.

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
        self._folding = Budget()
        self._names: dict[str, int] = {}  # lower-case full name -> next suffix
        self._scopes = scopes.Scopes()
        self._collections: dict[Any, list[Any]] = {}
        self._lock = registry.lock()
        self._finalized = False
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Tensor | Operation] = set()
        self._changes = 0  # of shapes, allowed feeds and fetches, on which plans depend
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
        """Add an operation with checked inputs and attributes.

        Args:
            op_def: of its type.
            inputs: flat.
            attrs: decoded, with defaults. The operation keeps the dict: do not write to it.
            name: full and unique.
            output_types: the DataType of each result.
            control_inputs: instead of those of the scope.
            device: a canonical string instead of that of the scope.
            dims: of the results, if the caller knows them.
        """
        if dims is None:
            self._folding.steps += STEPS_OF_A_NODE
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
        self.insert((op,))
        return op

    def insert(self, operations: Collection[Operation], take_names: bool = False) -> None:
        """Make complete operations part of the graph, and of the blocks that it is in.

        Args:
            operations: each after those whose results it takes.
            take_names: whether to reserve their names, which `unique_name` did not return.

        Raises:
            RuntimeError: the graph is finalized.
            ValueError: the name of an operation is taken.
        """
        known, by_name = self._operations, self._by_name
        with self._lock:
            if self._finalized:
                self._check_not_finalized()
            for op in operations:
                if op.name in by_name:
                    raise ValueError(f"Duplicate node name in graph: {op.name!r}")
                op.id = len(known)
                known.append(op)
                by_name[op.name] = op
                if take_names:
                    self._names.setdefault(op.name.lower(), 1)
                for tensor in op.inputs:
                    if tensor._consumers is None:
                        tensor._consumers = [op]
                    else:
                        tensor._consumers.append(op)
        for block in self._scopes.state.dependencies:
            block.created.update(operations)

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
        """Create an operation from flat inputs.

        Args:
            op_type: a name in the registry.
            inputs: Tensors; lists are flat.
            dtypes: of the results, checked if given.
            input_types: of the inputs, checked if given.
            name: in the current scope; None is the op type.
            attrs: decoded values or AttrValue messages; those that follow from the inputs may be
                left out.
            op_def: instead of the registered one.

        Raises:
            NotFoundError: an op type that is not registered.
            TypeError: dtypes that do not agree.
            ValueError: an attribute, a shape, the number of inputs.
        """
        return construction.create_op(
            self, op_type, inputs, dtypes, input_types, name, attrs, op_def
        )

    def get_operations(self) -> list[Operation]:
        """Return all operations in order of creation, as a new list."""
        return list(self._operations)

    # ---- as a message ----

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """Return the graph as a new GraphDef message; `dump_graph` gives bytes at less cost.

        Args:
            from_version: leave out the operations there were when `version` was this.
            add_shapes: write static shapes as the attribute `_output_shapes`.

        Raises:
            ArgumentError: a constant takes 2 GiB or more.
        """
        return graph_def(self, from_version, add_shapes)

    @property
    def graph_def_versions(self) -> Any:
        """The versions of the GraphDef format that the graph needs, a VersionDef message."""
        return versions_message(self.versions)

    # ---- looking up ----

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Tensor | Operation:
        """Return the Tensor or Operation of this graph that `obj` is or names.

        Args:
            obj: one of them, a Variable, or a name: "Const:0" is a Tensor, "Const" an Operation.
            allow_tensor: whether it may be a Tensor.
            allow_operation: whether it may be an Operation.

        Raises:
            TypeError: it is neither, or of a kind that is not allowed.
            ValueError: of another graph; a name of the wrong form.
            KeyError: a name that does not exist.
        """
        return element(self, obj, allow_tensor, allow_operation)

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

    # ---- names ----

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name` in the current scope, with a suffix if it is taken, and reserve it.

        Names are compared without case; operations and scopes share one namespace.

        Args:
            name: without the scope.
            mark_as_used: False does not reserve the name.
        """
        if not isinstance(name, str):
            raise UnsupportedTypeError(f"unique_name: name must be a string, got {name!r}")
        scope = self._scopes.state.name
        return self._unique(f"{scope}/{name}" if scope else name, mark_as_used)

    def _unique(self, name: str, mark_as_used: bool = True) -> str:
        """Return a full name with a suffix if it is taken."""
        base = name.lower()
        taken = self._names
        with self._lock:
            count = taken.get(base, 0)
            if not count:
                if mark_as_used:
                    taken[base] = 1
                return name
            while (key := f"{base}_{count}") in taken:
                count += 1
            if mark_as_used:
                taken[base] = count + 1
                taken[key] = 1
        return f"{name}_{count}"

    def operation_name(self, name: str) -> str:
        """Return the full name of a new operation; one with a trailing slash is taken as it is.

        Raises:
            ValueError: invalid characters.
        """
        scope = self._scopes.state.name
        if name not in scopes.CHECKED_NAMES:
            scopes.check_name(name, scope, "the name of an operation")
        if name[-1] == "/":
            full = name[:-1]
            if full not in scopes.CHECKED_NAMES:
                scopes.check_name(full, "", "the name of an operation")
            return full
        if scope and scope[0] in scopes.NESTED_ONLY:  # entered by its full name within another
            scopes.check_name(scope, "", "the scope of an operation")
        return self._unique(f"{scope}/{name}" if scope else name)

    def name_scope(self, name: str | None) -> Block:
        """Return a block in which new operations are named under `name`.

        It returns the full name with a slash at the end. A name with a slash at the end is such a
        full name, entered again as it is; None and "" are the root. Any other is made unique.
        """
        return scopes.name_scope(self, name)

    def get_name_scope(self) -> str:
        """Return the current scope, without a slash at the end; "" at the root."""
        return self._scopes.state.name

    # ---- scopes ----

    def framework(self, name: str | None) -> Block:
        """Return a block whose operations run in a framework; None is that of the session.

        Raises:
            ValueError: the framework cannot run operations.
        """
        own = None if name is None else framework_of_nodes(name)
        return Block(self._scopes, lambda scope: scope.but(framework=own))

    def device(self, device_name_or_function: str | DeviceFunction | None) -> Block:
        """Return a block whose operations are placed on a device.

        Args:
            device_name_or_function: a device string, whose parts override those of outer blocks;
                a function from Operation to such a string, which sees the device of the inner
                blocks and replaces it; None, which ignores outer blocks.

        Raises:
            ValueError: an invalid device string.
        """
        return scopes.device(self, device_name_or_function)

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Block:
        """Return a block whose operations are placed where `op` is, and name it in `_class`."""
        found: Any = None if op is None else element(self, op)
        return scopes.colocate(self, getattr(found, "op", found), ignore_existing)

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Block:
        """Return a block whose operations run after all of `control_inputs`.

        Args:
            control_inputs: Operations, Tensors, Variables or names; None ignores outer blocks.

        Raises:
            TypeError: an item of another type.
            ValueError: from another graph.
        """
        if control_inputs is None:
            return scopes.control_dependencies(self, None)
        ops = [operation_of(self, each) for each in control_inputs]
        return scopes.control_dependencies(self, ops)

    # ---- collections ----

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Append a value to the collection `name`, even if it is in it already.

        Raises:
            RuntimeError: the graph is finalized.
        """
        self._check_not_finalized()
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Append a value to one or several collections, once to each."""
        several = not isinstance(names, str) and isinstance(names, Iterable)
        for name in dict.fromkeys(names) if several else (names,):
            self.add_to_collection(name, value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """Return a copy of a collection, empty if there is none.

        Args:
            name: of the collection.
            scope: a regular expression: only items whose `name` starts with a match.
        """
        items = self._collections.get(name, [])
        if scope is None:
            return list(items)
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: Any) -> list[Any]:
        """Return the list of the collection itself, not a copy; it is created if there is none."""
        return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[str]:
        """Return the names of all collections that are strings."""
        return [name for name in self._collections if isinstance(name, str)]

    def clear_collection(self, name: Any) -> None:
        """Remove all items of a collection.

        Raises:
            RuntimeError: the graph is finalized.
        """
        self._check_not_finalized()
        self._collections.pop(name, None)

    # ---- state ----

    @property
    def version(self) -> int:
        """A number that grows with every operation: how many there are."""
        return len(self._operations)

    @property
    def finalized(self) -> bool:
        """Whether the graph is read-only."""
        return self._finalized

    def finalize(self) -> None:
        """Make the graph read-only: adding operations raises RuntimeError."""
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
        """Return whether sessions may be fed a value for `tensor`."""
        return tensor not in self._unfeedable

    def is_fetchable(self, tensor_or_op: Tensor | Operation) -> bool:
        """Return whether sessions may fetch it: neither it nor its operation was excluded."""
        op = getattr(tensor_or_op, "op", tensor_or_op)
        return tensor_or_op not in self._unfetchable and op not in self._unfetchable

    def as_default(self) -> DefaultBlock[Self]:
        """Return a block in which this is the default graph of this thread."""
        return GRAPHS.block(self)

    # ---- drawing ----

    def to_dot(self, trace: Trace | None = None) -> str:
        """Return the graph in Graphviz's DOT language; see `dlbridge.graph.core.dot`.

        Args:
            trace: of a run, to show where operations ran and which values were copied.
        """
        return to_dot(self) if trace is None else to_dot(self, trace.places, trace.crossings)

    def _repr_svg_(self) -> str | None:
        """Return the drawing that notebooks show, or None where Graphviz is not installed."""
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
    """Set device, framework and control inputs from the scope; arguments take precedence."""
    op.framework = scope.framework
    op.device = ""
    if scope.colocation and "_class" not in op.attrs:
        op.attrs = {**op.attrs, "_class": scopes.colocation_groups(scope)}
    if control_inputs is None:
        control_inputs = scopes.control_inputs(scope, op.inputs) if scope.dependencies else ()
    op.control_inputs = control_inputs
    op.device = scopes.place(op, scope) if device is None else device


def _require_name(name: object, kind: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{kind} names are strings (or similar), not {type(name).__name__}.")


# ---- lookup by name or by object -----------------------------------------------------------------

_FORM = 'Tensor names must be of the form "<op_name>:<output_index>", such as "Const:0".'


def element(
    graph: Graph, item: Any, allow_tensor: bool = True, allow_operation: bool = True
) -> Tensor | Operation:
    """Return the Tensor or Operation of an object or a name; see `Graph.as_graph_element`."""
    if not (allow_tensor or allow_operation):
        raise ValueError("allow_tensor and allow_operation can't both be False.")
    kinds = " or ".join(["Tensor"] * allow_tensor + ["Operation"] * allow_operation)
    if isinstance(item, str | bytes):
        name = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
        if ":" in name:
            return _tensor(graph, name, allow_tensor)
        return _operation(graph, name, allow_operation)
    convert = getattr(item, "_as_graph_element", None)
    if convert is not None:
        item = convert()
    if (isinstance(item, Tensor) and allow_tensor) or (
        isinstance(item, Operation) and allow_operation
    ):
        if item.graph is not graph:
            raise ValueError(f"{item!r} is not an element of this graph.")
        return item
    raise TypeError(
        f"Can not convert a {type(item).__name__} into a {kinds}. Pass one of this graph, or a name"
    )


def operation_of(graph: Graph, item: Any) -> Operation:
    """Return the operation that a control dependency on `item` waits for.

    Raises:
        TypeError, ValueError, KeyError: see `element`.
    """
    own = getattr(item, "_as_graph_operation", None)
    found: Any = element(graph, item if own is None else own())
    op: Operation = getattr(found, "op", found)
    return op


def _tensor(graph: Graph, name: str, allow_tensor: bool) -> Tensor:
    if not allow_tensor:
        raise ValueError(f"Name {name!r} appears to refer to a Tensor, not an Operation.")
    parts = scopes.split_tensor_name(name)
    if parts is None:
        raise ValueError(f"The name {name!r} looks like that of a Tensor, but is not one. {_FORM}")
    op = graph._by_name.get(parts[0])
    if op is None:
        raise KeyError(
            f"The name {name!r} refers to a Tensor which does not exist. The operation, "
            f"{parts[0]!r}, does not exist in the graph."
        )
    if parts[1] >= len(op.outputs):
        raise KeyError(
            f"The name {name!r} refers to a Tensor which does not exist. The operation, "
            f"{parts[0]!r}, exists but only has {len(op.outputs)} outputs."
        )
    return op.outputs[parts[1]]


def _operation(graph: Graph, name: str, allow_operation: bool) -> Operation:
    op = graph._by_name.get(name)
    if not allow_operation:
        what = "refers to an Operation" if op else "looks like an (invalid) Operation name"
        raise ValueError(f"The name {name!r} {what}, not a Tensor. {_FORM}")
    if op is None:
        raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
    return op
