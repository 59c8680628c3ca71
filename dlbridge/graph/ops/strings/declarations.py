"""Strings: joined, formatted from numbers, parsed into numbers."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, merge, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.shape import Dims


def _string_join(c: Inference) -> Shapes:
    dims: Dims | None = ()
    for each in c.inputs:
        if each._dims is None:
            dims = None
        elif dims == ():
            dims = each._dims
        elif each._dims != () and dims is not None:
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
