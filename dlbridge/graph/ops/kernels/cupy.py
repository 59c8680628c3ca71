"""CuPy: what its array API lacks.

Values are not checked, so that nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Function,
    arithmetic,
    caster,
    element,
    in_wider,
    require_part_dtype,
)
from dlbridge.graph.ops.kernels.reduce import logsumexp_scan
from dlbridge.proto.datatypes import DataType

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
    require_part_dtype(node)
    return _combiner(context, node.output_types[0])


def _combiner(context: Context, data_type: DataType) -> Function:
    xp, kind = context.xp, context.dtype(data_type)

    def combine(real: Any, imag: Any) -> Any:
        out = xp.empty(xp.broadcast_shapes(real.shape, imag.shape), dtype=kind)
        out.real[...] = real
        out.imag[...] = imag
        return out

    return combine


@kernel("ClipByValue", framework="cupy")
def clip(node: Node, context: Context) -> Function:
    kind = element(node)
    return arithmetic.clip(node, context, _combiner(context, kind) if kind.is_complex else None)


@kernel("Cholesky", framework="cupy")
def cholesky(node: Node, context: Context) -> Function:
    """The lower triangle; of no meaning where a matrix is not positive definite."""
    return in_wider(context, element(node), context.xp.linalg.cholesky)


@kernel("CumulativeLogsumexp", framework="cupy", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, partial(_by_doubling, context.xp))


def _by_doubling(xp: Any, x: Any, axis: int) -> Any:
    """Combine each element with those 1, 2, 4 … before it."""
    x, step = xp.moveaxis(x, axis, 0), 1
    while step < x.shape[0]:
        x = xp.concat([x[:step], xp.logaddexp(x[step:], x[:-step])], axis=0)
        step *= 2
    return xp.moveaxis(x, 0, axis)
