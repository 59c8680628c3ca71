"""Op types that call functions of Python, and kernels of `dlbridge.wrap`."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes


def _promised(c: Inference) -> Shapes:
    """The shapes that the caller promised, if any."""
    shapes = c.attrs.get("shapes", ())
    if not shapes:
        return [None] * c.output_count
    if len(shapes) != c.output_count:
        raise c.error(f"There must be a shape for each of {c.output_count} results")
    return [shape.dims for shape in shapes]


_PYTHON = (
    "(input: list(Tin), *, token: string, Tin: list(type) >= 0, Tout: list(type) >= 0) "
    "-> output: list(Tout)"
)
_ANY = (
    "(input: list(Tin), *, f: func, is_kernel: bool = false, Tin: list(type) >= 0, "
    "Tout: list(type) >= 0, shapes: list(shape) = []) -> output: list(Tout)"
)

define(f"PyFunc{_PYTHON}", shape=_promised, stateful=True)
define(f"PyFuncStateless{_PYTHON}", shape=_promised)
define(f"DLBridge>Call{_ANY}", shape=_promised)
define(f"DLBridge>StatefulCall{_ANY}", shape=_promised, stateful=True)
