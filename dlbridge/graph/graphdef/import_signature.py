"""What an import asks of an op type: the kinds, limits and dtypes of its OpDef, computed once."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NoReturn

from dlbridge.errors import ArgumentError
from dlbridge.execution.errors import NotFoundError
from dlbridge.graph.core.opdef import MISSING, MOST_RESULTS, Argument, Attribute, OpDef, op_def
from dlbridge.proto.datatypes import DataType
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import TensorShape

Types = tuple[DataType, ...]

KINDS: dict[str, type] = {
    "string": bytes,
    "int": int,
    "float": float,
    "bool": bool,
    "type": DataType,
    "shape": TensorShape,
    "tensor": TensorValue,
    "func": FunctionName,
}
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}

# Attributes that TensorFlow gave to op types that had been in use for long, and their defaults. It
# writes them into every graph; a reader that does not know them may ignore the default.
LATER_DEFAULTS: dict[tuple[str, str], Any] = {
    ("MatMul", "grad_a"): False,
    ("MatMul", "grad_b"): False,
    ("BatchMatMul", "grad_x"): False,
    ("BatchMatMul", "grad_y"): False,
    ("BatchMatMulV2", "grad_x"): False,
    ("BatchMatMulV2", "grad_y"): False,
    ("BatchMatMulV3", "grad_x"): False,
    ("BatchMatMulV3", "grad_y"): False,
    ("Cumsum", "reverse"): False,
    ("VarHandleOp", "debug_name"): b"",
    ("VarHandleOp", "allowed_devices"): [],
    ("Gather", "validate_indices"): True,
    ("GatherV2", "batch_dims"): 0,
    ("GatherNd", "bad_indices_policy"): b"",
    ("ScatterNd", "bad_indices_policy"): b"",
    ("TensorScatterUpdate", "bad_indices_policy"): b"",
    ("Conv2D", "explicit_paddings"): [],
    ("DepthwiseConv2dNative", "explicit_paddings"): [],
    ("MaxPool", "explicit_paddings"): [],
    ("AssignVariableOp", "validate_shape"): False,
    ("Cast", "Truncate"): False,
}


class Signature:
    """An OpDef, prepared for many nodes.

    Attributes:
        definition: the OpDef.
        kinds: the Python type of each attribute's values.
        shape: its static shape function.
    """

    __slots__ = (
        "_checks",
        "_defaults",
        "_key",
        "_required",
        "_types",
        "definition",
        "kinds",
        "shape",
    )

    def __init__(self, definition: OpDef) -> None:
        self.definition = definition
        self.shape = definition.shape
        attributes = definition.attributes
        self.kinds = {name: _kind(each) for name, each in attributes.items()}
        self._checks = {name: _check(each) for name, each in attributes.items()}
        self._defaults = dict(definition.defaults)
        self._required = frozenset(attributes) - frozenset(self._defaults)
        arguments = (*definition.inputs, *definition.outputs)
        self._key = _names_in(arguments)
        self._types: dict[Any, tuple[Types, Types]] = {}

    def settle(self, node: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node's attributes, checked, with defaults filled in.

        Raises:
            ValueError: one is missing, unknown, of the wrong kind, or not among those allowed.
        """
        attrs = {**self._defaults, **given}
        if not self._required <= attrs.keys():
            missing = min(self._required - attrs.keys())
            raise _refusal(node, self.definition, f"attribute {missing!r} is required, and missing")
        kinds, checks = self.kinds, self._checks
        for name, value in given.items():
            kind = kinds.get(name)
            if kind is None:
                if name[0:1] != "_":
                    self._ignore_default(node, name, value)
                    del attrs[name]
            elif type(value) is not kind:
                self._refuse_kind(node, name, value)
            else:
                check = checks[name]
                if check is not None:
                    wrong = check(value)
                    if wrong is not None:
                        raise _refusal(node, self.definition, f"attribute {name!r} {wrong}")
        return attrs

    def types(self, node: str, attrs: Mapping[str, Any], given: int) -> tuple[Types, Types]:
        """Return the dtypes of inputs and results, those of references as such.

        Args:
            node: the name of the node, for errors.
            attrs: what `settle` returned.
            given: the number of inputs that the node has, which bounds what is computed.
        """
        key = tuple([_frozen(attrs[name]) for name in self._key])
        found = self._types.get(key)
        if found is None:
            inputs, outputs = self.definition.inputs, self.definition.outputs
            count = _count(inputs, attrs)
            if count != given:
                raise _refusal(node, self.definition, f"required are {count} inputs, got {given}")
            if _count(outputs, attrs) > MOST_RESULTS:
                text = f"{_count(outputs, attrs)} results; at most are {MOST_RESULTS}"
                raise _refusal(node, self.definition, text)
            found = self._types[key] = (_expand(inputs, attrs), _expand(outputs, attrs))
        if len(found[0]) != given:
            raise _refusal(
                node, self.definition, f"required are {len(found[0])} inputs, got {given}"
            )
        return found

    def _ignore_default(self, node: str, name: str, value: Any) -> None:
        """Accept an attribute of a newer TensorFlow if it has its default."""
        if LATER_DEFAULTS.get((self.definition.name, name), MISSING) != value:
            raise _refusal(
                node,
                self.definition,
                f"attribute {name!r} with the value {value!r} is unknown; known are "
                f"{', '.join(self.kinds) or 'none'}, and private ones with a leading underscore",
            )

    def _refuse_kind(self, node: str, name: str, value: Any) -> NoReturn:
        required = self.definition.attributes[name].kind
        came = "none" if value is None else _describe(value)
        text = f"attribute {name!r} is required to be of kind {required}, got {came}"
        raise _refusal(node, self.definition, text)


_signatures: dict[str, Signature] = {}


def signature(type_: str, node: str, functions: Container[str] = ()) -> Signature:
    """Return the Signature of the op type of a node.

    Args:
        type_: its name.
        node: the name of the node, for errors.
        functions: names in the graph's library; a node may call one, which we cannot do.

    Raises:
        NotFoundError: there is none of that name.
        ValueError: there is no name.
    """
    found = _signatures.get(type_)
    if found is None:
        if not type_:
            raise ArgumentError(f"import_graph_def: node {node!r} does not specify an operation")
        if type_ in functions:
            raise NotFoundError(
                f"Op type not registered {type_!r}: node {node!r} calls this function of the "
                "graph's library, which dlbridge does not run; inline functions before writing "
                "the graph"
            )
        found = _signatures[type_] = Signature(op_def(type_))
    return found


def _refusal(node: str, definition: OpDef, text: str) -> ArgumentError:
    return ArgumentError(f"import_graph_def: node {node!r} ({definition.name}): {text}")


def _describe(value: Any) -> str:
    if type(value) is not list:
        return _KIND_NAMES.get(type(value), type(value).__name__)
    return f"list({_KIND_NAMES.get(type(value[0]), '?')})" if value else "list()"


# ---- attributes --------------------------------------------------------------------------------

Check = Callable[[Any], str | None]


def _kind(attribute: Attribute) -> type:
    return list if attribute.kind.startswith("list(") else KINDS[attribute.kind]


def _check(attribute: Attribute) -> Check | None:
    """Return what finds a wrong value of the right Python type, or None where none can be."""
    element = attribute.kind.removeprefix("list(").removesuffix(")")
    is_list = element != attribute.kind
    allowed = frozenset(attribute.allowed)
    minimum = attribute.minimum
    required = KINDS[element]
    is_type = element == "type"

    def one(value: Any) -> str | None:
        if is_list and type(value) is not required:
            return f"is required to be of kind {attribute.kind}, got list({_describe(value)})"
        if is_type and value.is_ref:
            return f"is {value.name}: no reference is allowed"
        if allowed and value not in allowed:
            known = ", ".join(sorted(_text(each) for each in attribute.allowed))
            return f"is {_text(value)}, which is not in the list of allowed values: {known}"
        return None

    def many(values: list[Any]) -> str | None:
        if minimum is not None and len(values) < minimum:
            return f"has {len(values)} elements, but the minimum is {minimum}"
        return next((text for text in map(one, values) if text is not None), None)

    def number(value: int) -> str | None:
        assert minimum is not None
        return f"is {value}, but the minimum is {minimum}" if value < minimum else None

    if is_list:
        return many
    if minimum is not None:
        return number
    return one if allowed or is_type else None


def _text(value: Any) -> str:
    return value.wire_name if isinstance(value, DataType) else repr(value.decode())


# ---- dtypes ------------------------------------------------------------------------------------


def _names_in(arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Return the names of the attributes on which the dtypes of inputs and results depend."""
    found: dict[str, None] = {}
    for each in arguments:
        for name in (each.type_attr, each.number_attr, each.type_list_attr):
            if name is not None:
                found[name] = None
    return tuple(found)


def _frozen(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _count(arguments: Sequence[Argument], attrs: Mapping[str, Any]) -> int:
    """Return the number of tensors that arguments stand for."""
    count = 0
    for each in arguments:
        if each.type_list_attr is not None:
            count += len(attrs[each.type_list_attr])
        elif each.number_attr is not None:
            count += max(attrs[each.number_attr], 0)
        else:
            count += 1
    return count


def _expand(arguments: Sequence[Argument], attrs: Mapping[str, Any]) -> Types:
    """Return the DataType of each tensor that arguments stand for."""
    types: list[DataType] = []
    for each in arguments:
        if each.type_list_attr is not None:
            found = list(attrs[each.type_list_attr])
        else:
            kind = each.type or attrs[each.type_attr or ""]
            found = [kind] * (attrs[each.number_attr] if each.number_attr is not None else 1)
        types += [kind.as_ref for kind in found] if each.is_ref else found
    return tuple(types)
