"""The bits of integers."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, caster, element, number, register_ufuncs

_UFUNCS = {
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Invert": "invert",
}
register_ufuncs(_UFUNCS)


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
