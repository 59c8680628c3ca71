"""Reductions in NumPy, without their Python wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, axes_of, wider

_REDUCTIONS: dict[str, Any] = {
    "Sum": np.add,
    "Prod": np.multiply,
    "All": np.logical_and,
    "Any": np.logical_or,
}


@kernel(*_REDUCTIONS, framework="numpy", host=(1,))
def reduction(node: Node, context: Context) -> Function:
    """The ufunc's own reduction, halves in float32."""
    kind = node.output_types[0]
    reduce, keep = _REDUCTIONS[node.type].reduce, node.attrs["keep_dims"]
    work, dtype = wider(kind).numpy, kind.numpy

    def function(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        if not where:
            return x
        result = reduce(x, axis=where, dtype=work, keepdims=keep)
        return result if work is dtype else result.astype(dtype)

    return function
