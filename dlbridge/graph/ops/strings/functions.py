"""Strings: what users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor
from dlbridge.proto.datatypes import as_dtype, float32

__all__ = [
    "as_string",
    "decode_raw",
    "string_join",
    "string_to_number",
]


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
    value = bytes if input_bytes is None else input_bytes
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
    value = input if string_tensor is None else string_tensor
    attrs = {"out_type": as_dtype(out_type)}
    return apply("StringToNumber", (value,), attrs, name).outputs[0]
