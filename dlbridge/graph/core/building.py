"""From a call of a function to an operation: inputs converted, types and attributes settled."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from dlbridge.graph.core import attributes
from dlbridge.graph.core.graph import Graph, graph_of
from dlbridge.graph.core.opdef import MOST_RESULTS, Argument, OpDef, op_def
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype

_MOST_SETTLED = 256  # combinations of dtypes and attributes that an OpDef remembers


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
        ValueError: an attribute or a shape; tensors of several graphs.
    """
    definition = op_def(op_type)
    graph, key = _recognise(definition, inputs, attrs)
    if key is None:
        return _apply_slowly(definition, inputs, attrs, name)
    if graph is None:
        graph = graph_of(())
    found = definition.settled.get(key)
    full = graph.operation_name(name or op_type)
    if found is None:
        given = dict(attrs or {})
        flat = _bind_inputs(definition, graph, full, inputs, given)
        settled = attributes.settle(definition, given)
        found = settled, output_types(definition, settled)
        if len(definition.settled) < _MOST_SETTLED:
            definition.settled[key] = found
    else:
        flat = tuple(inputs)
    return graph.add(definition, flat, found[0], full, found[1])


def _recognise(
    definition: OpDef, inputs: Sequence[Any], attrs: dict[str, Any] | None
) -> tuple[Graph | None, Hashable | None]:
    """Return the graph, and what settles all attributes: dtypes of the inputs and what was given.

    The key is None where it does not: lists, and inputs that are to be converted.
    """
    if not definition.is_plain:
        return None, None
    graph: Graph | None = None
    types = []
    for each in inputs:
        if type(each) is not Tensor:
            return None, None
        types.append(each.dtype)
        if graph is None:
            graph = each.op.graph
        elif each.op.graph is not graph:
            return None, None
    key = tuple(types)
    if not attrs:
        return graph, key
    if not definition.is_keyed:
        return None, None
    full = (key, *attrs.items())
    try:
        hash(full)
    except TypeError:  # a list
        return None, None
    return graph, full


def _apply_slowly(
    definition: OpDef, inputs: Sequence[Any], attrs: dict[str, Any] | None, name: str | None
) -> Operation:
    """Create an operation whose inputs are to be converted, or whose lists to be looked at."""
    graph = graph_of(inputs)
    full = graph.operation_name(name or definition.name)
    given = dict(attrs or {})
    flat = _bind_inputs(definition, graph, full, inputs, given)
    settled = attributes.settle(definition, given)
    return graph.add(definition, flat, settled, full, output_types(definition, settled))


# ---- inputs ------------------------------------------------------------------------------------


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
            flat += _bind_list(definition, argument, graph, name, value, attrs, wanted)
        else:
            kind = argument.type or wanted.get(argument.type_attr or "")
            if kind is None and argument.type_attr in attrs:  # an earlier input settled it
                kind = as_dtype(attrs[argument.type_attr])
            if kind is None and isinstance(value, list | tuple) and not value:
                kind = definition.defaults.get(argument.type_attr or "")  # no element tells
            tensor = convert(value, kind, graph, f"{name}/{argument.name}", definition, argument)
            flat.append(tensor)
            _settle(definition, argument, tensor, attrs)
    return tuple(flat)


def _bind_list(
    definition: OpDef,
    argument: Argument,
    graph: Graph,
    name: str,
    value: Any,
    attrs: dict[str, Any],
    wanted: dict[str, DataType],
) -> list[Tensor]:
    """Return the Tensors of one input that is a list."""
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"Expected list for {argument.name!r} argument to {definition.name!r} Op, not {value!r}"
        )
    if argument.type_attr is not None:
        _check_alike(definition, argument, value)
    kinds = _list_types(definition, argument, value, attrs, wanted)
    tensors = [
        convert(each, kind, graph, f"{name}/{argument.name}_{i}", definition, argument)
        for i, (each, kind) in enumerate(zip(value, kinds, strict=True))
    ]
    _settle_list(definition, argument, tensors, attrs)
    return tensors


def _check_alike(definition: OpDef, argument: Argument, values: Sequence[Any]) -> None:
    """Refuse Tensors of several dtypes in one list."""
    kinds = [each.dtype for each in values if isinstance(each, Tensor)]
    if len({kind.base_dtype for kind in kinds}) > 1:
        raise TypeError(
            f"Tensors in list passed to {argument.name!r} of {definition.name!r} Op have types "
            f"[{', '.join(kind.name for kind in kinds)}] that don't all match."
        )


def _types_given(
    definition: OpDef, inputs: Sequence[Any], attrs: dict[str, Any]
) -> dict[str, DataType]:
    """Return the type attributes that attributes or Tensors among the inputs settle."""
    found = {
        each.name: attributes.check(definition, each, attrs[each.name])
        for each in definition.attributes.values()
        if each.kind == "type" and each.name in attrs
    }
    for argument, value in zip(definition.inputs, inputs, strict=False):
        if argument.type_attr is None or argument.type_attr in found:
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            kind = getattr(each, "dtype", None)
            if isinstance(kind, DataType):
                found[argument.type_attr] = kind.base_dtype
                break
    return found


def _list_types(
    definition: OpDef,
    argument: Argument,
    values: Sequence[Any],
    attrs: dict[str, Any],
    wanted: dict[str, DataType],
) -> Sequence[DataType | None]:
    if argument.type_list_attr is None:
        return [argument.type or wanted.get(argument.type_attr or "")] * len(values)
    kinds = attrs.get(argument.type_list_attr)
    if kinds is None:
        return [None] * len(values)
    if len(kinds) != len(values):
        raise ValueError(
            f"{definition.name}: input {argument.name!r} has {len(values)} tensors, but "
            f"{argument.type_list_attr} names {len(kinds)} dtypes"
        )
    return [as_dtype(kind) for kind in kinds]


def _settle(definition: OpDef, argument: Argument, tensor: Tensor, attrs: dict[str, Any]) -> None:
    """Note the dtype that an input gives its type attribute, or check it."""
    if argument.is_ref and not tensor.dtype.is_ref:
        raise TypeError(
            f"Input {argument.name!r} of {definition.name!r} Op requires l-value input: a "
            f"reference to a variable, got {tensor!r}"
        )
    if argument.type_attr is None:
        return
    kind = tensor.dtype.base_dtype
    if as_dtype(attrs.setdefault(argument.type_attr, kind)) is not kind:
        raise _mismatch(definition, argument, tensor, attrs)


def _settle_list(
    definition: OpDef, argument: Argument, tensors: list[Tensor], attrs: dict[str, Any]
) -> None:
    if argument.type_list_attr is not None:
        attrs[argument.type_list_attr] = [each.dtype.base_dtype for each in tensors]
        return
    assert argument.number_attr is not None
    if attrs.setdefault(argument.number_attr, len(tensors)) != len(tensors):
        raise ValueError(
            f"{definition.name}: input {argument.name!r} has {len(tensors)} tensors, but "
            f"{argument.number_attr} is {attrs[argument.number_attr]}"
        )
    for tensor in tensors:
        _settle(definition, argument, tensor, attrs)


def _mismatch(
    definition: OpDef, argument: Argument, tensor: Tensor, attrs: dict[str, Any]
) -> TypeError:
    """Return the error for an input whose dtype is not that of an earlier one."""
    kind = as_dtype(attrs[argument.type_attr or ""])
    other = next(
        (each.name for each in definition.inputs if each.type_attr == argument.type_attr), ""
    )
    of = f"argument {other!r}" if other != argument.name else f"attr {argument.type_attr!r}"
    return TypeError(
        f"Input {argument.name!r} of {definition.name!r} Op has type {tensor.dtype.name} that does "
        f"not match type {kind.name} of {of}."
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
    if not isinstance(value, Tensor):
        from dlbridge.graph.core.constants import as_graph_tensor

        where = f"input {argument.name!r} of {definition.name!r} Op"
        value = as_graph_tensor(value, dtype, graph, name, where, argument.is_ref)
    if dtype is not None and value.dtype is not dtype and value.dtype.base_dtype is not dtype:
        if argument.type_attr is not None:
            raise _mismatch(definition, argument, value, {argument.type_attr: dtype})
        raise TypeError(
            f"Input {argument.name!r} of {definition.name!r} Op has type {value.dtype.name} that "
            f"does not match expected type of {dtype.name}."
        )
    tensor: Tensor = value
    return tensor


def output_types(definition: OpDef, attrs: dict[str, Any]) -> tuple[DataType, ...]:
    """Return the DataType of each result."""
    types: list[DataType] = []
    for argument in definition.outputs:
        if argument.type_list_attr is not None:
            types += attrs[argument.type_list_attr]
            continue
        kind = argument.type or attrs[argument.type_attr or ""]
        kind = kind.as_ref if argument.is_ref else kind
        count = attrs[argument.number_attr] if argument.number_attr else 1
        if count > MOST_RESULTS:
            raise ValueError(f"{definition.name}: {count} results; at most are {MOST_RESULTS}")
        types += [kind] * count
    return tuple(types)
