"""Schemas of kernels: the notation, the checks of a call, the forms that others read."""

from __future__ import annotations

from dlbridge.kernels.schema.bind import negative, outside, refusal, refuse_scalar, type_name, unfit
from dlbridge.kernels.schema.flat import Flat, element, flatten, gather, lengths_of, spread
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
    "Flat",
    "Parameter",
    "Part",
    "Result",
    "Schema",
    "cotangent_name",
    "described",
    "dtype_key",
    "element",
    "encode_cost",
    "encode_expression",
    "flatten",
    "gather",
    "is_plain",
    "join_parts",
    "lengths_of",
    "negative",
    "outside",
    "parse_expression",
    "refusal",
    "refuse_scalar",
    "same_shape",
    "short_name",
    "spread",
    "type_name",
    "unfit",
    "write_list",
]
