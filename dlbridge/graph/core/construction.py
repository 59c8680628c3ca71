"""Op construction in a given graph: inputs become Tensors, types and attributes are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.graph.core import opdef, values
from dlbridge.graph.core.notation import Argument, Attribute
from dlbridge.graph.core.opdef import InvalidAttributeError, InvalidCountError, OpDef, op_def
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.proto.attributes import read_attr
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import TensorValue
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph


class Prepared(NamedTuple):
    """A checked operation for `Graph.add`: flat inputs, all attributes, dtypes of the results."""

    inputs: tuple[Tensor, ...]
    attrs: dict[str, Any]
    output_types: tuple[DataType, ...]


def prepare(
    graph: Graph, definition: OpDef, name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Prepared:
    """Return a new operation's inputs and attributes, converted and checked.

    Args:
        graph: where constants go that inputs become.
        definition: of the op type.
        name: the full name of the operation.
        inputs: one entry for each input of the OpDef, a sequence for a list: Tensors, or what
            `constant` takes.
        attrs: those that follow from the inputs may be left out; see `attributes.decode`.

    Raises:
        TypeError: dtypes that do not agree; an attribute of the wrong kind.
        ValueError: an attribute that is missing, unknown, below its minimum or not allowed.
    """
    given = dict(attrs)
    flat = _bind_inputs(definition, graph, name, inputs, given)
    decoded = {
        key: _decode(definition, definition.attributes[key], value)
        if key in definition.attributes
        else value
        for key, value in given.items()
    }
    try:
        settled = definition.signature.settle(decoded)
        _, types = definition.signature.types(settled, len(flat))
    except InvalidAttributeError as wrong:
        raise _attribute_error(definition, wrong) from None
    except InvalidCountError as wrong:
        raise ValueError(f"{definition.name}: {wrong}") from None
    return Prepared(flat, settled, types)


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
    """Create an operation from flat inputs; see `Graph.create_op`."""
    if not isinstance(definition, OpDef):
        definition = op_def(op_type)
    given = {key: _read_message(value) for key, value in (attrs or {}).items()}
    tensors = [graph.as_graph_element(each, allow_operation=False) for each in inputs]
    _compare(definition, "input_types", input_types, [each.dtype for each in tensors])  # type: ignore[union-attr]
    full = graph.operation_name(name or op_type)
    made = prepare(graph, definition, full, _group(definition, tensors, given), given)
    _compare(definition, "dtypes", dtypes, made.output_types)
    return graph.add(definition, made.inputs, made.attrs, full, made.output_types)


def _read_message(value: Any) -> Any:
    """Return an AttrValue message as its value, all else as it is."""
    if hasattr(value, "WhichOneof"):
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


def _group(definition: OpDef, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Return flat inputs as one entry for each of the OpDef, lists for those that are.

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
        members = list(inputs[start:stop])
        groups.append(members if argument.is_list else members[0])
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


# ---- attributes --------------------------------------------------------------------------------


def _decode(definition: OpDef, attribute: Attribute, value: Any) -> Any:
    try:
        return opdef.decode(attribute, value)
    except not_from_handler(TypeError, ValueError) as error:
        raise _wrong_kind(definition, attribute, value, str(error)) from error


def _wrong_kind(definition: OpDef, attribute: Attribute, value: Any, reason: str) -> TypeError:
    return TypeError(
        f"Expected {attribute.kind} for attr {attribute.name!r} of {definition.name!r} Op, got "
        f"{value!r} of type {type(value).__name__}{reason and f': {reason}'}"
    )


def _attribute_error(definition: OpDef, wrong: InvalidAttributeError) -> Exception:
    """Return the error for an attribute in the words of TensorFlow's Python."""
    name, value = wrong.name, wrong.value
    if wrong.rule == "missing":
        return ValueError(
            f"{definition.name} Op is missing attr {', '.join(map(repr, value))}: it has no "
            "default and does not follow from the inputs"
        )
    if wrong.rule == "unknown":
        known = ", ".join(definition.attributes) or "none"
        return ValueError(f"{definition.name} Op has no attr {name!r}; it has {known}")
    attribute = definition.attributes[name]
    if wrong.rule == "minimum":
        passed = f"list of length {len(value)}" if isinstance(value, list) else value
        return ValueError(
            f"Attr {name!r} of {definition.name!r} Op passed {passed} less than minimum "
            f"{attribute.minimum}."
        )
    if wrong.rule != "allowed":
        return _wrong_kind(definition, attribute, value, "")
    if isinstance(value, DataType):
        names = ", ".join(each.name for each in attribute.allowed)
        return TypeError(
            f"Value passed to parameter {_parameter(definition, name)!r} of "
            f"{definition.name!r} Op has DataType {value.name} not in list of allowed values: "
            f"{names}"
        )
    return ValueError(
        f"Value for attr {name!r} of {definition.name!r} Op is {value!r}, not in the "
        f"list of allowed values: {', '.join(map(repr, attribute.allowed))}"
    )


def _parameter(definition: OpDef, attr: str) -> str:
    """Return the first input that has the dtype of a type attribute, or the attribute."""
    for argument in definition.inputs:
        if attr in (argument.type_attr, argument.type_list_attr):
            return argument.name
    return attr


# ---- inputs ------------------------------------------------------------------------------------


def _bind_inputs(
    definition: OpDef, graph: Graph, name: str, inputs: Sequence[Any], attrs: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Return all input Tensors, flat; fill in the attributes that they determine."""
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
                kind = definition.defaults.get(
                    argument.type_attr or ""
                )  # no element to infer it from
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
        _check_same_dtype(definition, argument, value)
    kinds = _list_types(definition, argument, value, attrs, wanted)
    tensors = [
        convert(each, kind, graph, f"{name}/{argument.name}_{i}", definition, argument)
        for i, (each, kind) in enumerate(zip(value, kinds, strict=True))
    ]
    _settle_list(definition, argument, tensors, attrs)
    return tensors


def _check_same_dtype(definition: OpDef, argument: Argument, values: Sequence[Any]) -> None:
    """Refuse a list of Tensors with different dtypes."""
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
        each.name: _decode(definition, each, attrs[each.name])
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
    """Set the type attribute of an input to its dtype, or compare them."""
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


# ---- values as Tensors -------------------------------------------------------------------------


def as_graph_tensor(
    value: Any,
    dtype: DataType | None,
    graph: Graph,
    name: str,
    where: str = "constant",
    as_ref: bool = False,
) -> Tensor:
    """Return an argument of an operation as a Tensor.

    Args:
        value: a Tensor, what has a method `_as_graph_tensor(dtype, name, as_ref)` such as a
            Variable, or what `constant` takes.
        dtype: wanted for what has none.
        graph: where constants go.
        name: the full name of a new constant, made unique unless it ends in a slash.
        where: what errors begin with.
        as_ref: whether a reference to a variable is wanted.
    """
    if isinstance(value, Tensor):
        return value
    convert = getattr(value, "_as_graph_tensor", None)
    if convert is not None:
        tensor: Tensor = convert(dtype, name, as_ref)
        return tensor
    full = name[:-1] if name[-1:] == "/" else graph._unique(name)
    if holds_tensors(value):
        return _pack(value, dtype or _dtype_within(value), graph, full, where)
    return add_constant(graph, values.make_value(value, dtype, where), full)


def holds_tensors(value: Any) -> bool:
    """Return whether there are symbolic tensors in nested lists."""
    if not isinstance(value, list | tuple) or hasattr(value, "_as_graph_tensor"):
        return False
    return any(
        isinstance(each, Tensor) or hasattr(each, "_as_graph_tensor") or holds_tensors(each)
        for each in value
    )


def _dtype_within(value: Any) -> DataType | None:
    """Return the dtype of the first symbolic tensor in nested lists."""
    if isinstance(value, list | tuple):
        found = (_dtype_within(each) for each in value)
        return next((each for each in found if each is not None), None)
    kind = getattr(value, "dtype", None)
    return kind.base_dtype if isinstance(kind, DataType) else None


def _pack(value: Any, dtype: DataType | None, graph: Graph, name: str, where: str) -> Tensor:
    """Return nested lists with symbolic tensors in them as packed tensors."""
    packed = [
        as_graph_tensor(each, dtype, graph, f"{name}/{i}", where) for i, each in enumerate(value)
    ]
    definition = op_def("Pack")
    made = prepare(graph, definition, name, (packed,), {"axis": 0})
    return graph.add(definition, made.inputs, made.attrs, name, made.output_types).outputs[0]


def add_constant(graph: Graph, value: TensorValue, name: str) -> Tensor:
    """Add an operation for a value, with a full name."""
    kind = value.dtype
    attrs = {"value": value, "dtype": kind}
    return graph.add(op_def("Const"), (), attrs, name, (kind,), dims=(value.shape,)).outputs[0]
