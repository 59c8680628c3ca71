"""Element-wise arithmetic of two or more operands."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.errors import InvalidArgumentError, UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Function,
    caster,
    element,
    number,
    refuse_zero,
    register_ufuncs,
)

_UFUNCS = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Atan2": "arctan2",
    "NextAfter": "nextafter",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Invert": "invert",
}
register_ufuncs(_UFUNCS)


@kernel("Div", "FloorDiv", "TruncateDiv")
def divide(node: Node, context: Context) -> Function:
    """Integers are rounded down by FloorDiv, towards zero by the others; zero is refused."""
    xp = context.xp
    if element(node).is_integer:
        whole = _floor_quotient if node.type == "FloorDiv" else truncated_quotient
        return _of_nonzero(whole(xp), node, context)
    rounding = {"FloorDiv": xp.floor, "TruncateDiv": xp.trunc}.get(node.type)
    if rounding is None:
        return xp.divide  # type: ignore[no-any-return]
    return lambda x, y: rounding(xp.divide(x, y))


@kernel("FloorMod", "Mod", "TruncateMod")
def remainder(node: Node, context: Context) -> Function:
    """The sign is the divisor's for FloorMod, the dividend's for the others."""
    xp = context.xp
    function: Function = xp.remainder if node.type == "FloorMod" else xp.fmod
    if element(node).is_integer:
        return _of_nonzero(function, node, context)
    return function


def _floor_quotient(xp: Any) -> Function:
    function: Function = xp.floor_divide
    return function


def truncated_quotient(xp: Any) -> Function:
    """Subtract the remainder first, so that the division is exact."""
    return lambda x, y: xp.floor_divide(xp.subtract(x, xp.fmod(x, y)), y)


def _of_nonzero(function: Function, node: Node, context: Context) -> Function:
    check = refuse_zero(node, context)
    if check is None:
        return function

    def checked(x: Any, y: Any) -> Any:
        if 0 not in x.shape:  # else nothing is divided
            check(y)
        return function(x, y)

    return checked


@kernel("DivNoNan")
def divide_or_zero(node: Node, context: Context) -> Function:
    """Divide; a quotient by zero is zero."""
    xp, zero = context.xp, number(context, 0, element(node))
    return lambda x, y: xp.where(xp.equal(y, zero), zero, xp.divide(x, y))


@kernel("MulNoNan")
def multiply_or_zero(node: Node, context: Context) -> Function:
    """Multiply; a product with y = 0 is zero, also of infinity and NaN."""
    xp, zero = context.xp, number(context, 0, element(node))
    return lambda x, y: xp.where(xp.equal(y, zero), zero, xp.multiply(x, y))


@kernel("Xdivy", "Xlogy", "Xlog1py")
def zero_or(node: Node, context: Context) -> Function:
    """Zero where the first operand is, whatever the second."""
    xp, zero = context.xp, number(context, 0, element(node))

    def function(x: Any, y: Any) -> Any:
        if node.type == "Xdivy":
            value = xp.divide(x, y)
        else:
            value = xp.multiply(x, (xp.log if node.type == "Xlogy" else xp.log1p)(y))
        return xp.where(xp.equal(x, zero), zero, value)

    return function


@kernel("RealDiv", ufunc="divide")
def real_divide(node: Node, context: Context) -> Function:
    """Divide; TensorFlow declares it for integers but has no kernel for them."""
    if element(node).is_integer:
        raise UnimplementedError(
            f"RealDiv of {element(node).name} has no kernel; tf.truediv casts to a floating type",
            node,
        )
    return context.xp.divide  # type: ignore[no-any-return]


@kernel("Pow")
def power(node: Node, context: Context) -> Function:
    """Integers are not raised to negative powers, where values are looked at."""
    power = context.xp.pow
    if not element(node).is_integer or (context.device_name and not context.checks):
        return power  # type: ignore[no-any-return]
    zero = number(context, 0, element(node))

    def checked(x: Any, y: Any) -> Any:
        if bool((y < zero).any()):
            raise InvalidArgumentError("Integers to negative integer powers are not allowed", node)
        return power(x, y)

    return checked


@kernel("SquaredDifference")
def squared_difference(node: Node, context: Context) -> Function:
    """The square of the absolute value, for complex numbers."""
    xp = context.xp
    if element(node).is_complex:
        conjugate = xp.conj

        def squared(x: Any, y: Any) -> Any:
            difference = xp.subtract(x, y)
            return xp.multiply(difference, conjugate(difference))

        return squared
    return lambda x, y: xp.square(xp.subtract(x, y))


def _says_no_shape(node: Node) -> bool:
    given = node.attrs.get("shape")
    return given is None or given.dims is None


@kernel("AddN", "AccumulateNV2", ufunc="add", only_if=_says_no_shape, folds=True)
def add_n(node: Node, context: Context) -> Function:
    """Add them in order; an attribute may say their shape."""
    add = context.xp.add
    wanted = None if _says_no_shape(node) else node.attrs["shape"]

    def total(first: Any, *others: Any) -> Any:
        if wanted is not None and not wanted.is_compatible_with(first.shape):
            raise InvalidArgumentError(
                f"Inputs to operation {node.name} of type {node.type} must have the shape {wanted} "
                f"of its attribute.  Input 0: {list(first.shape)}",
                node,
            )
        for other in others:
            if other.shape != first.shape:
                raise InvalidArgumentError(
                    f"Inputs to operation {node.name} of type {node.type} must have the same size "
                    f"and shape.  Input 0: {list(first.shape)} != input: {list(other.shape)}",
                    node,
                )
            first = add(first, other)
        return first

    return total


@kernel("ClipByValue")
def clip(node: Node, context: Context, combine: Function | None = None) -> Function:
    """The lower bound wins where bounds cross; NaN stays.

    Args:
        combine: makes complex numbers of their parts, which are clipped one by one.
    """
    xp = context.xp

    def bounded(x: Any, low: Any, high: Any) -> Any:
        return xp.maximum(xp.minimum(x, high), low)

    def clipped(x: Any, low: Any, high: Any) -> Any:
        for bound in (low, high):
            if bound.shape not in ((), x.shape):
                raise InvalidArgumentError(
                    "clip_value_min and clip_value_max should be either of the same shape as input "
                    f"or a scalar: {list(x.shape)} and {list(bound.shape)}",
                    node,
                )
        if combine is None:
            return bounded(x, low, high)
        return combine(*[bounded(part(x), part(low), part(high)) for part in (xp.real, xp.imag)])

    return clipped


# ---- bits of integers ----------------------------------------------------------------------------


@kernel("LeftShift", "RightShift")
def shift(node: Node, context: Context) -> Function:
    name = "left_shift" if node.type == "LeftShift" else "right_shift"
    return clamped_shift(node, context, getattr(context.xp, name))


def clamped_shift(node: Node, context: Context, function: Function) -> Function:
    """Shift by 0 to the width of the dtype less 1; other counts are clamped to that range."""
    xp, kind = context.xp, element(node)
    low, high = number(context, 0, kind), number(context, kind.size * 8 - 1, kind)
    return lambda x, y: function(x, xp.minimum(xp.maximum(y, low), high))


@kernel("PopulationCount")
def population_count(node: Node, context: Context) -> Function:
    return bit_count(node, context, context.xp.right_shift)


def bit_count(node: Node, context: Context, shift: Function) -> Function:
    """Add up the bits, one place after another."""
    xp, kind = context.xp, element(node)
    bit, zero = number(context, 1, kind), number(context, 0, kind)
    result = caster(context, node.output_types[0])

    def count(x: Any) -> Any:
        total = zero
        for place in range(kind.size * 8):
            shifted = shift(x, number(context, place, kind))
            total = xp.add(total, xp.bitwise_and(shifted, bit))
        return result(total)

    return count
