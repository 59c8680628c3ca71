"""A GraphDef message as nodes with decoded attributes, and the operations they become.

Operations are made one by one, and added to the graph only when all are made.
"""

from __future__ import annotations

import heapq
import re
import warnings
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import ArgumentError, WireError
from dlbridge.execution.errors import NotFoundError
from dlbridge.graph.core.exporter import Versions
from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.opdef import (
    KINDS,
    MOST_RESULTS,
    InvalidAttributeError,
    InvalidCountError,
    OpDef,
    Signature,
    op_def,
)
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.core.scopes import split_tensor_name
from dlbridge.proto.attributes import read_attr
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims, TensorShape

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.graphdef.importer import Inputs


class Node(NamedTuple):
    """One NodeDef, its attributes decoded."""

    name: str
    type: str
    inputs: Sequence[str]
    device: str
    attrs: dict[str, Any]


def producer(reference: str) -> str:
    """Return the name of the node in an input of a NodeDef: "a", "a:1" or "^a"."""
    return reference.removeprefix("^").partition(":")[0]


class Source(NamedTuple):
    """A GraphDef: nodes, versions, and the serialized functions of its library by name."""

    nodes: list[Node]
    versions: Versions
    library: dict[str, bytes]


def read(message: Any, contents: Sequence[memoryview] = ()) -> Source:
    """Return a GraphDef message, decoded.

    Args:
        message: the message.
        contents: the large contents of tensors that are not in it.

    Raises:
        WireError: an attribute is malformed.
    """
    versions = message.versions
    numbers = Versions(versions.producer, versions.min_consumer, tuple(versions.bad_consumers))
    library = {
        each.signature.name: each.SerializeToString(deterministic=True)
        for each in message.library.function
    }
    return Source(_read_nodes(message.node, contents), numbers, library)


def _read_nodes(nodes: Any, contents: Sequence[memoryview]) -> list[Node]:
    made = []
    for node in nodes:
        messages = node.attr
        attrs = {}
        for key in messages:
            try:
                attrs[key] = read_attr(messages[key], contents)
            except WireError as error:
                raise _malformed(node, key, error) from error
        made.append(Node(node.name, node.op, node.input[:], node.device, attrs))
    return made


def _malformed(node: Any, attribute: str, error: WireError) -> WireError:
    return WireError(
        f"import_graph_def: node {node.name!r} ({node.op}): attribute {attribute!r}: {error}"
    )


def without_defaults(source: Source, op_list: Any) -> Source:
    """Return a graph without the attributes that we do not know and that have their default.

    Args:
        source: the graph.
        op_list: an OpList message with the op types that the writer knew.

    Raises:
        ValueError: an attribute that only the writer knew has another value than its default.
    """
    known = {each.name: each for each in op_list.op}
    nodes = []
    for node in source.nodes:
        dropped = _unknown_defaults(node, known.get(node.type))
        attrs = {key: value for key, value in node.attrs.items() if key not in dropped}
        nodes.append(node._replace(attrs=attrs))
    return source._replace(nodes=nodes)


def _unknown_defaults(node: Node, definition: Any) -> set[str]:
    if definition is None:
        return set()
    ours, found = op_def(node.type).attributes, set()
    for each in definition.attr:
        if each.name in ours or each.name not in node.attrs:
            continue
        value = node.attrs[each.name]
        if not each.HasField("default_value") or read_attr(each.default_value) != value:
            text = f"attribute {each.name!r} with the value {value!r} is unknown, and no default"
            raise refusal(node.name, text, node.type)
        found.add(each.name)
    return found


def merge_libraries(one: dict[str, bytes], other: dict[str, bytes]) -> dict[str, bytes]:
    """Return the functions of two libraries; ValueError where they contradict each other."""
    for name in one.keys() & other.keys():
        if one[name] != other[name]:
            raise ArgumentError(
                f"import_graph_def: cannot add function {name!r} because a different function with "
                "the same name already exists"
            )
    return {**one, **other}


SHAPES = "_output_shapes"
_MOST_NAMED = 10  # nodes of a cycle

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/>]*")


RESULTS_OF_A_NODE = 64
"""How many a graph may have for each node, and `MOST_RESULTS` once: a few bytes make many."""


class NotCreatedYetError(Exception):
    """An input is a node that stands further down."""


class Nodes:
    """The nodes of one GraphDef, which become operations.

    Args:
        graph: the graph that they will be added to.
        nodes: the nodes, names checked.
        names: the full name of each in the graph, unique there.
        inputs: the replacements of inputs.
        functions: names of functions in the library.

    Attributes:
        operations: the Operation of each node made so far, by the node's own name.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        names: Sequence[str],
        inputs: Inputs,
        functions: Container[str] = (),
    ) -> None:
        self.operations: dict[str, Operation] = {}
        self._graph = graph
        self._nodes = nodes
        self._names = names
        self._inputs = inputs
        self._index = {node.name: i for i, node in enumerate(nodes)}
        types = _op_types(nodes, functions)
        self._types = [types[node.type] for node in nodes]
        self._results: dict[str, Tensor] = {}
        self._spare = MOST_RESULTS + RESULTS_OF_A_NODE * len(nodes)  # how many more results
        self._unknown: dict[tuple[str, str], str] = {}  # op type and attribute -> first node

    def create(self) -> None:
        """Make all operations, in the order in which they go into the graph.

        Warns of attributes that an op type does not have, as of a newer writer: they are kept and
        written back, and have no effect.

        Raises:
            ValueError: what TensorFlow refuses as well: cycles, unknown inputs, attributes, shapes.
        """
        constants = self._inputs.constants
        self._create_all(range(len(constants)))
        for name, node in constants.items():
            self._inputs.map(name, self.operations[node.name].outputs[0])
        self._results |= self._inputs.tensors
        try:
            self._create_all(range(len(constants), len(self._nodes)))
        except NotCreatedYetError:
            order = _creation_order(self._nodes, self._index, self._inputs.names)
            self._create_all(order[len(self.operations) :])
        for (op_type, attribute), first in self._unknown.items():
            warnings.warn(
                f"import_graph_def: node {first!r} ({op_type}): attribute {attribute!r} is unknown "
                "and ignored; it is kept in the graph",
                stacklevel=5,  # the call of the user, who calls what `publish` made
            )

    def element(self, name: str) -> Tensor | Operation:
        """Return the Tensor "a:0" or the Operation "a"; ValueError if there is none."""
        if ":" in name:
            return self._returned(name)
        found = self.operations.get(name)
        if found is None:
            raise ArgumentError(f"Requested return node {name!r} not found in graph def")
        return found

    def _returned(self, name: str) -> Tensor:
        """Return the Tensor "a:0" of `return_elements`."""
        if name in self._inputs.names:
            return self._result(name, name)
        node, index = split_tensor_name(name) or (name, 0)
        if node not in self.operations:
            raise ArgumentError(f"Requested return tensor {name!r} not found in graph def")
        outputs = self.operations[node].outputs
        if index >= len(outputs):
            raise ArgumentError(
                f"Invalid return output {index} of node {node!r}, "
                f"which has {len(outputs)} output(s)"
            )
        return outputs[index]

    def _result(self, reference: str, node: str) -> Tensor:
        """Return the Tensor that "a" or "a:1" means, a mapped one if there is one."""
        name, index = split_tensor_name(reference) or (reference, 0)
        found = self._results.get(f"{name}:{index}" if index else name)
        if found is not None:
            return found
        self._require(name, reference, node)
        outputs = self.operations[name].outputs
        if index >= len(outputs):
            text = f"input {reference!r} is result {index} of {name!r}, which has {len(outputs)}"
            raise refusal(node, text)
        return outputs[index]

    def _require(self, name: str, reference: str, node: str) -> None:
        if name in self.operations:
            return
        if name in self._index:
            raise NotCreatedYetError
        raise refusal(node, f"unknown input node {reference!r}; it is not in the GraphDef")

    def _create_all(self, order: Sequence[int]) -> None:
        nodes, names, op_types = self._nodes, self._names, self._types
        operations, results = self.operations, self._results
        inference = Inference("", "", (), {}, 0)
        for i in order:
            node = nodes[i]
            tensors, controls = self._find_inputs(node)
            op = self._operation(node, op_types[i], tensors)
            op.name = inference.name = names[i]
            op.control_inputs = controls
            inference.type = node.type
            inference.inputs = op.inputs
            inference.attrs = op.attrs
            types = op.output_types
            inference.output_count = len(types)
            dims = op_types[i].shape(inference)
            if SHAPES in op.attrs:
                dims = _merge_shapes(op, node.name, dims)
            op.outputs = tuple([Tensor(op, k, kind, dims[k]) for k, kind in enumerate(types)])
            operations[node.name] = op
            if types and node.name not in results:
                results[node.name] = op.outputs[0]

    def _find_inputs(self, node: Node) -> tuple[list[Tensor], tuple[Operation, ...]]:
        """Return the data inputs and the control inputs of a node."""
        results = self._results
        tensors: list[Tensor] = []
        for reference in node.inputs:
            tensor = results.get(reference)
            if tensor is None:
                if reference[0:1] == "^":
                    return tensors, self._controls(node.inputs[len(tensors) :], node.name)
                tensor = self._result(reference, node.name)
            tensors.append(tensor)
        return tensors, ()

    def _controls(self, references: Sequence[str], node: str) -> tuple[Operation, ...]:
        """Return the operations that control inputs "^a" name, each once, in order."""
        found: dict[Operation, None] = {}
        for reference in references:
            if reference[0:1] != "^":
                text = f"input {reference!r} comes after control inputs, which must be last"
                raise refusal(node, text)
            op = self._inputs.operations.get(reference)
            if op is None:
                self._require(reference[1:], reference, node)
                op = self.operations[reference[1:]]
            found[op] = None
        return tuple(found)

    def _operation(self, node: Node, each: _OpType, tensors: list[Tensor]) -> Operation:
        """Return an operation with inputs and attributes, checked."""
        unknown: list[str] = []
        try:
            attrs = each.signature.settle(node.attrs, unknown)
            wanted, types = each.signature.types(attrs, len(tensors))
        except InvalidAttributeError as wrong:
            text = _attribute_text(each.definition, wrong)
            raise refusal(node.name, text, each.definition.name) from None
        except InvalidCountError as wrong:
            raise refusal(node.name, str(wrong), each.definition.name) from None
        for name in unknown:
            self._unknown.setdefault((node.type, name), node.name)
        for position, tensor in enumerate(tensors):
            if tensor.dtype is not wanted[position]:
                _check_type(node.name, position, tensor, wanted[position])
        self._spare -= len(types)
        if self._spare < 0:
            text = f"with its {len(types)} results the graph has more than is allowed for its nodes"
            raise refusal(node.name, text, each.definition.name)
        op = Operation()
        op.graph = self._graph
        op.definition = each.definition
        op.inputs = tuple(tensors)
        op.attrs = attrs
        op.output_types = types
        return op


def check_names(nodes: Sequence[Node]) -> None:
    """Raise ValueError where names are wrong or not unique."""
    for node in nodes:
        if _NAME.fullmatch(node.name) is None:
            raise refusal(
                node.name,
                "the name must be letters, digits and _.-/>, and start with a letter, digit or dot",
            )
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise refusal(node.name, "the name is not unique in the GraphDef")
        seen.add(node.name)


def _check_type(node: str, position: int, tensor: Tensor, wanted: DataType) -> None:
    """Accept a reference where its value is wanted; refuse any other difference."""
    if wanted.is_ref or tensor.dtype.base_dtype is not wanted:
        raise refusal(
            node,
            f"input {position} was passed {tensor.dtype.wire_name} from {tensor.name}, "
            f"incompatible with expected {wanted.wire_name}",
        )


def _merge_shapes(op: Operation, node: str, dims: Sequence[Dims | None]) -> Sequence[Dims | None]:
    """Return the shapes of the results, merged with those that the GraphDef gives."""
    shapes = op.attrs[SHAPES]
    if type(shapes) is not list or not all(type(each) is TensorShape for each in shapes):
        return dims
    if len(shapes) < len(dims):
        text = f"it has {len(dims)} results, but its attribute {SHAPES} {len(shapes)} shapes"
        raise refusal(node, text)
    op.attrs = {key: value for key, value in op.attrs.items() if key != SHAPES}
    merged = []
    for i, (known, written) in enumerate(zip(dims, shapes, strict=False)):
        try:
            merged.append(TensorShape(known).merge_with(written).dims)
        except ArgumentError as error:
            text = f"its attribute {SHAPES} is inconsistent with the GraphDef for result {i}"
            raise refusal(node, f"{text}: {error}") from error
    return merged


def refusal(node: str, text: str, op_type: str = "") -> ArgumentError:
    """Return the error for a node that cannot be imported."""
    where = f"{node!r} ({op_type})" if op_type else f"{node!r}"
    return ArgumentError(f"import_graph_def: node {where}: {text}")


# ---- op types ----------------------------------------------------------------------------------


class _OpType(NamedTuple):
    """The checks that the nodes of one op type share.

    Attributes:
        definition: the OpDef.
        signature: what checks attributes and dtypes.
        shape: the static shape function.
    """

    definition: OpDef
    signature: Signature
    shape: Any


def _op_types(nodes: Sequence[Node], functions: Container[str]) -> dict[str, _OpType]:
    """Return the op types of all nodes by name.

    Raises:
        NotFoundError: there are none of some names; all of them are in the text.
        ValueError: a node names none.
    """
    types: dict[str, _OpType] = {}
    missing: dict[str, NotFoundError] = {}
    for node in nodes:
        if node.type not in types and node.type not in missing:
            try:
                types[node.type] = _op_type(node, functions)
            except NotFoundError as error:
                missing[node.type] = error
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        names = ", ".join(map(repr, sorted(missing)))
        first = next(iter(missing.values()))
        raise NotFoundError(
            f"Op types not registered: {names}. The first of these: {first}"
        ) from first
    return types


def _op_type(node: Node, functions: Container[str]) -> _OpType:
    """Return the op type of a node.

    Raises:
        NotFoundError: there is none of that name.
        ValueError: there is no name.
    """
    name = node.type
    if not name:
        raise ArgumentError(f"import_graph_def: node {node.name!r} does not specify an operation")
    if name in functions:
        raise NotFoundError(
            f"Op type not registered {name!r}: node {node.name!r} calls this function of the "
            "graph's library, which dlbridge does not run; inline functions before writing the "
            "graph"
        )
    definition = op_def(name)
    return _OpType(definition, definition.signature, definition.shape)


def _attribute_text(definition: OpDef, wrong: InvalidAttributeError) -> str:
    """Return what is wrong with an attribute in the words of TensorFlow's C++."""
    name, value, rule = wrong.name, wrong.value, wrong.rule
    if rule == "missing":
        return f"attribute {min(value)!r} is required, and missing"
    attribute = definition.attributes[name]
    if rule in ("kind", "element"):
        came = "none" if value is None else _describe(value)
        came = f"list({came})" if rule == "element" else came
        return f"attribute {name!r} is required to be of kind {attribute.kind}, got {came}"
    if rule == "minimum":
        came = f"has {len(value)} elements" if isinstance(value, list) else f"is {value}"
        return f"attribute {name!r} {came}, but the minimum is {attribute.minimum}"
    if rule == "reference":
        return f"attribute {name!r} is {value.name}: no reference is allowed"
    known = ", ".join(sorted(map(_text, attribute.allowed)))
    text = f"attribute {name!r} is {_text(value)}"
    return f"{text}, which is not in the list of allowed values: {known}"


_KIND_NAMES = {kind: name for name, kind in KINDS.items()}


def _describe(value: Any) -> str:
    if type(value) is not list:
        return _KIND_NAMES.get(type(value), type(value).__name__)
    return f"list({_KIND_NAMES.get(type(value[0]), '?')})" if value else "list()"


def _text(value: Any) -> str:
    return (
        value.wire_name if isinstance(value, DataType) else repr(value.decode("utf-8", "replace"))
    )


# ---- order -------------------------------------------------------------------------------------


def _creation_order(
    nodes: Sequence[Node], index: Mapping[str, int], mapped: Container[str]
) -> list[int]:
    """Return the indices of all nodes, inputs first, otherwise in the order of the GraphDef.

    Args:
        nodes: all nodes.
        index: the position of each by its name.
        mapped: inputs that are replaced, and wait for nothing.

    Raises:
        ValueError: there is a cycle; it names the nodes.
    """
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for reference in node.inputs:
            source = index.get(producer(reference))
            if source is not None and reference not in mapped:
                waiting[i] += 1
                readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _cycle_error(_find_cycle(nodes, index, mapped, waiting))
    return order


def _find_cycle(
    nodes: Sequence[Node], index: Mapping[str, int], mapped: Container[str], waiting: list[int]
) -> list[str]:
    """Return the names along a cycle; every waiting node reads another waiting one."""
    i = next(i for i, count in enumerate(waiting) if count)
    place: dict[int, int] = {}
    while i not in place:
        place[i] = len(place)
        i = next(
            index[producer(reference)]
            for reference in nodes[i].inputs
            if reference not in mapped and waiting[index.get(producer(reference), i)]
        )
    return [nodes[each].name for each in place if place[each] >= place[i]][::-1]


def _cycle_error(names: list[str]) -> ArgumentError:
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return ArgumentError(
        f"import_graph_def: the graph contains a cycle with {len(names)} nodes, including: {shown}"
    )
