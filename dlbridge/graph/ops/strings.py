"""Strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.inference import Inference, merge, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import Shapes, define, one_of
from dlbridge.proto.datatypes import as_dtype, float32
from dlbridge.shape import Dims

__all__ = ["as_string", "decode_raw", "string_join", "string_to_number"]


# ==== op types ====================================================================================


def _string_join(c: Inference) -> Shapes:
    """All that are no scalars have the shape of the result."""
    if all(each._dims == () for each in c.inputs):
        return [()]
    dims: Dims | None = None
    for each in c.inputs:
        if each._dims:
            dims = merge(dims, each._dims, c)
    return [dims]


define(
    'StringJoin(inputs: N * string, *, N: int >= 0, separator: string = "") -> output: string',
    shape=_string_join,
)


define(
    "AsString(input: T, *, T: {float32, float64, int32, uint8, int16, int8, int64, bfloat16, "
    "uint16, float16, uint32, uint64, complex64, complex128, bool, variant, string}, "
    "precision: int = -1, scientific: bool = false, shortest: bool = false, width: int = -1, "
    'fill: string = "") -> output: string',
    shape=unchanged,
)


def _decode_raw(c: Inference) -> Shapes:
    dims = c.dims(0)
    return [None if dims is None else (*dims, None)]


define(
    "DecodeRaw(bytes: string, *, out_type: {float16, float32, float64, int32, uint16, uint8, "
    "int16, int8, int64, complex64, complex128, bool, bfloat16}, little_endian: bool = true) "
    "-> output: out_type",
    shape=_decode_raw,
)


define(
    "StringToNumber(string_tensor: string, *, out_type: {float32, float64, int32, int64, uint32, "
    "uint64} = float32) -> output: out_type",
    shape=unchanged,
)


# ==== functions ===================================================================================


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """Return strings joined element by element; scalars are repeated.

    Args:
        inputs: string tensors, of one shape or scalars.
        separator: what comes between.
        name: of the operation.
    """
    return apply("StringJoin", (inputs,), {"separator": separator.encode()}, name).outputs[0]


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Return each element as text.

    Args:
        input: numbers, booleans or strings.
        precision: digits after the point; -1 is as many as C's printf gives.
        scientific: with an exponent.
        shortest: whichever of the two forms is shorter.
        width: of the field; -1 is as wide as the text.
        fill: a flag of printf for the field: "", " ", "+", "-", "0" or "#".
        name: of the operation.
    """
    attrs = {
        "precision": precision,
        "scientific": scientific,
        "shortest": shortest,
        "width": width,
        "fill": fill.encode(),
    }
    return apply("AsString", (input,), attrs, name).outputs[0]


def decode_raw(
    input_bytes: Any = None,
    out_type: object = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    """Return the bytes of strings as numbers, along a new last axis.

    Args:
        input_bytes: strings of one length, a multiple of the size of `out_type`.
        out_type: the dtype of the numbers.
        little_endian: the order of the bytes of each.
        name: of the operation.
        bytes: the older name of `input_bytes`.
    """
    value = one_of("decode_raw", input_bytes=input_bytes, bytes=bytes)
    attrs = {"out_type": as_dtype(out_type), "little_endian": little_endian}
    return apply("DecodeRaw", (value,), attrs, name).outputs[0]


def string_to_number(
    string_tensor: Any = None,
    out_type: object = float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Return numbers that stand in strings.

    Args:
        string_tensor: strings.
        out_type: the dtype of the numbers.
        name: of the operation.
        input: the newer name of `string_tensor`.
    """
    value = one_of("string_to_number", string_tensor=string_tensor, input=input)
    attrs = {"out_type": as_dtype(out_type)}
    return apply("StringToNumber", (value,), attrs, name).outputs[0]
