"""Op types that every graph has: constants, placeholders, identity, no-op."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, nothing, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes


def _const(c: Inference) -> Shapes:
    return [c.attrs["value"].shape]


def _placeholder(c: Inference) -> Shapes:
    return [c.attrs["shape"].dims]


def _placeholder_with_default(c: Inference) -> Shapes:
    shape = c.attrs["shape"]
    if not shape.is_compatible_with(c.dims(0)):
        raise c.error(f"The default does not fit the shape {shape}")
    return [shape.dims]


define("Const(*, value: tensor, dtype: type) -> output: dtype", shape=_const)
define("Placeholder(*, dtype: type, shape: shape = <unknown>) -> output: dtype", shape=_placeholder)
define(
    "PlaceholderWithDefault(input: dtype, *, dtype: type, shape: shape) -> output: dtype",
    shape=_placeholder_with_default,
)
define("Identity(input: T) -> output: T", shape=unchanged)
define("StopGradient(input: T) -> output: T", shape=unchanged)
define('PreventGradient(input: T, *, T: type, message: string = "") -> output: T', shape=unchanged)
define("Snapshot(input: T) -> output: T", shape=unchanged)
define("NoOp()", shape=nothing)


define("GuaranteeConst(input: T) -> output: T", shape=unchanged, stateful=True)
