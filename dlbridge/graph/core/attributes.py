"""The attributes and dtypes of an operation: where they are checked against the OpDef.

`Signature` checks decoded values, those of new operations and of imported nodes alike. Its errors
name the rule that was broken; `construction` and the import word them, as TensorFlow's Python and
C++ do. `decode` turns what Python code passes into a decoded value: a name into a DataType.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from operator import index
from typing import Any

import numpy as np

from dlbridge.graph.core.notation import MISSING, Argument, Attribute
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import TensorShape, as_shape

MOST_RESULTS = 2**16
"""A node of 30 bytes may ask for any number of results; no graph in use comes near this many."""

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

Types = tuple[DataType, ...]
Check = Callable[[Any], None]

_MOST_TYPES = 256  # combinations of dtypes and lengths that a Signature keeps
_NONE: Mapping[str, Any] = {}


class InvalidAttributeError(Exception):
    """An attribute breaks a rule of the OpDef.

    Attributes:
        rule: "missing", "unknown", "kind", "element" (the kind of one), "reference", "allowed" or
            "minimum".
        name: of the attribute.
        value: what breaks the rule; the list of names where some are missing.
    """

    def __init__(self, rule: str, name: str, value: Any) -> None:
        super().__init__(rule, name, value)
        self.rule = rule
        self.name = name
        self.value = value


class InvalidCountError(Exception):
    """The number of inputs or results is wrong; the text says how."""


class Signature:
    """The inputs, results and attributes of an op type, prepared for checking many operations.

    Attributes:
        kinds: the Python type of each attribute's values.
    """

    __slots__ = (
        "_checks",
        "_defaults",
        "_inputs",
        "_key",
        "_outputs",
        "_required",
        "_types",
        "kinds",
    )

    def __init__(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument],
        attributes: Mapping[str, Attribute],
        defaults: Mapping[str, Any],
    ) -> None:
        self.kinds = {name: _python_type(each) for name, each in attributes.items()}
        self._checks = {name: _check_of(each) for name, each in attributes.items()}
        self._defaults = dict(defaults)
        self._required = frozenset(attributes) - frozenset(defaults)
        self._inputs = inputs
        self._outputs = outputs
        self._key = _names_in((*inputs, *outputs))
        self._types: dict[Any, tuple[Types, Types]] = {}

    def settle(
        self, given: Mapping[str, Any], ignorable: Mapping[str, Any] = _NONE
    ) -> dict[str, Any]:
        """Return all attributes of an operation: those given, checked, and defaults.

        Args:
            given: decoded. Names with `_` in front are free.
            ignorable: unknown attributes that are dropped if they have these values.

        Raises:
            InvalidAttributeError: one is missing, unknown, of the wrong kind, or not allowed.
        """
        attrs = {**self._defaults, **given}
        if not self._required <= attrs.keys():
            missing = [name for name in self.kinds if name not in attrs]
            raise InvalidAttributeError("missing", missing[0], missing)
        kinds, checks = self.kinds, self._checks
        for name, value in given.items():
            kind = kinds.get(name)
            if kind is None:
                if name[0:1] != "_":
                    if ignorable.get(name, MISSING) != value:
                        raise InvalidAttributeError("unknown", name, value)
                    del attrs[name]
            elif type(value) is not kind:
                raise InvalidAttributeError("kind", name, value)
            else:
                check = checks[name]
                if check is not None:
                    check(value)
        return attrs

    def types(self, attrs: Mapping[str, Any], given: int) -> tuple[Types, Types]:
        """Return the dtypes of inputs and results, those of references as such.

        Args:
            attrs: what `settle` returned.
            given: the number of inputs of the operation, which bounds the work.

        Raises:
            InvalidCountError: another number of inputs is required; there are too many results.
        """
        key = tuple([_frozen(attrs[name]) for name in self._key])
        found = self._types.get(key)
        if found is None:
            _require_count(_count(self._inputs, attrs), given)
            results = _count(self._outputs, attrs)
            if results > MOST_RESULTS:
                raise InvalidCountError(f"{results} results; at most are {MOST_RESULTS}")
            found = _expand(self._inputs, attrs), _expand(self._outputs, attrs)
            if len(self._types) < _MOST_TYPES:
                self._types[key] = found
        _require_count(len(found[0]), given)
        return found


# ---- rules -------------------------------------------------------------------------------------


def _python_type(attribute: Attribute) -> type:
    return list if attribute.kind.startswith("list(") else KINDS[attribute.kind]


def _check_of(attribute: Attribute) -> Check | None:
    """Return what refuses a value of the right Python type, or None where any is right."""
    name, minimum = attribute.name, attribute.minimum
    element = attribute.kind.removeprefix("list(").removesuffix(")")
    is_list = element != attribute.kind
    allowed = frozenset(attribute.allowed)
    required = KINDS[element]
    is_type = element == "type"

    def check_one(value: Any) -> None:
        if is_list and type(value) is not required:
            raise InvalidAttributeError("element", name, value)
        if is_type and value.is_ref:
            raise InvalidAttributeError("reference", name, value)
        if allowed and value not in allowed:
            raise InvalidAttributeError("allowed", name, value)

    def check_list(values: list[Any]) -> None:
        if minimum is not None and len(values) < minimum:
            raise InvalidAttributeError("minimum", name, values)
        for value in values:
            check_one(value)

    def check_number(value: int) -> None:
        if value < minimum:  # type: ignore[operator]
            raise InvalidAttributeError("minimum", name, value)

    if is_list:
        return check_list
    if minimum is not None:
        return check_number
    return check_one if allowed or is_type else None


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


def _require_count(required: int, given: int) -> None:
    if required != given:
        raise InvalidCountError(f"required are {required} inputs, got {given}")


def _count(arguments: Sequence[Argument], attrs: Mapping[str, Any]) -> int:
    """Return the number of tensors of all arguments."""
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
    """Return the DataType of each tensor of all arguments."""
    types: list[DataType] = []
    for each in arguments:
        if each.type_list_attr is not None:
            found = list(attrs[each.type_list_attr])
        else:
            kind = each.type or attrs[each.type_attr or ""]
            found = [kind] * (attrs[each.number_attr] if each.number_attr is not None else 1)
        types += [kind.as_ref for kind in found] if each.is_ref else found
    return tuple(types)


# ---- decoding ----------------------------------------------------------------------------------


def decode(attribute: Attribute, value: Any) -> Any:
    """Return a value that Python code passed for an attribute, decoded.

    Args:
        attribute: the attribute.
        value: decoded, or one that is easily read as that: a name for a type, a str for bytes.

    Raises:
        TypeError, ValueError: it cannot be read.
    """
    kind = attribute.kind
    if not kind.startswith("list("):
        return _READERS[kind](value)
    if not isinstance(value, list | tuple):
        raise TypeError
    reader = _READERS[kind[5:-1]]
    return [reader(each) for each in value]


def _read_float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("expected a number")
    return c_float(float(value)).value  # a GraphDef holds 32 bits


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError("expected True or False")
    return bool(value)


def _read_string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError("expected bytes or str")
    return bytes(value)


def _read_tensor(value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    array = np.asarray(value)
    return TensorValue(as_dtype(array.dtype), array.copy())


def _read_function(value: Any) -> FunctionName:
    if isinstance(value, FunctionName):
        return value
    if not isinstance(value, str):
        raise TypeError("expected a FunctionName or the name of a function")
    return FunctionName(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(index(value)),
    "float": _read_float,
    "bool": _read_bool,
    "string": _read_string,
    "type": as_dtype,
    "shape": as_shape,
    "tensor": _read_tensor,
    "func": _read_function,
}
