"""GraphDef messages as lists of nodes with decoded attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError, WireError
from dlbridge.graph.core.opdef import op_def
from dlbridge.graph.core.versions import Versions
from dlbridge.proto.attributes import read_attr


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
                raise _refusal(node, key, error) from error
        made.append(Node(node.name, node.op, node.input[:], node.device, attrs))
    return made


def _refusal(node: Any, attribute: str, error: WireError) -> WireError:
    return WireError(
        f"import_graph_def: node {node.name!r} ({node.op}): attribute {attribute!r}: {error}"
    )


def without_defaults(source: Source, op_list: Any) -> Source:
    """Return a graph without the attributes that we do not know and that have their default.

    Args:
        source: the graph.
        op_list: an OpList message with the op types that the writer knew.
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
    ours = op_def(node.type).attributes
    return {
        each.name
        for each in definition.attr
        if each.name in node.attrs
        and each.name not in ours
        and each.HasField("default_value")
        and read_attr(each.default_value) == node.attrs[each.name]
    }


def merge_libraries(one: dict[str, bytes], other: dict[str, bytes]) -> dict[str, bytes]:
    """Return the functions of two libraries; ValueError where they contradict each other."""
    for name in one.keys() & other.keys():
        if one[name] != other[name]:
            raise ArgumentError(
                f"import_graph_def: cannot add function {name!r} because a different function with "
                "the same name already exists"
            )
    return {**one, **other}
