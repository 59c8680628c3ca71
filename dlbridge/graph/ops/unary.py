"""Element-wise functions of one operand, and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.inference import Inference, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import (
    COMPLEX,
    FLOAT,
    FLOAT_COMPLEX,
    SIGNED,
    SIGNED_COMPLEX,
    Shapes,
    as_tensor,
    define,
    result,
    scope,
    unary,
)
from dlbridge.graph.ops.sparse_tensor import IndexedSlices, SparseTensor
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
    "sqrt", "square", "tan", "tanh", "to_bfloat16", "to_complex128", "to_complex64", "to_double",
    "to_float", "to_int32", "to_int64",
]  # fmt: skip


# ==== op types ====================================================================================


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


# ==== functions ===================================================================================


# Sentences about the dtypes that functions take.
_FLOAT = "Of floating numbers, in their dtype."
_COMPLEX = "Of floating and complex numbers, in their dtype."
_SIGNED = "Of floating numbers, signed integers and complex numbers, in their dtype."

negative = unary(
    "Neg",
    "Return -x.",
    "negative",
    f"{_SIGNED} The least integer stays the same.",
    keeps_zero=True,
)
sign = unary(
    "Sign",
    "Return -1, 0 or 1; of a complex number, its direction.",
    details=f"{_SIGNED} NaN stays NaN. The direction is x / |x|, and 0 of 0.",
    keeps_zero=True,
)
square = unary(
    "Square",
    "Return x².",
    details="Of all numbers, in their dtype; that of complex numbers is x times x, also complex.",
    keeps_zero=True,
)
sqrt = unary(
    "Sqrt",
    "Return the root of x.",
    details=f"{_COMPLEX} Negative floating numbers give NaN.",
    keeps_zero=True,
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
    keeps_zero=True,
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
    keeps_zero=True,
)
asin = unary(
    "Asin",
    "Return the angle, in radians from -π/2 to π/2, of a sine.",
    details=f"{_COMPLEX} Floating numbers beyond [-1, 1] give NaN.",
    keeps_zero=True,
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
    keeps_zero=True,
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
    keeps_zero=True,
)
asinh = unary(
    "Asinh",
    "Return the inverse hyperbolic sine.",
    details=_COMPLEX,
    keeps_zero=True,
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
    keeps_zero=True,
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
    keeps_zero=True,
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
    details=f"{_FLOAT} `round` also takes integers.",
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
    return result("Reciprocal", (x,), name)


def erfinv(x: Any, name: str | None = None) -> Tensor:
    """Return the number whose error function is x.

    Of floating numbers, in their dtype and shape: -1 and 1 give infinities, values beyond give
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

    Of floating numbers, in their dtype and shape: 0 and 1 give infinities, values beyond give
    NaN. `name` is that of a scope. TypeError: another dtype.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.math.ndtri([0.0, 0.5, 1.0]))
        array([-inf,   0.,  inf], dtype=float32)
    """
    with scope(name, "ndtri", (x,)):
        return result("Ndtri", (x,))


def abs(x: Any, name: str | None = None) -> Any:
    """Return the absolute value, of complex numbers as real ones.

    Args:
        x: a Tensor or SparseTensor of floating numbers, signed integers or complex numbers, or
            what becomes a Tensor.
        name: of the operation, "Abs" by default.

    Returns:
        Tensor or SparseTensor: of the shape and dtype of x; float32 of complex64, float64 of
        complex128. The
        least integer stays negative.

    Raises:
        TypeError: another dtype, such as unsigned integers.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.abs([3 + 4j, -2]))
        array([5., 2.])
    """
    if isinstance(x, SparseTensor):
        return x.with_values(abs(x.values, name))
    with scope(name, "Abs", (x,)) as full:
        x = as_tensor(x, None, "x")
        if x.dtype.is_complex:
            return result("ComplexAbs", (x,), full, Tout=x.dtype.base_dtype.real_dtype)
        return result("Abs", (x,), full)


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
    return x if x.dtype.is_integer else result("Round", (x,), name)


def cast(x: Any, dtype: object, name: str | None = None) -> Any:
    """Return x as another dtype, in its shape.

    Floating numbers are truncated toward zero, complex ones lose their imaginary part; all but 0
    is true. Numbers beyond the range of int32 and int64 become the least integer, as NaN does;
    those beyond other ranges have no defined value, and `saturate_cast` bounds them.

    Args:
        x: a Tensor, SparseTensor or IndexedSlices of numbers or bool, or what becomes a Tensor. A
            tensor that has the dtype already is returned as it is.
        dtype: what `as_dtype` takes.
        name: of the operation, "Cast" by default.

    Raises:
        TypeError: no dtype.

    Strings end a run with UnimplementedError; `string_to_number` converts them.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.cast([1.9, -1.9, 1e20], tf.int32))
        array([          1,          -1, -2147483648], dtype=int32)
    """
    kind = as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype is kind:
        return x
    if isinstance(x, SparseTensor | IndexedSlices):
        return x.with_values(cast(x.values, kind, name))
    with scope(name, "Cast", (x,)) as full:
        tensor = as_tensor(x, None, "x")
        if tensor.dtype.base_dtype is kind:
            return tensor
        return result("Cast", (tensor,), full, DstT=kind)


def saturate_cast(value: Any, dtype: object, name: str | None = None) -> Tensor:
    """Return a tensor as another dtype; values beyond its range are clamped to it.

    Args:
        value: a Tensor of floating numbers or integers, or what becomes one. NaN has no defined
            value as an integer.
        dtype: of floating numbers or integers.
        name: of the scope.

    Raises:
        TypeError: complex numbers, bool or strings, which have no bounds.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.saturate_cast([300, -5, 7], tf.uint8))
        array([255,   0,   7], dtype=uint8)
    """
    kind = as_dtype(dtype)
    with scope(name, "saturate_cast", (value,)) as full:
        value = as_tensor(value, None, "value")
        source = value.dtype.base_dtype
        if not (source.is_integer or source.is_floating):
            raise TypeError(f"value must be of integers or floating numbers, got {source!r}")
        low = max(source.min, _inner(kind, source, "min"))
        high = min(source.max, _inner(kind, source, "max"))
        bounds = (as_tensor(low, source), as_tensor(high, source))
        clamped = result("ClipByValue", (value, *bounds), "clamp")
        return result("Cast", (clamped,), full, DstT=kind)


def _inner(kind: DataType, source: DataType, which: str) -> Any:
    """Return a bound of `kind` as a number that `source` has, rounded towards zero."""
    bound = getattr(kind, which)
    if not (source.is_floating and kind.is_integer):
        return bound
    assert source.numpy is not None
    rounded = np.asarray(bound).astype(source.numpy)[()]
    if np.isfinite(rounded) and np.abs(int(rounded)) > np.abs(int(bound)):
        rounded = np.nextafter(rounded, source.numpy.type(0))
    return rounded


def bitcast(input: Any, type: object, name: str | None = None) -> Tensor:
    """Return the same bytes as another dtype.

    Args:
        input: a Tensor of numbers, or what becomes one.
        type: dtype of numbers. A narrower one adds a last dimension; a wider one takes away the
            last dimension, whose extent must be the ratio of their sizes.
        name: of the operation, "Bitcast" by default.

    Raises:
        ValueError: that extent is another.
        TypeError: bool or strings.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.bitcast(tf.constant([1.0, -2.0]), tf.uint16))
        array([[    0, 16256],
               [    0, 49152]], dtype=uint16)
    """
    return result("Bitcast", (input,), name, type=as_dtype(type))


def _to(function: str, kind: DataType, default: str) -> Any:
    def to(x: Any, name: str = default) -> Any:
        return cast(x, kind, name)

    to.__name__ = to.__qualname__ = function
    to.__doc__ = f"Return x as {kind.name}; see `cast`."
    return to


to_float = _to("to_float", float32, "ToFloat")


to_double = _to("to_double", float64, "ToDouble")


to_int32 = _to("to_int32", int32, "ToInt32")


to_int64 = _to("to_int64", int64, "ToInt64")


to_bfloat16 = _to("to_bfloat16", bfloat16, "ToBFloat16")


to_complex64 = _to("to_complex64", complex64, "ToComplex64")


to_complex128 = _to("to_complex128", complex128, "ToComplex128")


def _part(op_type: str, input: Any, name: str | None) -> Tensor:
    with scope(name, op_type, (input,)) as full:
        x = as_tensor(input, None, "input")
        return result(op_type, (x,), full, Tout=x.dtype.base_dtype.real_dtype)


def real(input: Any, name: str | None = None) -> Tensor:
    """Return the real part: float32 of complex64, float64 of complex128.

    Args:
        input: a Tensor, or what becomes one; a tensor that is not complex is returned as it is.
        name: of the operation, "Real" by default.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.real([1 + 2j]), tf.imag([1 + 2j]), tf.imag([1.0])])
        [array([1.]), array([2.]), array([0.], dtype=float32)]
    """
    x = as_tensor(input, None, "input")
    return _part("Real", x, name) if x.dtype.is_complex else x


def imag(input: Any, name: str | None = None) -> Tensor:
    """Return the imaginary part, zeros of a real tensor; dtypes and an example as of `real`."""
    x = as_tensor(input, None, "input")
    return _part("Imag", x, name) if x.dtype.is_complex else result("ZerosLike", (x,), name)


def angle(input: Any, name: str | None = None) -> Tensor:
    """Return the argument in radians, from -π to π; π of a negative real number, 0 of another.

    Args:
        input: a Tensor of complex or floating numbers, or what becomes one.
        name: of the operation, "Angle" by default.

    Returns:
        Tensor: of the shape of `input`: float32 of complex64, float64 of complex128, and of
        floating numbers their own dtype.

    Raises:
        TypeError: integers; cast them first.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.angle([1j, -1.0]))
        array([1.57079633, 3.14159265])
    """
    x = as_tensor(input, None, "input")
    if x.dtype.is_complex:
        return _part("Angle", x, name)
    with scope(name, "Angle", (x,)) as full:
        zeros = result("ZerosLike", (x,))
        half_turn = result("AddV2", (zeros, 3.141592653589793))
        return result("SelectV2", (result("Less", (x, zeros)), half_turn, zeros), full)


def conj(x: Any, name: str | None = None) -> Tensor:
    """Return the complex conjugate, in the dtype of x; a real tensor is returned as it is.

    Raises:
        TypeError: text or bools.
    """
    x = as_tensor(x, None, "x")
    if x.dtype.kind in "sb":
        raise TypeError(f"argument 'x': Expected numeric or variant tensor, got dtype {x.dtype!r}.")
    return result("Conj", (x,), name) if x.dtype.is_complex else x
