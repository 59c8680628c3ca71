"""Element-wise arithmetic: what users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_tensor, binary, result, scope
from dlbridge.proto.datatypes import as_dtype, complex64, complex128, float32, float64

__all__ = [
    "accumulate_n", "add", "add_n", "atan2", "complex", "maximum", "minimum", "multiply",
    "multiply_no_nan", "polyval", "pow", "scalar_mul", "squared_difference", "subtract",
    "xlog1py", "xlogy",
]  # fmt: skip

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
    "Of floating and complex numbers. Where y is NaN or negative and x is 0 the result is 0, too.",
)


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x + y, element by element.

    Args:
        x, y: Tensors of one dtype, floating numbers, integers or complex numbers; or what becomes
            one: it takes the other's dtype. Shapes are broadcast: extents are compared from the
            last one, and 1 fits all.
        name: of the operation, "Add" by default, although its type is AddV2.

    Returns:
        Tensor: of that dtype. Integers wrap around.

    Raises:
        TypeError: the dtypes differ, or are not for this operation; strings have `strings.join`.
        ValueError: the shapes are known and do not fit. Where they get known only in a run, that
            ends with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.add([[1], [2]], [10, 20]))
        array([[11, 21],
               [12, 22]], dtype=int32)
    """
    return result("AddV2", (x, y), None, name or "Add")


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """Return the angle of the point (x, y) in radians, from -π to π.

    Of floating numbers; operands and errors as of `add`. Note that y comes first.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.atan2([1.0, 0.0], [0.0, -1.0]))
        array([1.5707964, 3.1415927], dtype=float32)
    """
    return result("Atan2", (y, x), None, name)


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
    return result("Pow", (x, y), None, name)


def multiply_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x * y, and 0 where y is 0, even if x is infinite or NaN.

    Of floating and complex numbers; operands and errors as of `add`. The operands are not alike:
    where x is 0 and y is infinite or NaN the product is NaN.
    """
    return result("MulNoNan", (x, y), None, name or "multiply_no_nan")


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
        return result("Complex", (real, imag), {"Tout": targets[kinds]}, full)


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
        return result("Identity", (only,), None, name) if name else only
    return result("AddN", (inputs,), None, name)


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


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Tensor:
    """Return x times a scalar.

    Args:
        scalar: a Tensor without dimensions, or a number, which takes x's dtype.
        x: a Tensor of any shape; lists are not converted here.
        name: of the operation, of type Mul.

    Raises:
        ValueError: `scalar` has dimensions.
        TypeError: its dtype is not that of x.
    """
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
            total = result("AddV2", (each, result("Mul", (total, x), None, "mul")), None, "add")
        return total
