"""Operations from inputs in one row and attributes of any form: what `Graph.create_op` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.graph.core import attributes, building
from dlbridge.graph.core.opdef import Argument, OpDef, op_def
from dlbridge.proto.datatypes import as_dtype

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation


def create_op(
    graph: Graph,
    op_type: str,
    inputs: Sequence[Any],
    dtypes: Sequence[object] | None,
    input_types: Sequence[object] | None,
    name: str | None,
    attrs: Mapping[str, Any] | None,
    definition: OpDef | None,
) -> Operation:
    """Create an operation; see `Graph.create_op`."""
    if not isinstance(definition, OpDef):
        definition = op_def(op_type)
    given = {key: _decode(value) for key, value in (attrs or {}).items()}
    tensors = [graph.as_graph_element(each, allow_operation=False) for each in inputs]
    _compare(definition, "input_types", input_types, [each.dtype for each in tensors])  # type: ignore[union-attr]
    full = graph.operation_name(name or op_type)
    groups = group(definition, tensors, given)
    flat = building._bind_inputs(definition, graph, full, groups, given)
    settled = attributes.settle(definition, given)
    types = building.output_types(definition, settled)
    _compare(definition, "dtypes", dtypes, types)
    return graph.add(definition, flat, settled, full, types)


def _decode(value: Any) -> Any:
    """Return an AttrValue message as its value, all else as it is."""
    if hasattr(value, "WhichOneof"):
        from dlbridge.proto.attributes import read_attr

        return read_attr(value)
    return value


def _compare(
    definition: OpDef, what: str, given: Sequence[object] | None, found: Sequence[Any]
) -> None:
    if given is None:
        return
    wanted = [as_dtype(each).base_dtype for each in given]
    if wanted != [each.base_dtype for each in found]:
        raise TypeError(
            f"create_op: {what} of {definition.name!r} Op must be "
            f"{[each.name for each in found]}, got {[each.name for each in wanted]}"
        )


def group(definition: OpDef, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Return inputs in one row as one entry for each of the OpDef, lists for those that are.

    The length of a list is that of its attributes; one whose attributes are missing takes all that
    the others leave.

    Raises:
        ValueError: the number of inputs is wrong.
    """
    lengths = [_length(argument, attrs) for argument in definition.inputs]
    open_ends = lengths.count(None)
    known = sum(length for length in lengths if length is not None)
    rest = len(inputs) - known
    if open_ends > 1 or rest < 0 or (rest and not open_ends):
        required = f"{known} or more" if open_ends else f"{known}"
        raise ValueError(
            f"create_op: {definition.name!r} Op takes {required} inputs, got {len(inputs)}"
            + (f"; give the lengths of its {open_ends} lists in attrs" if open_ends > 1 else "")
        )
    groups: list[Any] = []
    start = 0
    for argument, length in zip(definition.inputs, lengths, strict=True):
        stop = start + (rest if length is None else length)
        part = list(inputs[start:stop])
        groups.append(part if argument.is_list else part[0])
        start = stop
    return groups


def _length(argument: Argument, attrs: Mapping[str, Any]) -> int | None:
    if argument.number_attr is not None:
        number: int | None = attrs.get(argument.number_attr)
        return number
    if argument.type_list_attr is not None:
        types = attrs.get(argument.type_list_attr)
        return None if types is None else len(types)
    return 1
