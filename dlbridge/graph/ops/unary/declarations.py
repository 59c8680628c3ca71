"""Element-wise functions of one operand, and conversions of dtypes."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import (
    COMPLEX,
    FLOAT,
    FLOAT_COMPLEX,
    SIGNED,
    SIGNED_COMPLEX,
    Shapes,
)

# Dtypes -> the op types whose result has the dtype of the operand.
_OF_ONE = {
    FLOAT_COMPLEX: "Sqrt Rsqrt Exp Expm1 Log Log1p Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh "
    "Acosh Atanh Sigmoid",
    SIGNED_COMPLEX: "Neg Sign Reciprocal Inv Round",
    SIGNED: "Abs",
    FLOAT: "Erf Erfc Erfinv Ndtri Lgamma Digamma Floor Ceil Rint",
    "{bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, "
    "uint64, complex64, complex128}": "Square",
}
_BITS = (
    "{bfloat16, float16, float32, float64, int64, int32, uint8, uint16, uint32, uint64, int8, "
    "int16, complex64, complex128, qint8, quint8, qint16, quint16, qint32}"
)
_PARTS = {"Real": "input", "Imag": "input", "Angle": "input", "ComplexAbs": "x"}


def _bitcast(c: Inference) -> Shapes:
    """A narrower type adds a last dimension, a wider one takes it away."""
    dims = c.dims(0)
    if dims is None:
        return [None]
    source, target = c.attrs["T"].size, c.attrs["type"].size
    if source == target:
        return [dims]
    if source > target:
        return [(*dims, source // target)]
    ratio = target // source
    if not dims or dims[-1] not in (None, ratio):
        last = dims[-1] if dims else "no dimension"
        raise c.error(
            f"Cannot bitcast from {c.attrs['T'].name} to {c.attrs['type'].name}: the last "
            f"dimension must be {ratio}, but is {last}"
        )
    return [dims[:-1]]


for _types, _names in _OF_ONE.items():
    for _name in _names.split():
        define(f"{_name}(x: T, *, T: {_types}) -> y: T", shape=unchanged)
for _name in ("IsNan", "IsInf", "IsFinite"):
    define(f"{_name}(x: T, *, T: {FLOAT}) -> y: bool", shape=unchanged)
for _name, _argument in _PARTS.items():
    _result = "y" if _argument == "x" else "output"
    define(
        f"{_name}({_argument}: T, *, T: {COMPLEX}, Tout: {{float32, float64}} = float32) "
        f"-> {_result}: Tout",
        shape=unchanged,
    )
define(
    "Conj(input: T, *, T: {complex64, complex128, variant} = complex64) -> output: T",
    shape=unchanged,
)
define(
    "Cast(x: SrcT, *, SrcT: type, DstT: type, Truncate: bool = false) -> y: DstT", shape=unchanged
)
define(f"Bitcast(input: T, *, T: {_BITS}, type: {_BITS}) -> output: type", shape=_bitcast)
