"""Element-wise arithmetic: what users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.functions.math_support import as_tensor, binary, result, scope
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype, complex64, complex128, float32, float64

__all__ = [
    "accumulate_n", "add", "add_n", "atan2", "clip_by_global_norm", "clip_by_norm",
    "clip_by_value", "complex", "div", "div_no_nan", "divide", "divide_no_nan", "floor_div",
    "floordiv", "floormod", "global_norm", "maximum", "minimum", "mod", "multiply",
    "multiply_no_nan", "polyval", "pow", "realdiv", "scalar_mul", "squared_difference", "subtract",
    "truediv", "truncatediv", "truncatemod", "xdivy", "xlog1py", "xlogy",
]  # fmt: skip

subtract = binary("Sub", "Return x - y, element by element.", "subtract")
multiply = binary("Mul", "Return x * y, element by element.", "multiply")
realdiv = binary("RealDiv", "Return x / y of floating or complex numbers.", "realdiv")
floor_div = binary("FloorDiv", "Return x / y rounded down; integers refuse 0.", "floor_div")
floormod = binary("FloorMod", "Return the remainder with the sign of y.", "floormod")
mod = floormod
truncatediv = binary("TruncateDiv", "Return x / y rounded towards zero.", "truncatediv")
truncatemod = binary("TruncateMod", "Return the remainder with the sign of x.", "truncatemod")
pow = binary("Pow", "Return x to the power of y.", "pow")
maximum = binary("Maximum", "Return the greater of x and y; NaN if either is.", "maximum")
minimum = binary("Minimum", "Return the lesser of x and y; NaN if either is.", "minimum")
squared_difference = binary("SquaredDifference", "Return (x - y)².", "squared_difference")
xlogy = binary("Xlogy", "Return x log(y), and 0 where x is 0.", "xlogy")

# What integers are converted to before a true division.
_QUOTIENTS: dict[str, DataType | None] = {
    **dict.fromkeys(("uint8", "int8", "uint16", "int16"), float32),
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), float64),
    **dict.fromkeys(("bfloat16", "float16", "float32", "float64", "complex64", "complex128")),
}


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x + y, element by element; shapes are broadcast."""
    return result("AddV2", (x, y), None, name or "Add")


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """Return the angle of the point (x, y), from -π to π."""
    return result("Atan2", (y, x), None, name)


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y as Python 3 does: integers of up to 16 bits as float32, others as float64.

    Raises:
        TypeError: the dtypes differ, or cannot be divided.
    """
    first = x if isinstance(x, Tensor) else y
    kind = getattr(first, "dtype", None)
    if isinstance(kind, DataType) and kind.is_floating:
        return result("RealDiv", (x, y), None, name or "truediv")
    with scope(name, "truediv", (x, y)) as full:
        other = y.dtype.base_dtype if isinstance(y, Tensor) and not isinstance(x, Tensor) else None
        x = as_tensor(x, other, "x")
        y = as_tensor(y, x.dtype.base_dtype, "y")
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
        if target is not None:
            x, y = (result("Cast", (each,), {"DstT": target}) for each in (x, y))
        return result("RealDiv", (x, y), None, full)


def divide(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y as Python 3 does; see `truediv`."""
    return truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y as Python 2 does: integers are rounded down."""
    with scope(name, "div", (x, y)) as full:
        other = y.dtype.base_dtype if isinstance(y, Tensor) and not isinstance(x, Tensor) else None
        x = as_tensor(x, other, "x")
        y = as_tensor(y, x.dtype.base_dtype, "y")
        is_real = x.dtype.is_floating or x.dtype.is_complex
        return result("RealDiv" if is_real else "FloorDiv", (x, y), None, full)


def floordiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y rounded down; InvalidArgumentError when integers are divided by 0."""
    return result("FloorDiv", (x, y), None, name or "floordiv")


def div_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where y is 0."""
    return result("DivNoNan", (x, y), None, name or "div_no_nan")


divide_no_nan = div_no_nan


def multiply_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x * y, and 0 where y is 0, even if x is infinite or NaN."""
    return result("MulNoNan", (x, y), None, name or "multiply_no_nan")


def xdivy(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where x is 0."""
    with scope(name, "xdivy", (x, y)):
        return result("Xdivy", (x, y))


def xlog1py(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x log(1 + y), and 0 where x is 0."""
    with scope(name, "xlog1py", (x, y)):
        return result("Xlog1py", (x, y))


def complex(real: Any, imag: Any, name: str | None = None) -> Tensor:
    """Return complex numbers of two real tensors of float32 or float64, which are broadcast.

    Raises:
        TypeError: real and imaginary parts of different or other dtypes.
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
    """Return the sum of tensors of one shape and dtype; that of one is itself.

    Raises:
        ValueError: no tensors, or shapes that differ.
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

    Args:
        inputs: Tensors, or what becomes one.
        shape: of all of them, checked if given.
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

    Raises:
        ValueError: `scalar` is not one.
    """
    scalar = as_tensor(scalar, x.dtype.base_dtype, "scalar")
    if scalar.shape.ndims not in (None, 0):
        raise ValueError(f"Only scalar multiply works, got shape {scalar.shape}")
    return multiply(scalar, x, name)


def clip_by_value(
    t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    """Return t between two bounds, of which the lower one wins where they cross; NaN stays."""
    with scope(name, "clip_by_value", (t, clip_value_min, clip_value_max)) as full:
        t = as_tensor(t, None, "t")
        lowered = minimum(t, clip_value_max)
        lowered.shape.assert_is_compatible_with(t.shape)
        clipped = maximum(lowered, clip_value_min, full)
        t.shape.assert_is_compatible_with(clipped.shape)
        return clipped


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """Return t, made shorter where its Euclidean norm (along `axes`) is more than `clip_norm`."""
    from dlbridge.graph.functions.math_reduce import reduce_sum

    with scope(name, "clip_by_norm", (t,)) as full:
        t = as_tensor(t, None, "t")
        squares = reduce_sum(multiply(t, t), axes, keepdims=True)
        is_positive = result("Greater", (squares, 0))
        ones = result("OnesLike", (squares,))
        # A root of 0 is avoided, since its derivative is infinite.
        root = result("Sqrt", (result("SelectV2", (is_positive, squares, ones)),))
        norm = result("SelectV2", (is_positive, root, squares))
        longest = maximum(norm, clip_norm)
        return result("RealDiv", (multiply(t, clip_norm), longest), None, full)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the Euclidean norm of all elements of several tensors; those that are None count 0."""
    from dlbridge.graph.functions.math_reduce import reduce_sum

    given = [each for each in t_list if each is not None]
    with scope(name, "global_norm", given):
        halves = [result("L2Loss", (each,)) for each in given]
        total = reduce_sum(result("Pack", (halves,), {"axis": 0}, "stack"))
        doubled = multiply(total, as_tensor(2.0, total.dtype))
        return result("Sqrt", (doubled,), None, "global_norm")


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Tensor | None = None, name: str | None = None
) -> tuple[list[Tensor | None], Tensor]:
    """Return tensors scaled so that their common norm is at most `clip_norm`, and that norm.

    All of them become NaN where the norm is not finite.
    """
    norm = global_norm(t_list) if use_norm is None else use_norm
    with scope(name, "clip_by_global_norm", t_list) as full:
        one = as_tensor(1.0, norm.dtype)
        smaller = minimum(truediv(one, norm), truediv(one, as_tensor(clip_norm, norm.dtype)))
        scale = add(multiply(clip_norm, smaller), subtract(norm, norm))
        clipped = [
            None
            if each is None
            else result("Identity", (multiply(each, scale),), None, f"{full}_{i}")
            for i, each in enumerate(t_list)
        ]
    return clipped, norm


def polyval(coeffs: Sequence[Any], x: Any, name: str | None = None) -> Tensor:
    """Return the value of a polynomial; the coefficient of the highest power comes first."""
    with scope(name, "polyval", (*coeffs, x)):
        x = as_tensor(x, None, "x")
        if not coeffs:
            return result("ZerosLike", (x,))
        total = as_tensor(coeffs[0], x.dtype)
        for each in coeffs[1:]:
            total = result("AddV2", (each, result("Mul", (total, x), None, "mul")), None, "add")
        return total
