"""Element-wise functions of one operand, and conversions of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.errors import UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Function,
    caster,
    element,
    in_wider,
    number,
    register_ufuncs,
    require_part_dtype,
)
from dlbridge.proto.datatypes import DataType, bfloat16, bool_, float16, float32, int32, int64

_UFUNCS = {
    "Neg": "negative",
    "Abs": "absolute",
    "Square": "square",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Expm1": "expm1",
    "Log": "log",
    "Log1p": "log1p",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "arcsin",
    "Acos": "arccos",
    "Atan": "arctan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "arcsinh",
    "Acosh": "arccosh",
    "Atanh": "arctanh",
    "Floor": "floor",
    "Ceil": "ceil",
    "Rint": "rint",
    "IsNan": "isnan",
    "IsInf": "isinf",
    "IsFinite": "isfinite",
}
register_ufuncs(_UFUNCS)


@kernel("Sign")
def sign(node: Node, context: Context) -> Function:
    """The direction of a complex number is that number of absolute value 1."""
    return context.xp.sign  # type: ignore[no-any-return]


@kernel("Rsqrt")
def rsqrt(node: Node, context: Context) -> Function:
    """The reciprocal of the root."""
    xp, one = context.xp, number(context, 1, element(node))
    return lambda x: xp.divide(one, xp.sqrt(x))


@kernel("Reciprocal", "Inv")
def reciprocal(node: Node, context: Context) -> Function:
    """Integers have none, as in TensorFlow."""
    if element(node).is_integer:
        raise UnimplementedError(f"{node.type} is not defined for {element(node).name}", node)
    xp, one = context.xp, number(context, 1, element(node))
    return lambda x: xp.divide(one, x)


@kernel("Sigmoid")
def sigmoid(node: Node, context: Context) -> Function:
    """1 / (1 + exp(-x)), which has its limits where exp overflows."""
    xp, kind = context.xp, element(node)
    one = number(context, 1, float32 if kind in (bfloat16, float16) else kind)
    return in_wider(context, kind, lambda x: xp.divide(one, xp.add(one, xp.exp(xp.negative(x)))))


@kernel("Round")
def round_(node: Node, context: Context) -> Function:
    """To the nearest integer, halves to the even one."""
    if element(node).is_integer:
        return lambda x: x
    return context.xp.rint  # type: ignore[no-any-return]


@kernel("Real", "Imag")
def part(node: Node, context: Context) -> Function:
    """A view of one part."""
    require_part_dtype(node)
    if node.type == "Real":
        return lambda x: x.real
    return lambda x: x.imag


@kernel("Conj")
def conjugate(node: Node, context: Context) -> Function:
    """The other sign of the imaginary part."""
    return context.xp.conj  # type: ignore[no-any-return]


# ---- casts -------------------------------------------------------------------------------------

# Bits of float32 that a narrower type lacks, and that Truncate cuts off.
_LOST_BITS = {bfloat16: 16, float16: 13}


@kernel("Cast")
def cast(node: Node, context: Context) -> Function:
    """Floating numbers are truncated toward zero; beyond int32 and int64 they become the least.

    Numbers beyond the range of a narrower integer give no defined value, as in TensorFlow, whose
    result depends on the position in the tensor.
    """
    source, target = element(node, "SrcT"), element(node, "DstT")
    for kind in (source, target):
        if kind.kind not in "fiucb":
            raise UnimplementedError(f"Cast {source.name} to {target.name} is not supported", node)
    if source is target:
        return lambda x: x
    if node.attrs["Truncate"] and source is float32 and target in _LOST_BITS:
        return _truncating(context, target)
    return cast_function(context, source, target)


def cast_function(context: Context, source: DataType, target: DataType) -> Function:
    """Return the function that casts between two dtypes."""
    plain = caster(context, target)
    if source.is_complex and target is not bool_ and not target.is_complex:
        return lambda x: plain(x.real)
    if source.is_complex and target is bool_:
        return lambda x: plain(x.real)
    if source.is_floating and target in (int32, int64) and context.framework != "numpy":
        return _bounded(context, source, target)
    return plain


def _bounded(context: Context, source: DataType, target: DataType) -> Function:
    """Give what C gives on x86 for values beyond the range, which is the least integer."""
    xp, plain = context.xp, caster(context, target)
    if source is bfloat16 or source is float16:
        widen, source = caster(context, float32), float32
    else:
        widen = caster(context, source)
    end = number(context, 2.0 ** (target.size * 8 - 1), source)
    least = number(context, target.min, target)

    def bounded(x: Any) -> Any:
        x = widen(x)
        return xp.where(xp.abs(x) < end, plain(x), least)

    return bounded


def _truncating(context: Context, target: DataType) -> Function:
    """Clear the bits that do not fit, so that nothing is rounded; NaN stays."""
    xp, plain = context.xp, caster(context, target)
    lost = _LOST_BITS[target]
    mask = context.asarray(np.asarray(-(1 << lost), np.int32))
    bits, back = context.dtype(int32), context.dtype(float32)

    def truncated(x: Any) -> Any:
        cut = xp.bitwise_and(x.view(bits), mask).view(back)
        return plain(xp.where(xp.isnan(x), x, cut))

    return truncated


@kernel("Bitcast")
def bitcast(node: Node, context: Context) -> Function:
    """The same bytes as another dtype."""
    source, target = element(node), element(node, "type")
    kind = context.dtype(target)
    if source.size == target.size:
        return lambda x: x.view(kind)
    if source.size > target.size:
        ratio = source.size // target.size
        return lambda x: x.reshape((*x.shape, 1)).view(kind).reshape((*x.shape, ratio))
    return lambda x: x.view(kind).reshape(x.shape[:-1])


@kernel("ComplexAbs", "Angle")
def polar(node: Node, context: Context) -> Function:
    """The absolute value, or the argument."""
    require_part_dtype(node)
    xp = context.xp
    if node.type == "ComplexAbs":
        return xp.abs  # type: ignore[no-any-return]
    return lambda x: xp.arctan2(x.imag, x.real)
