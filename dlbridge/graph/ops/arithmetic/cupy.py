"""Complex numbers in CuPy.

Values are not checked, so that nothing waits for the device.
"""

from __future__ import annotations

from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function


@kernel("Complex", framework="cupy")
def complex_(node: Node, context: Context) -> Function:
    """The parts are set one by one: arithmetic would make NaN of infinite ones."""
    xp, kind = context.xp, context.dtype(node.output_types[0])

    def combine(real: Any, imag: Any) -> Any:
        out = xp.empty(xp.broadcast_shapes(real.shape, imag.shape), dtype=kind)
        out.real[...] = real
        out.imag[...] = imag
        return out

    return combine
