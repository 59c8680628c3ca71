"""OpDefs as messages, as TensorFlow's own registry has them."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.opdef import MISSING, Argument, Attribute, OpDef
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr

_FLAGS = ("is_stateful", "is_commutative", "is_aggregate", "allows_uninitialized_input")


def to_message(definition: OpDef) -> Any:
    """Return a new OpDef message; descriptions are left out."""
    message = messages.OpDef(name=definition.name)
    for argument in definition.inputs:
        _write_argument(argument, message.input_arg.add())
    for argument in definition.outputs:
        _write_argument(argument, message.output_arg.add())
    for attribute in definition.attributes.values():
        _write_attribute(attribute, message.attr.add())
    for flag in _FLAGS:
        if getattr(definition, flag):
            setattr(message, flag, True)
    return message


def _write_argument(argument: Argument, message: Any) -> None:
    message.name = argument.name
    if argument.type is not None:
        message.type = argument.type.number
    for field in ("type_attr", "number_attr", "type_list_attr"):
        value = getattr(argument, field)
        if value is not None:
            setattr(message, field, value)
    if argument.is_ref:
        message.is_ref = True


def _write_attribute(attribute: Attribute, message: Any) -> None:
    message.name = attribute.name
    message.type = attribute.kind
    if attribute.default is not MISSING:
        write_attr(attribute.default, message.default_value)
    if attribute.minimum is not None:
        message.has_minimum = True
        message.minimum = attribute.minimum
    if attribute.allowed:
        write_attr(list(attribute.allowed), message.allowed_values)
