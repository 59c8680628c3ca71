"""Shared by the declarations of several families: sets of dtypes in TensorFlow's order, aliases."""

from __future__ import annotations

from dlbridge.shape import Dims

Shapes = list[Dims | None]
Dim = int | None

FLOAT = "{bfloat16, float16, float32, float64}"
HALF_FIRST = "{float16, bfloat16, float32, float64}"
FLOAT_COMPLEX = "{bfloat16, float16, float32, float64, complex64, complex128}"
SIGNED = "{bfloat16, float16, float32, float64, int8, int16, int32, int64}"
SIGNED_COMPLEX = (
    "{bfloat16, float16, float32, float64, int8, int16, int32, int64, complex64, complex128}"
)
INTEGER = "{int8, int16, int32, int64, uint8, uint16, uint32, uint64}"
REAL = (
    "{float32, float64, int32, uint8, int16, int8, int64, bfloat16, uint16, float16, uint32, "
    "uint64}"
)
REAL_QUANTIZED = REAL[:-1] + ", qint8, quint8, qint32, qint16, quint16}"
NUMBER = (
    "{float32, float64, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, qint16, quint16, uint16, complex128, float16, uint32, uint64}"
)
DIVISIBLE = (
    "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, uint32, uint64, "
    "int64, complex64, complex128}"
)
COMPLEX = "{complex64, complex128} = complex64"
INDEX = "{int32, int64}"
DECOMPOSABLE = "{float64, float32, float16, complex64, complex128}"
