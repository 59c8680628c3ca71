"""The dtypes as TensorFlow names them: `tf.float32`, `tf.as_dtype` and so on."""

from __future__ import annotations

from dlbridge.proto.datatypes import DataType as DType
from dlbridge.proto.datatypes import as_dtype as as_dtype
from dlbridge.proto.datatypes import bfloat16 as bfloat16
from dlbridge.proto.datatypes import bool_ as bool  # noqa: A004
from dlbridge.proto.datatypes import complex64 as complex64
from dlbridge.proto.datatypes import complex128 as complex128
from dlbridge.proto.datatypes import double as double
from dlbridge.proto.datatypes import float4_e2m1fn as float4_e2m1fn
from dlbridge.proto.datatypes import float8_e4m3b11fnuz as float8_e4m3b11fnuz
from dlbridge.proto.datatypes import float8_e4m3fn as float8_e4m3fn
from dlbridge.proto.datatypes import float8_e4m3fnuz as float8_e4m3fnuz
from dlbridge.proto.datatypes import float8_e5m2 as float8_e5m2
from dlbridge.proto.datatypes import float8_e5m2fnuz as float8_e5m2fnuz
from dlbridge.proto.datatypes import float16 as float16
from dlbridge.proto.datatypes import float32 as float32
from dlbridge.proto.datatypes import float64 as float64
from dlbridge.proto.datatypes import half as half
from dlbridge.proto.datatypes import int2 as int2
from dlbridge.proto.datatypes import int4 as int4
from dlbridge.proto.datatypes import int8 as int8
from dlbridge.proto.datatypes import int16 as int16
from dlbridge.proto.datatypes import int32 as int32
from dlbridge.proto.datatypes import int64 as int64
from dlbridge.proto.datatypes import qint8 as qint8
from dlbridge.proto.datatypes import qint16 as qint16
from dlbridge.proto.datatypes import qint32 as qint32
from dlbridge.proto.datatypes import quint8 as quint8
from dlbridge.proto.datatypes import quint16 as quint16
from dlbridge.proto.datatypes import resource as resource
from dlbridge.proto.datatypes import string as string
from dlbridge.proto.datatypes import uint2 as uint2
from dlbridge.proto.datatypes import uint4 as uint4
from dlbridge.proto.datatypes import uint8 as uint8
from dlbridge.proto.datatypes import uint16 as uint16
from dlbridge.proto.datatypes import uint32 as uint32
from dlbridge.proto.datatypes import uint64 as uint64
from dlbridge.proto.datatypes import variant as variant

__all__ = [
    "DType",
    "as_dtype",
    "bool",
    "bfloat16",
    "complex64",
    "complex128",
    "double",
    "float4_e2m1fn",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float16",
    "float32",
    "float64",
    "half",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "qint8",
    "qint16",
    "qint32",
    "quint8",
    "quint16",
    "resource",
    "string",
    "uint2",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "variant",
]
