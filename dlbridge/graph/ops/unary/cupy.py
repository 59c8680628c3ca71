"""Special functions in CuPy, which its array API lacks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, caster, element, in_wider

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
