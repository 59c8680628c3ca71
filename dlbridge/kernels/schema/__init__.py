"""Schemas of kernels: the notation, the checks of a call, the forms that others read."""

from __future__ import annotations

from dlbridge.kernels.schema.bind import negative, refusal, refuse_scalar, type_name, unfit
from dlbridge.kernels.schema.model import (
    Schema,
    cotangent_name,
    encode_cost,
    encode_expression,
)
from dlbridge.kernels.schema.parse import parse_expression
from dlbridge.kernels.schema.parts import (
    DECIDE,
    LIST_KINDS,
    MISSING,
    SETS,
    Arguments,
    Bindings,
    Described,
    Dim,
    DTypeSet,
    Parameter,
    Part,
    Result,
    described,
    dtype_key,
    is_plain,
    join_parts,
    same_shape,
    short_name,
    write_list,
)

__all__ = [
    "DECIDE",
    "LIST_KINDS",
    "MISSING",
    "SETS",
    "Arguments",
    "Bindings",
    "DTypeSet",
    "Described",
    "Dim",
    "Parameter",
    "Part",
    "Result",
    "Schema",
    "cotangent_name",
    "described",
    "dtype_key",
    "encode_cost",
    "encode_expression",
    "is_plain",
    "join_parts",
    "negative",
    "parse_expression",
    "refusal",
    "refuse_scalar",
    "same_shape",
    "short_name",
    "type_name",
    "unfit",
    "write_list",
]
