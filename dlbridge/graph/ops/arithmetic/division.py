"""Division, and what remains: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_tensor, binary, result, scope
from dlbridge.proto.datatypes import DataType, float32, float64

__all__ = [
    "div", "div_no_nan", "divide", "divide_no_nan", "floor_div", "floordiv", "floormod", "mod",
    "realdiv", "truediv", "truncatediv", "truncatemod", "xdivy",
]  # fmt: skip

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

# What integers are converted to before a true division.
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
    """Return x / y as Python 2 does: integers are rounded down.

    Integers are divided as by `floordiv`, floating and complex numbers as by `realdiv`; operands
    and errors as of `add`. The result has the operands' dtype.
    """
    with scope(name, "div", (x, y)) as full:
        other = y.dtype.base_dtype if isinstance(y, Tensor) and not isinstance(x, Tensor) else None
        x = as_tensor(x, other, "x")
        y = as_tensor(y, x.dtype.base_dtype, "y")
        is_real = x.dtype.is_floating or x.dtype.is_complex
        return result("RealDiv" if is_real else "FloorDiv", (x, y), None, full)


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
    return result("FloorDiv", (x, y), None, name or "floordiv")


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
    return result("FloorMod", (x, y), None, name)


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
    return result("DivNoNan", (x, y), None, name or "div_no_nan")


divide_no_nan = div_no_nan


def xdivy(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where x is 0, even if y is 0 or NaN.

    Of floating and complex numbers; operands and errors as of `add`. `name` is that of a scope.
    """
    with scope(name, "xdivy", (x, y)):
        return result("Xdivy", (x, y))
