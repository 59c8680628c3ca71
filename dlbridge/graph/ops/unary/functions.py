"""Element-wise functions of one operand: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_tensor, result, scope, unary

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos",
    "cosh", "digamma", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "is_finite",
    "is_inf", "is_nan", "lgamma", "log", "log1p", "ndtri", "negative", "reciprocal",
    "rint", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
]  # fmt: skip

# What functions take.
_FLOAT = "Of floating numbers, in their dtype."
_COMPLEX = "Of floating and complex numbers, in their dtype."
_SIGNED = "Of floating numbers, signed integers and complex numbers, in their dtype."

negative = unary(
    "Neg",
    "Return -x.",
    "negative",
    f"{_SIGNED} The least integer stays what it is.",
)
sign = unary(
    "Sign",
    "Return -1, 0 or 1; of a complex number, its direction.",
    details=f"{_SIGNED} NaN stays NaN. The direction is x / |x|, and 0 of 0.",
)
square = unary(
    "Square",
    "Return x².",
    details="Of all numbers, in their dtype; that of complex numbers is x times x, also complex.",
)
sqrt = unary(
    "Sqrt",
    "Return the root of x.",
    details=f"{_COMPLEX} Negative floating numbers give NaN.",
)
rsqrt = unary(
    "Rsqrt",
    "Return the reciprocal of the root of x.",
    details=f"{_COMPLEX} 0 gives infinity, negative floating numbers NaN.",
)
exp = unary(
    "Exp",
    "Return e to the power of x.",
    details=f"{_COMPLEX} What is too large is infinity.",
)
expm1 = unary(
    "Expm1",
    "Return e to the power of x, less 1, exact also for x near 0.",
    details=_COMPLEX,
)
log = unary(
    "Log",
    "Return the natural logarithm.",
    details=f"{_COMPLEX} 0 gives -infinity, negative floating numbers NaN.",
)
log1p = unary(
    "Log1p",
    "Return the natural logarithm of 1 + x, exact also for x near 0.",
    details=f"{_COMPLEX} -1 gives -infinity, lesser floating numbers NaN.",
)
sin = unary(
    "Sin",
    "Return the sine of x radians.",
    details=_COMPLEX,
)
cos = unary(
    "Cos",
    "Return the cosine of x radians.",
    details=_COMPLEX,
)
tan = unary(
    "Tan",
    "Return the tangent of x radians.",
    details=_COMPLEX,
)
asin = unary(
    "Asin",
    "Return the angle, in radians from -π/2 to π/2, of a sine.",
    details=f"{_COMPLEX} Floating numbers beyond [-1, 1] give NaN.",
)
acos = unary(
    "Acos",
    "Return the angle, in radians from 0 to π, of a cosine.",
    details=f"{_COMPLEX} Floating numbers beyond [-1, 1] give NaN.",
)
atan = unary(
    "Atan",
    "Return the angle, in radians from -π/2 to π/2, of a tangent.",
    details=f"{_COMPLEX} `atan2` knows the quadrant.",
)
sinh = unary(
    "Sinh",
    "Return the hyperbolic sine.",
    details=_COMPLEX,
)
cosh = unary(
    "Cosh",
    "Return the hyperbolic cosine.",
    details=_COMPLEX,
)
tanh = unary(
    "Tanh",
    "Return the hyperbolic tangent.",
    details=_COMPLEX,
)
asinh = unary(
    "Asinh",
    "Return the inverse hyperbolic sine.",
    details=_COMPLEX,
)
acosh = unary(
    "Acosh",
    "Return the inverse hyperbolic cosine.",
    details=f"{_COMPLEX} Floating numbers below 1 give NaN.",
)
atanh = unary(
    "Atanh",
    "Return the inverse hyperbolic tangent.",
    details=f"{_COMPLEX} Floating numbers beyond [-1, 1] give NaN.",
)
sigmoid = unary(
    "Sigmoid",
    "Return 1 / (1 + exp(-x)).",
    details=f"{_COMPLEX} It is 0 and 1 where exp overflows.",
)
erf = unary(
    "Erf",
    "Return the error function.",
    details=_FLOAT,
)
erfc = unary(
    "Erfc",
    "Return 1 less the error function, exact also where that is near 1.",
    details=_FLOAT,
)
lgamma = unary(
    "Lgamma",
    "Return the logarithm of the absolute value of the gamma function.",
    details=f"{_FLOAT} Its poles 0, -1, -2 … give infinity.",
)
digamma = unary(
    "Digamma",
    "Return the derivative of the logarithm of the gamma function.",
    details=_FLOAT,
)
floor = unary(
    "Floor",
    "Return the greatest integer that is not above x.",
    details=_FLOAT,
)
ceil = unary(
    "Ceil",
    "Return the least integer that is not below x.",
    details=_FLOAT,
)
rint = unary(
    "Rint",
    "Return the nearest integer, the even one of two.",
    details=f"{_FLOAT} `round` takes integers, too.",
)
is_nan = unary(
    "IsNan",
    "Return whether x is NaN.",
    "is_nan",
    "Of floating numbers, as bool.",
)
is_inf = unary(
    "IsInf",
    "Return whether x is infinite, of either sign.",
    "is_inf",
    "Of floating numbers, as bool.",
)
is_finite = unary(
    "IsFinite",
    "Return whether x is neither infinite nor NaN.",
    "is_finite",
    "Of floating numbers, as bool.",
)


def reciprocal(x: Any, name: str | None = None) -> Tensor:
    """Return 1 / x.

    Of floating and complex numbers, in their dtype; 0 gives infinity. Signed integers are taken,
    since the operation knows them, but end a run with UnimplementedError; TypeError for others.
    """
    return result("Reciprocal", (x,), None, name)


def erfinv(x: Any, name: str | None = None) -> Tensor:
    """Return the number whose error function is x.

    Of floating numbers, in their dtype and shape: -1 and 1 give infinities, what is beyond gives
    NaN. `name` is that of a scope. TypeError: another dtype.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.erfinv([0.0, 1.0, 2.0]))
        array([ 0., inf, nan], dtype=float32)
    """
    with scope(name, "erfinv", (x,)):
        return result("Erfinv", (x,))


def ndtri(x: Any, name: str | None = None) -> Tensor:
    """Return the quantile of the standard normal distribution: the number below which x of it lies.

    Of floating numbers, in their dtype and shape: 0 and 1 give infinities, what is beyond gives
    NaN. `name` is that of a scope. TypeError: another dtype.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.math.ndtri([0.0, 0.5, 1.0]))
        array([-inf,   0.,  inf], dtype=float32)
    """
    with scope(name, "ndtri", (x,)):
        return result("Ndtri", (x,))


def abs(x: Any, name: str | None = None) -> Tensor:
    """Return the absolute value, of complex numbers as real ones.

    Args:
        x: a Tensor of floating numbers, signed integers or complex numbers, or what becomes one.
        name: of the operation, "Abs" by default.

    Returns:
        Tensor: of the shape of x and its dtype; float32 of complex64, float64 of complex128. The
        least integer stays negative.

    Raises:
        TypeError: another dtype, such as unsigned integers.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.abs([3 + 4j, -2]))
        array([5., 2.])
    """
    with scope(name, "Abs", (x,)) as full:
        x = as_tensor(x, None, "x")
        if x.dtype.is_complex:
            return result("ComplexAbs", (x,), {"Tout": x.dtype.base_dtype.real_dtype}, full)
        return result("Abs", (x,), None, full)


def round(x: Any, name: str | None = None) -> Tensor:
    """Return the nearest integer, the even one of two, in the dtype of x.

    Of floating numbers; integers are returned as they are, without an operation. TypeError: bool
    and strings.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.round([0.5, 1.5, 2.5, -1.2]))
        array([ 0.,  2.,  2., -1.], dtype=float32)
    """
    x = as_tensor(x, None, "x")
    return x if x.dtype.is_integer else result("Round", (x,), None, name)
