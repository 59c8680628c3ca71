"""Element-wise functions of one operand, conversions and bits: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.functions.math_support import as_tensor, binary, result, scope, unary
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import (
    DataType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
)

__all__ = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "bitcast", "cast", "ceil",
    "conj", "cos", "cosh", "digamma", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "imag",
    "is_finite", "is_inf", "is_nan", "lgamma", "log", "log1p", "ndtri", "negative", "real",
    "reciprocal", "rint", "round", "rsqrt", "saturate_cast", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "square", "tan", "tanh", "to_bfloat16", "to_complex64", "to_complex128", "to_double",
    "to_float", "to_int32", "to_int64",
]  # fmt: skip

negative = unary("Neg", "Return -x.", "negative")
sign = unary("Sign", "Return -1, 0 or 1; of a complex number, its direction.")
square = unary("Square", "Return x².")
sqrt = unary("Sqrt", "Return the root of x.")
rsqrt = unary("Rsqrt", "Return the reciprocal of the root of x.")
reciprocal = unary("Reciprocal", "Return 1 / x.")
exp = unary("Exp", "Return e to the power of x.")
expm1 = unary("Expm1", "Return e to the power of x, less 1, also for x near 0.")
log = unary("Log", "Return the natural logarithm.")
log1p = unary("Log1p", "Return the natural logarithm of 1 + x, also for x near 0.")
sin = unary("Sin", "Return the sine of x radians.")
cos = unary("Cos", "Return the cosine of x radians.")
tan = unary("Tan", "Return the tangent of x radians.")
asin = unary("Asin", "Return the angle, in radians, of a sine.")
acos = unary("Acos", "Return the angle, in radians, of a cosine.")
atan = unary("Atan", "Return the angle, in radians, of a tangent.")
sinh = unary("Sinh", "Return the hyperbolic sine.")
cosh = unary("Cosh", "Return the hyperbolic cosine.")
tanh = unary("Tanh", "Return the hyperbolic tangent.")
asinh = unary("Asinh", "Return the inverse hyperbolic sine.")
acosh = unary("Acosh", "Return the inverse hyperbolic cosine.")
atanh = unary("Atanh", "Return the inverse hyperbolic tangent.")
sigmoid = unary("Sigmoid", "Return 1 / (1 + exp(-x)).")
erf = unary("Erf", "Return the error function.")
erfc = unary("Erfc", "Return 1 less the error function.")
lgamma = unary("Lgamma", "Return the logarithm of the absolute value of the gamma function.")
digamma = unary("Digamma", "Return the derivative of the logarithm of the gamma function.")
floor = unary("Floor", "Return the greatest integer that is not above x.")
ceil = unary("Ceil", "Return the least integer that is not below x.")
rint = unary("Rint", "Return the nearest integer, the even one of two.")
is_nan = unary("IsNan", "Return whether x is NaN.", "is_nan")
is_inf = unary("IsInf", "Return whether x is infinite.", "is_inf")
is_finite = unary("IsFinite", "Return whether x is neither infinite nor NaN.", "is_finite")
bitwise_and = binary("BitwiseAnd", "Return the bits set in both.", "bitwise_and")
bitwise_or = binary("BitwiseOr", "Return the bits set in either.", "bitwise_or")
bitwise_xor = binary("BitwiseXor", "Return the bits set in one of both.", "bitwise_xor")
left_shift = binary("LeftShift", "Return x with its bits moved up by y.", "left_shift")
right_shift = binary("RightShift", "Return x with its bits moved down by y.", "right_shift")
invert = unary("Invert", "Return x with all bits changed.")
population_count = unary("PopulationCount", "Return the number of bits set.", "population_count")


def erfinv(x: Any, name: str | None = None) -> Tensor:
    """Return the number whose error function is x."""
    with scope(name, "erfinv", (x,)):
        return result("Erfinv", (x,))


def ndtri(x: Any, name: str | None = None) -> Tensor:
    """Return the quantile of the standard normal distribution."""
    with scope(name, "ndtri", (x,)):
        return result("Ndtri", (x,))


def abs(x: Any, name: str | None = None) -> Tensor:
    """Return the absolute value, of a complex number as a real one."""
    with scope(name, "Abs", (x,)) as full:
        x = as_tensor(x, None, "x")
        if x.dtype.is_complex:
            return result("ComplexAbs", (x,), {"Tout": x.dtype.base_dtype.real_dtype}, full)
        return result("Abs", (x,), None, full)


def round(x: Any, name: str | None = None) -> Tensor:
    """Return the nearest integer, the even one of two; integers are returned as they are."""
    x = as_tensor(x, None, "x")
    return x if x.dtype.is_integer else result("Round", (x,), None, name)


def _part(op_type: str, input: Any, name: str | None) -> Tensor:
    with scope(name, op_type, (input,)) as full:
        x = as_tensor(input, None, "input")
        return result(op_type, (x,), {"Tout": x.dtype.base_dtype.real_dtype}, full)


def real(input: Any, name: str | None = None) -> Tensor:
    """Return the real part; a real tensor is returned as it is."""
    x = as_tensor(input, None, "input")
    return _part("Real", x, name) if x.dtype.is_complex else x


def imag(input: Any, name: str | None = None) -> Tensor:
    """Return the imaginary part, zeros of a real tensor."""
    x = as_tensor(input, None, "input")
    return _part("Imag", x, name) if x.dtype.is_complex else result("ZerosLike", (x,), None, name)


def angle(input: Any, name: str | None = None) -> Tensor:
    """Return the argument in radians; π of a negative real number, 0 of another."""
    x = as_tensor(input, None, "input")
    if x.dtype.is_complex:
        return _part("Angle", x, name)
    with scope(name, "Angle", (x,)) as full:
        zeros = result("ZerosLike", (x,))
        half_turn = result("AddV2", (zeros, 3.141592653589793))
        return result("SelectV2", (result("Less", (x, zeros)), half_turn, zeros), None, full)


def conj(x: Any, name: str | None = None) -> Tensor:
    """Return the complex conjugate; a real tensor is returned as it is."""
    x = as_tensor(x, None, "x")
    return result("Conj", (x,), None, name) if x.dtype.is_complex else x


# ---- conversions -------------------------------------------------------------------------------


def cast(x: Any, dtype: object, name: str | None = None) -> Tensor:
    """Return x as another dtype.

    Floating numbers lose what is behind the point; numbers beyond the range of int32 and int64
    become the least integer, those beyond other ranges have no defined value. A tensor that has
    the dtype is returned as it is.
    """
    kind = as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype is kind:
        return x
    with scope(name, "Cast", (x,)) as full:
        tensor = as_tensor(x, None, "x")
        if tensor.dtype.base_dtype is kind:
            return tensor
        return result("Cast", (tensor,), {"DstT": kind}, full)


def saturate_cast(value: Any, dtype: object, name: str | None = None) -> Tensor:
    """Return a tensor as another dtype; what is beyond its range becomes its nearest bound."""
    kind = as_dtype(dtype)
    with scope(name, "saturate_cast", (value,)) as full:
        value = as_tensor(value, None, "value")
        source = value.dtype.base_dtype
        low = max(source.min, _inner(kind, source, "min"))
        high = min(source.max, _inner(kind, source, "max"))
        bounds = (as_tensor(low, source), as_tensor(high, source))
        clamped = result("ClipByValue", (value, *bounds), None, "clamp")
        return result("Cast", (clamped,), {"DstT": kind}, full)


def _inner(kind: DataType, source: DataType, which: str) -> Any:
    """Return a bound of `kind` as a number that `source` has, rounded towards zero."""
    import numpy as np

    bound = getattr(kind, which)
    if not (source.is_floating and kind.is_integer):
        return bound
    assert source.numpy is not None
    rounded = np.asarray(bound).astype(source.numpy)[()]
    if np.isfinite(rounded) and np.abs(int(rounded)) > np.abs(int(bound)):
        rounded = np.nextafter(rounded, source.numpy.type(0))
    return rounded


def bitcast(input: Any, type: object, name: str | None = None) -> Tensor:
    """Return the same bytes as another dtype; a narrower one adds a last dimension."""
    return result("Bitcast", (input,), {"type": as_dtype(type)}, name)


def _to(kind: DataType, default: str) -> Any:
    def to(x: Any, name: str = default) -> Tensor:
        return cast(x, kind, name)

    to.__doc__ = f"Return x as {kind.name}; see `cast`."
    return to


to_float = _to(float32, "ToFloat")
to_double = _to(float64, "ToDouble")
to_int32 = _to(int32, "ToInt32")
to_int64 = _to(int64, "ToInt64")
to_bfloat16 = _to(bfloat16, "ToBFloat16")
to_complex64 = _to(complex64, "ToComplex64")
to_complex128 = _to(complex128, "ToComplex128")
