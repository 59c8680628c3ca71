"""Complex numbers in NumPy."""

from __future__ import annotations

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function


@kernel("Complex", framework="numpy")
def complex_(node: Node, context: Context) -> Function:
    """The parts are set one by one: arithmetic would make NaN of infinite ones."""
    kind = node.output_types[0].numpy

    def combine(real: Array, imag: Array) -> Array:
        out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), kind)
        out.real, out.imag = real, imag
        return out

    return combine
