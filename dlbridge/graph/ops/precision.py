"""16-bit floats computed in 32 bits: sums and powers of them would lose their digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.proto.datatypes import bfloat16, float16, float32

NARROW = frozenset({float16, bfloat16})


def widened(function: Callable[..., Any], node: Node, context: Context) -> Callable[..., Any]:
    """Return `function`, or for 16-bit inputs one that casts to float32 and its results back."""
    if not any(each.op.output_types[each.value_index].base_dtype in NARROW for each in node.inputs):
        return function
    narrow = {context.dtype(each) for each in NARROW}
    wide = context.dtype(float32)
    results = [context.dtype(each) if each in NARROW else None for each in node.output_types]
    astype = context.xp.astype

    def run(*values: Any) -> Any:
        out = function(*[astype(each, wide) if each.dtype in narrow else each for each in values])
        if len(results) == 1:
            return out if results[0] is None else astype(out, results[0])
        return tuple(
            [
                each if kind is None else astype(each, kind)
                for each, kind in zip(out, results, strict=True)
            ]
        )

    return run
