"""Arithmetic in CuPy: functions that its array API lacks.

Values are not looked at: what NumPy refuses gives some number here, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.kernel_support import Function, caster, element, in_wider

# Op type -> its name in `cupyx.scipy.special`
_SPECIAL = {
    "Erf": "erf",
    "Erfc": "erfc",
    "Erfinv": "erfinv",
    "Lgamma": "gammaln",
    "Digamma": "digamma",
    "Ndtri": "ndtri",
}


def _special(name: str) -> Callable[[Node, Context], Function]:
    def factory(node: Node, context: Context) -> Function:
        function = getattr(import_module("cupyx.scipy.special"), name)
        narrow = caster(context, element(node))  # some are computed in float64 only
        return in_wider(context, element(node), lambda x: narrow(function(x)))

    return factory


for _type, _name in _SPECIAL.items():
    kernel(_type, framework="cupy")(_special(_name))


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


@kernel("Cholesky", framework="cupy")
def cholesky(node: Node, context: Context) -> Function:
    """The lower triangle; of no meaning where a matrix is not positive definite."""
    return in_wider(context, element(node), context.xp.linalg.cholesky)
