"""What TensorFlow's dtypes are, as a table: numbers, names, kinds and NumPy's types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

REFERENCE = 100  # what the number of a reference type has more than that of its base type


class Row(NamedTuple):
    """One dtype of TensorFlow: its number, name, kind and NumPy's name for it."""

    number: int
    name: str
    kind: str
    numpy: Any = None


# Kinds: f floating, i signed, u unsigned, c complex, b bool, q quantised, s string, h handle.
# NumPy's own types are named here; None is a type of ml_dtypes with the same name as ours.
TABLE = (
    Row(1, "float32", "f", np.float32),
    Row(2, "float64", "f", np.float64),
    Row(3, "int32", "i", np.int32),
    Row(4, "uint8", "u", np.uint8),
    Row(5, "int16", "i", np.int16),
    Row(6, "int8", "i", np.int8),
    Row(7, "string", "s", np.object_),
    Row(8, "complex64", "c", np.complex64),
    Row(9, "int64", "i", np.int64),
    Row(10, "bool", "b", np.bool_),
    Row(11, "qint8", "q", np.int8),
    Row(12, "quint8", "q", np.uint8),
    Row(13, "qint32", "q", np.int32),
    Row(14, "bfloat16", "f"),
    Row(15, "qint16", "q", np.int16),
    Row(16, "quint16", "q", np.uint16),
    Row(17, "uint16", "u", np.uint16),
    Row(18, "complex128", "c", np.complex128),
    Row(19, "float16", "f", np.float16),
    Row(20, "resource", "h"),
    Row(21, "variant", "h"),
    Row(22, "uint32", "u", np.uint32),
    Row(23, "uint64", "u", np.uint64),
    Row(24, "float8_e5m2", "f"),
    Row(25, "float8_e4m3fn", "f"),
    Row(26, "float8_e4m3fnuz", "f"),
    Row(27, "float8_e4m3b11fnuz", "f"),
    Row(28, "float8_e5m2fnuz", "f"),
    Row(29, "int4", "i"),
    Row(30, "uint4", "u"),
    Row(31, "int2", "i"),
    Row(32, "uint2", "u"),
    Row(33, "float4_e2m1fn", "f"),
)
# The names of OpDefs and enumerators where they are not ours, in lower case.
WIRE_NAMES = {"float32": "float", "float64": "double", "float16": "half"}
# Kinds whose values have a range, and those of `limits`, which TensorFlow knows for few types.
LIMITS = {
    "float32": (0, 1),
    "float64": (0, 1),
    "bool": (0, True),
    **{f"{sign}int{bits}": None for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
