"""The bits of integers."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
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
    """By 0 to the width of the type less 1; what is outside is taken as the nearest of these."""
    xp, kind = context.xp, element(node)
    names = ("left_shift", "right_shift")
    if context.framework == "torch":
        names = ("bitwise_left_shift", "bitwise_right_shift")
    function = getattr(xp, names[node.type == "RightShift"])
    low, high = number(context, 0, kind), number(context, kind.size * 8 - 1, kind)
    return lambda x, y: function(x, xp.minimum(xp.maximum(y, low), high))


@kernel("PopulationCount")
def population_count(node: Node, context: Context) -> Function:
    """The number of bits that are set, added up in ever wider fields."""
    xp, kind = context.xp, element(node)
    shift = xp.bitwise_right_shift if context.framework == "torch" else xp.right_shift
    bit, zero = number(context, 1, kind), number(context, 0, kind)
    result = caster(context, node.output_types[0])

    def count(x: Any) -> Any:
        total = zero
        for place in range(kind.size * 8):
            shifted = shift(x, number(context, place, kind))
            total = xp.add(total, xp.bitwise_and(shifted, bit))
        return result(total)

    return count
