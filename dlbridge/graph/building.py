"""From a call of a function to an operation: inputs converted, types settled, attributes checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.graph import Graph, graph_of
from dlbridge.graph.opdef import MISSING, Argument, OpDef, op_def
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype


def apply(
    op_type: str,
    inputs: Sequence[Any] = (),
    attrs: dict[str, Any] | None = None,
    name: str | None = None,
) -> Operation:
    """Create an operation.

    Args:
        op_type: a name in the registry.
        inputs: one entry for each input of the OpDef, a sequence for one that is a list: Tensors,
            or what `constant` takes.
        attrs: attributes, decoded; those that follow from the inputs may be left out.
        name: of the operation, in the current scope; None is the op type.

    Raises:
        TypeError: dtypes that do not agree; what is no tensor.
        ValueError: an attribute or a shape.
    """
    definition = op_def(op_type)
    graph = graph_of(inputs)
    full = graph.operation_name(name or op_type)
    given = {} if attrs is None else dict(attrs)
    flat = _bind_inputs(definition, graph, full, inputs, given)
    settled = check_attributes(definition, given)
    return graph.add(definition, flat, settled, full, output_types(definition, settled))


def _bind_inputs(
    definition: OpDef, graph: Graph, name: str, inputs: Sequence[Any], attrs: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Return all input Tensors in one row; fill in the attributes that they settle."""
    if len(inputs) != len(definition.inputs):
        raise TypeError(
            f"{definition.name}: takes {len(definition.inputs)} inputs "
            f"({', '.join(each.name for each in definition.inputs)}), got {len(inputs)}"
        )
    wanted = _types_given(definition, inputs, attrs)
    flat: list[Tensor] = []
    for argument, value in zip(definition.inputs, inputs, strict=True):
        if argument.is_list:
            values = list(value)
            kinds = _list_types(argument, values, attrs, wanted)
            tensors = [
                convert(each, kind, graph, f"{name}/{argument.name}_{i}", definition, argument)
                for i, (each, kind) in enumerate(zip(values, kinds, strict=True))
            ]
            flat += tensors
            _settle_list(definition, argument, tensors, attrs)
        else:
            kind = argument.type or wanted.get(argument.type_attr or "")
            tensor = convert(value, kind, graph, f"{name}/{argument.name}", definition, argument)
            flat.append(tensor)
            if argument.type_attr is not None:
                _settle(definition, argument, tensor, attrs)
    return tuple(flat)


def _types_given(
    definition: OpDef, inputs: Sequence[Any], attrs: dict[str, Any]
) -> dict[str, DataType]:
    """Return the type attributes that attributes or Tensors among the inputs settle."""
    found = {
        each.name: as_dtype(attrs[each.name])
        for each in definition.attributes.values()
        if each.kind == "type" and each.name in attrs
    }
    for argument, value in zip(definition.inputs, inputs, strict=False):
        if argument.type_attr is None or argument.type_attr in found:
            continue
        for each in value if argument.number_attr else (value,):
            kind = getattr(each, "dtype", None)
            if isinstance(kind, DataType):
                found[argument.type_attr] = kind.base_dtype
                break
    return found


def _list_types(
    argument: Argument, values: list[Any], attrs: dict[str, Any], wanted: dict[str, DataType]
) -> Sequence[DataType | None]:
    if argument.type_list_attr is not None:
        kinds: Sequence[DataType] | None = attrs.get(argument.type_list_attr)
        return [None] * len(values) if kinds is None else [as_dtype(kind) for kind in kinds]
    kind = argument.type or wanted.get(argument.type_attr or "")
    return [kind] * len(values)


def _settle(definition: OpDef, argument: Argument, tensor: Tensor, attrs: dict[str, Any]) -> None:
    """Note the dtype that an input gives its type attribute, or check it."""
    assert argument.type_attr is not None
    kind = tensor.dtype.base_dtype
    if attrs.setdefault(argument.type_attr, kind) is not kind:
        raise _mismatch(definition, argument, tensor, attrs)


def _settle_list(
    definition: OpDef, argument: Argument, tensors: list[Tensor], attrs: dict[str, Any]
) -> None:
    if argument.type_list_attr is not None:
        attrs[argument.type_list_attr] = [each.dtype.base_dtype for each in tensors]
        return
    if argument.number_attr is not None and attrs.setdefault(
        argument.number_attr, len(tensors)
    ) != len(tensors):
        raise ValueError(
            f"{definition.name}: input {argument.name!r} has {len(tensors)} tensors, but "
            f"{argument.number_attr} is {attrs[argument.number_attr]}"
        )
    if argument.type_attr is not None:
        for tensor in tensors:
            _settle(definition, argument, tensor, attrs)


def _mismatch(
    definition: OpDef, argument: Argument, tensor: Tensor, attrs: dict[str, Any]
) -> TypeError:
    other = next(
        (each.name for each in definition.inputs if each.type_attr == argument.type_attr), ""
    )
    kind = attrs[argument.type_attr or ""]
    return TypeError(
        f"Input {argument.name!r} of {definition.name!r} Op has type {tensor.dtype.name} that does "
        f"not match type {kind.name} of argument {other!r}."
    )


def convert(
    value: Any,
    dtype: DataType | None,
    graph: Graph,
    name: str,
    definition: OpDef,
    argument: Argument,
) -> Tensor:
    """Return an input as a Tensor of `graph`: itself, or a new constant under the operation."""
    if isinstance(value, Tensor):
        if dtype is not None and value.dtype is not dtype and value.dtype.base_dtype is not dtype:
            raise TypeError(
                f"Input {argument.name!r} of {definition.name!r} Op has type {value.dtype.name} "
                f"that does not match type {dtype.name} that is required"
            )
        return value
    from dlbridge.graph.constants import as_graph_tensor

    return as_graph_tensor(value, dtype, graph, name)


def check_attributes(definition: OpDef, attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes with defaults filled in, checked against the OpDef."""
    settled = {**definition.defaults, **attrs}
    for name, attribute in definition.attributes.items():
        value = settled.get(name, MISSING)
        if value is MISSING:
            raise ValueError(f"{definition.name}: attribute {name!r} is required")
        if attribute.allowed and attribute.kind == "type" and value not in attribute.allowed:
            allowed = ", ".join(each.name for each in attribute.allowed)
            raise TypeError(
                f"Value passed to parameter of {definition.name!r} has DataType {value.name} not "
                f"in list of allowed values: {allowed}"
            )
    return settled


def output_types(definition: OpDef, attrs: dict[str, Any]) -> tuple[DataType, ...]:
    """Return the DataType of each result."""
    types: list[DataType] = []
    for argument in definition.outputs:
        if argument.type_list_attr is not None:
            types += attrs[argument.type_list_attr]
            continue
        kind = argument.type or attrs[argument.type_attr or ""]
        kind = kind.as_ref if argument.is_ref else kind
        types += [kind] * (attrs[argument.number_attr] if argument.number_attr else 1)
    return tuple(types)
