"""Arithmetic of two or more operands, bounds on elements and norms, and the bits of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.core.inference import Inference, broadcast, merge, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.reduce import reduce_sum
from dlbridge.graph.ops.shared import (
    DIVISIBLE,
    FLOAT,
    FLOAT_COMPLEX,
    INTEGER,
    NUMBER,
    Shapes,
    as_list,
    as_tensor,
    binary,
    define,
    result,
    scope,
    unary,
)
from dlbridge.graph.ops.sparse_tensor import IndexedSlices, SparseTensor
from dlbridge.proto.datatypes import (
    DataType,
    as_dtype,
    complex64,
    complex128,
    float32,
    float64,
    string,
)

__all__ = [
    "accumulate_n", "add", "add_n", "atan2", "clip_by_average_norm", "clip_by_global_norm",
    "clip_by_norm", "clip_by_value",
    "complex", "div", "div_no_nan", "divide", "divide_no_nan", "floor_div", "floordiv", "floormod",
    "global_norm", "maximum", "minimum", "mod", "multiply", "multiply_no_nan", "polyval", "pow",
    "realdiv", "scalar_mul", "squared_difference", "subtract", "truediv", "truncatediv",
    "truncatemod", "xdivy", "xlog1py", "xlogy",
]  # fmt: skip


# ==== op types ====================================================================================


# Op type -> the dtypes of both operands and of the result.
_OF_TWO = {
    "Add": "{bfloat16, float16, float32, float64, uint8, int8, int16, int32, int64, complex64, "
    "complex128, string}",
    "AddV2": "{bfloat16, float16, float32, float64, uint8, uint16, uint32, uint64, int8, int16, "
    "int32, int64, complex64, complex128}",
    "Sub": "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, int64, "
    "complex64, complex128, uint32, uint64}",
    "Mul": "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, uint32, "
    "uint64, int64, complex64, complex128}",
    "Div": DIVISIBLE,
    "RealDiv": DIVISIBLE,
    "FloorDiv": DIVISIBLE,
    "TruncateDiv": DIVISIBLE,
    "FloorMod": "{int8, int16, int32, int64, uint8, uint16, uint32, uint64, bfloat16, float16, "
    "float32, float64}",
    "Mod": "{int32, int64, float16, float16, bfloat16, float32, float64}",
    "TruncateMod": "{int32, int64, bfloat16, float16, float32, float64}",
    "DivNoNan": "{float16, float32, bfloat16, float64, complex64, complex128}",
    "MulNoNan": FLOAT_COMPLEX,
    "Pow": "{bfloat16, float32, float16, float64, int8, int16, int32, int64, complex64, "
    "complex128}",
    "Maximum": "{bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, uint32, "
    "int64, uint64}",
    "Minimum": "{bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, uint32, "
    "int64, uint64}",
    "SquaredDifference": "{bfloat16, float16, float32, float64, int32, int64, complex64, "
    "complex128}",
    "Xdivy": "{float16, bfloat16, float32, float64, complex64, complex128}",
    "Xlogy": "{float16, bfloat16, float32, float64, complex64, complex128}",
    "Xlog1py": "{float16, bfloat16, float32, float64, complex64, complex128}",
}
_COMMUTATIVE = {"AddV2", "Mul", "SquaredDifference"}


def _sum(c: Inference) -> Shapes:
    """All operands have one shape, which an attribute may say as well."""
    given = c.attrs.get("shape")
    dims = None if given is None else given.dims
    for i in range(len(c.inputs)):
        dims = merge(dims, c.dims(i), c)
    return [dims]


def _clip(c: Inference) -> Shapes:
    """Bounds are scalars, or have the shape of the clipped tensor."""
    dims = c.dims(0)
    for i in (1, 2):
        if c.dims(i) != ():
            dims = merge(dims, c.dims(i), c) if c.dims(i) is not None else dims
    return [dims]


for _name, _types in _OF_TWO.items():
    define(
        f"{_name}(x: T, y: T, *, T: {_types}) -> z: T",
        shape=broadcast,
        commutative=_name in _COMMUTATIVE,
        aggregate=_name == "AddV2",
    )
define(f"Atan2(y: T, x: T, *, T: {FLOAT}) -> z: T", shape=broadcast)
define("NextAfter(x1: T, x2: T, *, T: {float64, float32} = float32) -> output: T", shape=broadcast)
define(
    "Complex(real: T, imag: T, *, T: {float32, float64} = float32, "
    "Tout: {complex64, complex128} = complex64) -> out: Tout",
    shape=broadcast,
)
define(
    f"AddN(inputs: N * T, *, N: int >= 1, T: {NUMBER[:-1]}, variant}}) -> sum: T",
    shape=_sum,
    commutative=True,
    aggregate=True,
)
define(
    f"AccumulateNV2(inputs: N * T, *, N: int >= 1, T: {NUMBER}, shape: shape) -> sum: T",
    shape=_sum,
    commutative=True,
    aggregate=True,
)
define(
    f"ClipByValue(t: T, clip_value_min: T, clip_value_max: T, *, T: {NUMBER}) -> output: T",
    shape=_clip,
)


# ==== op types: bits ==============================================================================


for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    define(f"{_name}(x: T, y: T, *, T: {INTEGER}) -> z: T", shape=broadcast, commutative=True)
for _name in ("LeftShift", "RightShift"):
    define(f"{_name}(x: T, y: T, *, T: {INTEGER}) -> z: T", shape=broadcast)
define(f"Invert(x: T, *, T: {INTEGER}) -> y: T", shape=unchanged)
define(f"PopulationCount(x: T, *, T: {INTEGER}) -> y: uint8", shape=unchanged)


# ==== functions ===================================================================================


_REAL = "Of floating numbers and integers."

subtract = binary("Sub", "Return x - y, element by element.", "subtract", "Of all numbers.")
multiply = binary("Mul", "Return x * y, element by element.", "multiply", "Of all numbers.")
maximum = binary(
    "Maximum", "Return the greater of x and y.", "maximum", f"{_REAL} NaN where either is NaN."
)
minimum = binary(
    "Minimum", "Return the lesser of x and y.", "minimum", f"{_REAL} NaN where either is NaN."
)
squared_difference = binary(
    "SquaredDifference",
    "Return (x - y)², element by element.",
    "squared_difference",
    "Of floating numbers, int32, int64 and complex numbers; for the latter it is the squared "
    "absolute value of the difference, as a complex number.",
)
xlogy = binary(
    "Xlogy",
    "Return x log(y), and 0 where x is 0, whatever y is.",
    "xlogy",
    "Of floating and complex numbers. The result is 0 where x is 0, even if y is NaN or negative.",
)


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x + y, element by element.

    Args:
        x, y: Tensors of one dtype, numbers or strings, which are joined; or what becomes one: it
            takes the other's dtype. Shapes are broadcast: extents are compared from the
            last one, and 1 fits all.
        name: of the operation, "Add" by default, although its type is AddV2 (Add for strings).

    Returns:
        Tensor: of that dtype. Integers wrap around.

    Raises:
        TypeError: the dtypes differ, or are not for this operation.
        ValueError: the shapes are known and do not fit. Where they get known only in a run, that
            ends with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.add([[1], [2]], [10, 20]))
        array([[11, 21],
               [12, 22]], dtype=int32)
    """
    return result("Add" if _is_text(x) or _is_text(y) else "AddV2", (x, y), name or "Add")


def _is_text(value: Any) -> bool:
    """Return whether a Tensor, or what becomes one, has text."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    kind = getattr(value, "dtype", None)
    if isinstance(kind, DataType):
        return kind.base_dtype is string
    return isinstance(value, str | bytes) or getattr(kind, "kind", "") in ("S", "U", "O")


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """Return the angle of the point (x, y) in radians, from -π to π.

    Of floating numbers; operands and errors as of `add`. Note that y comes first.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.atan2([1.0, 0.0], [0.0, -1.0]))
        array([1.5707964, 3.1415927], dtype=float32)
    """
    return result("Atan2", (y, x), name)


def pow(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x to the power of y, element by element.

    Of floating numbers, signed integers and complex numbers; operands as of `add`. A negative
    floating number to a power that is no integer is NaN.

    Raises:
        TypeError, ValueError: as of `add`.

    In a run, an integer to a negative power ends with InvalidArgumentError; in JAX, which cannot
    look at traced values, its result has no meaning.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.pow([[2], [3]], [1, 2, 3]))
        array([[ 2,  4,  8],
               [ 3,  9, 27]], dtype=int32)
    """
    return result("Pow", (x, y), name)


def multiply_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x * y, and 0 where y is 0, even if x is infinite or NaN.

    Of floating and complex numbers; operands and errors as of `add`. The operands are not alike:
    where x is 0 and y is infinite or NaN the product is NaN.
    """
    return result("MulNoNan", (x, y), name or "multiply_no_nan")


def xlog1py(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x log(1 + y), and 0 where x is 0, whatever y is; see `xlogy`.

    It is exact also for y near 0. `name` is that of a scope.
    """
    with scope(name, "xlog1py", (x, y)):
        return result("Xlog1py", (x, y))


def complex(real: Any, imag: Any, name: str | None = None) -> Tensor:
    """Return complex numbers with given real and imaginary parts.

    Args:
        real, imag: Tensors, or what becomes one; both of float32 or both of float64. Shapes are
            broadcast.
        name: of the operation, "Complex" by default.

    Returns:
        Tensor: complex64 of float32, complex128 of float64.

    Raises:
        TypeError: the dtypes differ or are others.
        ValueError: shapes that do not fit; see `add`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.complex([1.0, 2.0], 3.0))
        array([1.+3.j, 2.+3.j], dtype=complex64)
    """
    with scope(name, "Complex", (real, imag)) as full:
        real, imag = as_tensor(real, None, "real"), as_tensor(imag, None, "imag")
        kinds = real.dtype.base_dtype, imag.dtype.base_dtype
        targets = {(float32, float32): complex64, (float64, float64): complex128}
        if kinds not in targets:
            raise TypeError(
                f"The types of real and imag don't match or are no floats: {kinds[0]!r}, "
                f"{kinds[1]!r}"
            )
        return result("Complex", (real, imag), full, Tout=targets[kinds])


def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the sum of tensors of one shape and dtype, added in their order.

    Args:
        inputs: a list or tuple of at least one Tensor, or what becomes one, of numbers. Nothing is
            broadcast.
        name: of the operation. One tensor alone is returned itself, or under this name as its
            identity.

    Raises:
        ValueError: no tensors, or known shapes that differ; InvalidArgumentError when only a run
            shows it.
        TypeError: dtypes that differ, or of no numbers.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ValueError(
            "Inputs must be an iterable of at least one Tensor with the same dtype and shape."
        )
    if len(inputs) == 1:
        only = as_tensor(inputs[0])
        return result("Identity", (only,), name) if name else only
    return result("AddN", (inputs,), name)


def accumulate_n(
    inputs: Sequence[Any],
    shape: object = None,
    tensor_dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """Return the sum of tensors of one shape and dtype; see `add_n`.

    It creates the same operation, AddN: there is none that would wait for tensors one by one.

    Args:
        inputs: Tensors, or what becomes one.
        shape: of all of them, checked if given; it also completes the static shape of the result.
        tensor_dtype: of all of them, checked if given.
        name: of the operation.

    Raises:
        ValueError: no tensors, or other shapes.
        TypeError: another dtype.
    """
    total = add_n(inputs, name)
    if tensor_dtype is not None and as_dtype(tensor_dtype) is not total.dtype.base_dtype:
        raise TypeError(
            f"accumulate_n: tensor_dtype is {tensor_dtype!r}, but tensors are of {total.dtype!r}"
        )
    total.set_shape(shape)
    return total


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """Return x times a scalar.

    Args:
        scalar: a Tensor without dimensions, or a number, which takes x's dtype.
        x: a Tensor of any shape, or IndexedSlices; lists are not converted here.
        name: of the operation, of type Mul.

    Raises:
        ValueError: `scalar` has dimensions.
        TypeError: its dtype is not that of x.
    """
    if isinstance(x, IndexedSlices):
        return x.with_values(scalar_mul(scalar, x.values, name))
    if not hasattr(x, "_as_graph_tensor") and not isinstance(x, Tensor):
        raise UnsupportedTypeError(f"x must be a Tensor or IndexedSlices, got {x!r}")
    scalar = as_tensor(scalar, x.dtype.base_dtype, "scalar")
    if scalar.shape.ndims not in (None, 0):
        raise ValueError(f"Only scalar multiply works, got shape {scalar.shape}")
    return multiply(scalar, x, name)


def polyval(coeffs: Sequence[Any], x: Any, name: str | None = None) -> Tensor:
    """Return the value of a polynomial, by Horner's rule.

    Args:
        coeffs: a list, the coefficient of the highest power first: numbers, or Tensors whose shapes
            are broadcast with that of x. An empty one gives zeros.
        x: a Tensor of numbers, or what becomes one.
        name: of the scope.

    Raises:
        TypeError, ValueError: as of `add`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.math.polyval([2.0, 0.0, 1.0], [3.0]))  # 2x² + 1
        array([19.], dtype=float32)
    """
    with scope(name, "polyval", (*coeffs, x)):
        x = as_tensor(x, None, "x")
        if not coeffs:
            return result("ZerosLike", (x,))
        total = as_tensor(coeffs[0], x.dtype)
        for each in coeffs[1:]:
            total = result("AddV2", (each, result("Mul", (total, x), "mul")), "add")
        return total


realdiv = binary(
    "RealDiv",
    "Return x / y of floating or complex numbers.",
    "realdiv",
    "A division by 0 gives infinity or NaN. For integers there is `truediv`, which converts them.",
)


floor_div = binary(
    "FloorDiv",
    "Return x / y rounded down; see `floordiv`.",
    "floor_div",
    "It is the same operation under another default name.",
)


truncatediv = binary(
    "TruncateDiv",
    "Return x / y rounded towards zero.",
    "truncatediv",
    "Dtypes, and integers divided by 0, as of `floordiv`: -7 and 2 give -3.",
)


truncatemod = binary(
    "TruncateMod",
    "Return the remainder with the sign of x, that of `truncatediv`.",
    "truncatemod",
    "Of floating numbers, int32 and int64. Integers by 0 as of `floordiv`.",
)


# The dtypes that integers are converted to before a true division.
_QUOTIENTS: dict[str, DataType | None] = {
    **dict.fromkeys(("uint8", "int8", "uint16", "int16"), float32),
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), float64),
    **dict.fromkeys(("bfloat16", "float16", "float32", "float64", "complex64", "complex128")),
}


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y as Python 3 does, element by element.

    Args:
        x, y: as of `add`; bool and strings cannot be divided.
        name: of the operation, "truediv" by default; integers get a scope with their casts in it.

    Returns:
        Tensor: of the operands' dtype where that is floating or complex; integers of 8 and 16 bits
        are divided as float32, wider ones as float64.

    Raises:
        TypeError: the dtypes differ, or cannot be divided.
        ValueError: shapes that do not fit; see `add`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.truediv([7, -7], 2))
        array([ 3.5, -3.5])
    """
    first = x if isinstance(x, Tensor) else y
    kind = getattr(first, "dtype", None)
    if isinstance(kind, DataType) and kind.is_floating:
        return result("RealDiv", (x, y), name or "truediv")
    with scope(name, "truediv", (x, y)) as full:
        other = y.dtype.base_dtype if isinstance(y, Tensor) and not isinstance(x, Tensor) else None
        x = as_tensor(x, other, "x")
        return result("RealDiv", real_operands(x, as_tensor(y, x.dtype.base_dtype, "y")), full)


def real_operands(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the operands of a division, integers as floating numbers; TypeError for others."""
    kind = x.dtype.base_dtype
    if y.dtype.base_dtype is not kind:
        raise TypeError(
            f"`x` and `y` must have the same dtype, got {kind!r} != {y.dtype.base_dtype!r}."
        )
    if kind.name not in _QUOTIENTS:
        raise TypeError(
            f"Invalid dtype {kind!r} in __truediv__: required is one of {list(_QUOTIENTS)}"
        )
    target = _QUOTIENTS[kind.name]
    if target is None:
        return x, y
    return result("Cast", (x,), DstT=target), result("Cast", (y,), DstT=target)


def divide(x: Any, y: Any, name: str | None = None) -> Any:
    """Return x / y as Python 3 does; see `truediv`. A SparseTensor x keeps its places."""
    return x / y if isinstance(x, SparseTensor) else truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y as Python 2 does: integers are rounded down.

    Integers are divided as by `floordiv`, floating and complex numbers as by `realdiv`; operands
    and errors as of `add`. The result has the operands' dtype.
    """
    with scope(name, "div", (x, y)) as full:
        other = y.dtype.base_dtype if isinstance(y, Tensor) and not isinstance(x, Tensor) else None
        x = as_tensor(x, other, "x")
        y = as_tensor(y, x.dtype.base_dtype, "y")
        is_real = x.dtype.is_floating or x.dtype.is_complex
        return result("RealDiv" if is_real else "FloorDiv", (x, y), full)


def floordiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y rounded down, element by element.

    Of floating numbers and integers; operands as of `add`.

    Raises:
        TypeError, ValueError: as of `add`.

    In a run, integers divided by 0 end with InvalidArgumentError; not so in JAX, where XLA defines
    a quotient. Floating numbers divided by 0 give infinity or NaN.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.floordiv(-7, 2), tf.truncatediv(-7, 2)])
        [np.int32(-4), np.int32(-3)]
    """
    return result("FloorDiv", (x, y), name or "floordiv")


def floormod(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return the remainder with the sign of y, that of `floordiv`.

    Of floating numbers and integers; operands as of `add`, integers by 0 as of `floordiv`. `mod`
    is another name of it.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.floormod([-7, 7], [3, -3]), tf.truncatemod([-7, 7], [3, -3])])
        [array([ 2, -2], dtype=int32), array([-1,  1], dtype=int32)]
    """
    return result("FloorMod", (x, y), name)


mod = floormod


def div_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where y is 0, even if x is infinite or NaN.

    Of floating and complex numbers; operands and errors as of `add`. Integers are refused with
    TypeError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.div_no_nan([6.0, 1.0], [3.0, 0.0]))
        array([2., 0.], dtype=float32)
    """
    return result("DivNoNan", (x, y), name or "div_no_nan")


divide_no_nan = div_no_nan


def xdivy(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where x is 0, even if y is 0 or NaN.

    Of floating and complex numbers; operands and errors as of `add`. `name` is that of a scope.
    """
    with scope(name, "xdivy", (x, y)):
        return result("Xdivy", (x, y))


# ==== functions: bounds ===========================================================================


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Return t between two bounds.

    Args:
        t: a Tensor of floating numbers or integers, what becomes one, or IndexedSlices.
        clip_value_min, clip_value_max: bounds of its dtype, broadcast to its shape. Where they
            cross, the lower one wins.
        name: of the scope.

    Returns:
        Tensor: of the shape of t; IndexedSlices of IndexedSlices. NaN stays NaN.

    Raises:
        TypeError: the dtypes differ, or are others.
        ValueError: bounds that do not fit, or would make the result larger than t.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.clip_by_value([-3.0, 0.5, 9.0], 0.0, [0.1, 0.4, 1.0]))
        array([0. , 0.4, 1. ], dtype=float32)
    """
    if isinstance(t, IndexedSlices):
        return t.with_values(clip_by_value(t.values, clip_value_min, clip_value_max, name))
    with scope(name, "clip_by_value", (t, clip_value_min, clip_value_max)) as full:
        t = as_tensor(t, None, "t")
        lowered = minimum(t, clip_value_max)
        lowered.shape.assert_is_compatible_with(t.shape)
        clipped = maximum(lowered, clip_value_min, full)
        t.shape.assert_is_compatible_with(clipped.shape)
        return clipped


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """Return t, made shorter where its Euclidean norm is more than `clip_norm`.

    Args:
        t: a Tensor of floating numbers, what becomes one, or IndexedSlices, whose slices count.
        clip_norm: a positive number of the same dtype, or a tensor broadcast with the norms.
        axes: along which norms are taken; None is one norm of all elements.
        name: of the scope.

    Raises:
        TypeError: integers, or dtypes that differ.
        ValueError: axes that t does not have.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.clip_by_norm([[3.0, 4.0], [0.3, 0.4]], 1.0, axes=[1]))
        array([[0.6, 0.8],
               [0.3, 0.4]], dtype=float32)
    """
    if isinstance(t, IndexedSlices):
        return t.with_values(clip_by_norm(t.values, clip_norm, axes, name))
    with scope(name, "clip_by_norm", (t,)) as full:
        t = as_tensor(t, None, "t")
        squares = reduce_sum(multiply(t, t), axes, keepdims=True)
        is_positive = result("Greater", (squares, 0))
        ones = result("OnesLike", (squares,))
        # A root of 0 is avoided, since its derivative is infinite.
        root = result("Sqrt", (result("SelectV2", (is_positive, squares, ones)),))
        norm = result("SelectV2", (is_positive, root, squares))
        longest = maximum(norm, clip_norm)
        return result("RealDiv", (multiply(t, clip_norm), longest), full)


def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None) -> Tensor:
    """Return t, made smaller where its Euclidean norm by element is more than `clip_norm`.

    Args:
        t: a Tensor of floating numbers, or what becomes one.
        clip_norm: a positive number of the same dtype, or a scalar Tensor.
        name: of the scope.

    Raises:
        TypeError: integers, or dtypes that differ.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.clip_by_average_norm([6.0, 8.0], 1.0))  # 10 by 2 elements is 5
        array([1.2, 1.6], dtype=float32)
    """
    with scope(name, "clip_by_average_norm", (t,)) as full:
        t = as_tensor(t, None, "t")
        count = result("Cast", (result("Size", (t,)),), DstT=t.dtype)
        inverse = result("Rsqrt", (reduce_sum(multiply(t, t)),))
        factor = minimum(multiply(inverse, count), truediv(as_tensor(1.0, t.dtype), clip_norm))
        return result("Identity", (multiply(multiply(t, clip_norm), factor),), full)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the Euclidean norm of all elements of several tensors, a scalar.

    Args:
        t_list: Tensors or IndexedSlices of one dtype of floating numbers, each of any shape; those
            that are None count as 0, but not all of them may be.
        name: of the scope.

    Raises:
        ValueError: no tensor at all.
        TypeError: dtypes that differ, or of no floating numbers.
    """
    given = [_values(each) for each in as_list("t_list", t_list) if each is not None]
    with scope(name, "global_norm", given):
        halves = [result("L2Loss", (each,)) for each in given]
        total = reduce_sum(result("Pack", (halves,), "stack", axis=0))
        doubled = multiply(total, as_tensor(2.0, total.dtype), "mul")
        return result("Sqrt", (doubled,), "global_norm")


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Tensor | None = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """Return tensors scaled so that their common norm is at most `clip_norm`, and that norm.

    Args:
        t_list: as of `global_norm`; a None stays in its place.
        clip_norm: a positive number, or a scalar Tensor.
        use_norm: the norm, if it is known already; None computes it.
        name: of the scope.

    Returns:
        tuple: a list of Tensors, with IndexedSlices where `t_list` has them, and the norm before
        scaling. All of them become NaN where the norm is infinite or NaN, so that nothing wrong is
        passed on unseen.

    Raises:
        ValueError, TypeError: as of `global_norm`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     sides = [tf.constant([3.0]), tf.constant([4.0])]
        ...     clipped, norm = tf.clip_by_global_norm(sides, 1.0)
        ...     session.run([*clipped, norm])
        [array([0.6], dtype=float32), array([0.8], dtype=float32), np.float32(5.0)]
    """
    t_list = as_list("t_list", t_list)
    norm = global_norm(t_list) if use_norm is None else use_norm
    with scope(name, "clip_by_global_norm", [_values(each) for each in t_list]) as full:
        one = as_tensor(1.0, norm.dtype)
        smaller = minimum(truediv(one, norm), truediv(one, as_tensor(clip_norm, norm.dtype)))
        scale = add(multiply(clip_norm, smaller), subtract(norm, norm))
        clipped = [
            None if each is None else _scaled(each, scale, f"{full}_{i}")
            for i, each in enumerate(t_list)
        ]
    return clipped, norm


def _values(t: Any) -> Any:
    return t.values if isinstance(t, IndexedSlices) else t


def _scaled(t: Any, scale: Tensor, name: str) -> Any:
    values = result("Identity", (multiply(_values(t), scale),), name)
    return t.with_values(values) if isinstance(t, IndexedSlices) else values


# ==== functions: bits (`tf.bitwise`) ==============================================================


_INTEGERS = "Of integers, signed and unsigned, in their dtype."


bitwise_and = binary("BitwiseAnd", "Return the bits set in both.", "bitwise_and", _INTEGERS)


bitwise_or = binary("BitwiseOr", "Return the bits set in either.", "bitwise_or", _INTEGERS)


bitwise_xor = binary("BitwiseXor", "Return the bits set in one of both.", "bitwise_xor", _INTEGERS)


left_shift = binary(
    "LeftShift",
    "Return x with its bits moved up by y.",
    "left_shift",
    f"{_INTEGERS} A negative distance is taken as 0, one beyond the width as the width less 1.",
)


right_shift = binary(
    "RightShift",
    "Return x with its bits moved down by y.",
    "right_shift",
    f"{_INTEGERS} The sign stays: -8 by 1 gives -4. Distances as of `left_shift`.",
)


invert = unary("Invert", "Return x with all bits changed.", details=_INTEGERS)


population_count = unary(
    "PopulationCount",
    "Return the number of bits set.",
    "population_count",
    "Of integers, signed and unsigned, as uint8; -1 of int32 gives 32.",
)
