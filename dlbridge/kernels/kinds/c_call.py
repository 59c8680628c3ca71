"""C functions of bare pointers and sizes as targets: how the core calls them without Python.

Their C signature says what their parameters are given, see `raw`. Python calls those with more
parameters than the core has room for, and all of them on processors whose calling convention the
core does not know.
"""

from __future__ import annotations

from dlbridge._core import ffi, native
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.kinds.slots import Values, encode
from dlbridge.kernels.schema import Flat, Schema, join_parts
from dlbridge.signals import not_from_handler


def target(text: str, schema: Schema | None, flat: Flat | None = None) -> native.CCall | None:
    """Return how the core calls a function with this C signature; None if Python has to.

    Args:
        text: the C signature.
        schema: the schema whose names it uses.
        flat: the lengths of the schema's lists and optional results, if it has any.

    Raises:
        ArgumentError: the text is no C signature, or does not fit the schema.
    """
    if schema is None:
        return None
    returned, parameters = raw.read_signature(schema, text)
    status = ffi.typeof(returned)
    place = raw.find_returned(schema, status, parameters)
    has_lists = any(part.many is not None for part in join_parts(schema.tensors, schema.results))
    if has_lists and flat is None:
        return None
    if any(_is_checked_by_python(schema, parameter) for parameter in parameters):
        return None
    values = Values(schema, () if flat is None else (*flat.counts, *flat.results))
    slots = [encode(schema, values, parameter) for parameter in parameters]
    size = 0 if status.kind == "void" else ffi.sizeof(status)
    is_signed = raw.is_integer(status) and raw.is_signed(status)
    result = _READS_STATUS
    if place is not None:
        first, count = values.places[place]
        result = first if count != 0 else _IS_DROPPED
    if place is None and size and not raw.is_integer(status):
        return None
    try:
        return native.CCall(
            tuple(values.rows), tuple(slots), size, is_signed, result, raw.is_float(status)
        )
    except not_from_handler(NotImplementedError):
        return None


_READS_STATUS, _IS_DROPPED = -1, -2  # the result that is returned, for native.CCall


def _is_checked_by_python(schema: Schema, parameter: raw.CParameter) -> bool:
    """Return whether a value needs more than its size: a bool that is an int, a long double."""
    kinds = {scalar.name: scalar.kind for scalar in schema.scalars}
    is_bool = parameter.type is ffi.typeof("bool")
    return ffi.sizeof(parameter.type) > 8 or (is_bool and kinds.get(parameter.name) != "bool")
