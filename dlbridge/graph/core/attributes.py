"""Attributes of an operation: defaults filled in, each checked against the OpDef."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float
from operator import index
from typing import Any

import numpy as np

from dlbridge.graph.core.opdef import Attribute, OpDef
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import as_shape


def settle(definition: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all attributes of an operation, decoded.

    Args:
        definition: of its type.
        attrs: those given, in the form of `dlbridge.proto.attributes` or one that is easily read
            as that: a name for a type, a str for bytes. Names with `_` in front are free.

    Raises:
        ValueError: one that is missing, unknown, below its minimum, or text that is not allowed.
        TypeError: one of the wrong kind, or a dtype that is not allowed.
    """
    settled = dict(definition.defaults)
    known = definition.attributes
    for name, value in attrs.items():
        attribute = known.get(name)
        if attribute is not None:
            settled[name] = check(definition, attribute, value)
        elif name.startswith("_"):
            settled[name] = value
        else:
            raise ValueError(
                f"{definition.name} Op has no attr {name!r}; it has {', '.join(known) or 'none'}"
            )
    if len(settled) < len(known) or any(name not in settled for name in known):
        missing = [name for name in known if name not in settled]
        if missing:
            raise ValueError(
                f"{definition.name} Op is missing attr {', '.join(map(repr, missing))}: it has no "
                "default and does not follow from the inputs"
            )
    return settled


def check(definition: OpDef, attribute: Attribute, value: Any) -> Any:
    """Return one attribute, decoded and checked."""
    kind = attribute.kind
    if kind.startswith("list("):
        if not isinstance(value, list | tuple):
            raise _wrong_kind(definition, attribute, value)
        reader, many = _READERS[kind[5:-1]], True
    else:
        reader, many = _READERS[kind], False
    try:
        decoded = [reader(each) for each in value] if many else reader(value)
    except (TypeError, ValueError) as error:
        raise _wrong_kind(definition, attribute, value, error) from error
    if attribute.allowed:
        for each in decoded if many else (decoded,):
            if each not in attribute.allowed:
                raise _not_allowed(definition, attribute, each)
    if attribute.minimum is not None:
        _check_minimum(definition, attribute, decoded)
    return decoded


def _wrong_kind(
    definition: OpDef, attribute: Attribute, value: Any, error: Exception | None = None
) -> TypeError:
    reason = "" if error is None else f": {error}"
    return TypeError(
        f"Expected {attribute.kind} for attr {attribute.name!r} of {definition.name!r} Op, got "
        f"{value!r} of type {type(value).__name__}{reason}"
    )


def _not_allowed(definition: OpDef, attribute: Attribute, value: Any) -> Exception:
    if isinstance(value, DataType):
        names = ", ".join(each.name for each in attribute.allowed)
        return TypeError(
            f"Value passed to parameter {_parameter(definition, attribute.name)!r} of "
            f"{definition.name!r} Op has DataType {value.name} not in list of allowed values: "
            f"{names}"
        )
    return ValueError(
        f"Value for attr {attribute.name!r} of {definition.name!r} Op is {value!r}, not in the "
        f"list of allowed values: {', '.join(map(repr, attribute.allowed))}"
    )


def _parameter(definition: OpDef, attr: str) -> str:
    """Return the first input that has the dtype of a type attribute, or the attribute."""
    for argument in definition.inputs:
        if attr in (argument.type_attr, argument.type_list_attr):
            return argument.name
    return attr


def _check_minimum(definition: OpDef, attribute: Attribute, value: Any) -> None:
    least = attribute.minimum
    assert least is not None
    if isinstance(value, list):
        if len(value) < least:
            raise ValueError(
                f"Attr {attribute.name!r} of {definition.name!r} Op passed list of length "
                f"{len(value)} less than minimum {least}."
            )
    elif value < least:
        raise ValueError(
            f"Attr {attribute.name!r} of {definition.name!r} Op passed {value} less than minimum "
            f"{least}."
        )


# ---- kinds -------------------------------------------------------------------------------------


def _read_float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("required is a number")
    return c_float(float(value)).value  # what a GraphDef holds has 32 bits


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError("required is True or False")
    return bool(value)


def _read_string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError("required is bytes or str")
    return value


def _read_tensor(value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    array = np.asarray(value)
    return TensorValue(as_dtype(array.dtype), array.copy())


def _read_function(value: Any) -> FunctionName:
    if isinstance(value, FunctionName):
        return value
    if not isinstance(value, str):
        raise TypeError("required is a FunctionName or the name of a function")
    return FunctionName(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": index,
    "float": _read_float,
    "bool": _read_bool,
    "string": _read_string,
    "type": as_dtype,
    "shape": as_shape,
    "tensor": _read_tensor,
    "func": _read_function,
}
