"""C functions of bare pointers and sizes as targets: how the core calls them without Python.

What their parameters are given is said by their C signature, see `raw`. Functions of lists, texts
and dtypes are called by Python, as are those of more parameters than the core has room for, and
all on processors whose calling convention it does not know.
"""

from __future__ import annotations

from typing import Any

from dlbridge._core import ffi, native
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.kinds.cuda_launch import Slot, Values
from dlbridge.kernels.schema import Schema, join_parts
from dlbridge.signals import not_from_handler

_KINDS = {"int": "i", "bool": "i", "float": "f"}  # of scalars


def target(text: str, schema: Schema | None) -> native.CCall | None:
    """Return how the core calls a function with this C signature; None if Python has to.

    Raises:
        ArgumentError: the text is no C signature, or does not fit the schema.
    """
    if schema is None:
        return None
    returned, parameters = raw.read_signature(schema, text)
    status = ffi.typeof(returned)
    has_lists = any(part.many is not None for part in join_parts(schema.tensors, schema.results))
    if has_lists or not (status.kind == "void" or raw.is_integer(status)):
        return None
    values = Values(schema)
    slots = []
    for parameter in parameters:
        slot = _slot(schema, values, parameter)
        if slot is None:
            return None
        slots.append(slot)
    size = 0 if status.kind == "void" else ffi.sizeof(status)
    try:
        return native.CCall(tuple(values.rows), tuple(slots), size, size > 0 and _is_signed(status))
    except not_from_handler(NotImplementedError):
        return None


def _slot(schema: Schema, values: Values, parameter: raw.CParameter) -> Slot | None:
    name, kind = parameter.name, parameter.type
    size = ffi.sizeof(kind)
    for place, part in enumerate(join_parts(schema.tensors, schema.results)):
        if part.name == name:
            return name, "t", place, size, False, 0
    for index, scalar in enumerate(schema.scalars):
        if scalar.name == name:
            is_narrow = kind is ffi.typeof("bool") and scalar.kind != "bool"
            if scalar.kind not in _KINDS or size > 8 or is_narrow:
                return None
            return name, _KINDS[scalar.kind], index, size, _is_signed(kind), 0
    if name == "stream":
        return name, "p", 0, size, False, 0
    if name in schema.names or name in schema.packs:
        return name, "v", values.number(name, "C signature"), size, _is_signed(kind), 0
    return None  # a length


def _is_signed(kind: Any) -> bool:
    return raw.is_integer(kind) and raw.is_signed(kind)
