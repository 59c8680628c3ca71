"""Op types that every graph has: constants, placeholders, identity, nothing."""

from __future__ import annotations

from dlbridge.graph.inference import Inference, nothing, unchanged
from dlbridge.graph.opdef import define
from dlbridge.shape import Dims


def _const(c: Inference) -> list[Dims | None]:
    return [c.attrs["value"].shape]


def _placeholder(c: Inference) -> list[Dims | None]:
    return [c.attrs["shape"].dims]


define("Const(*, value: tensor, dtype: type) -> output: dtype", shape=_const)
define("Placeholder(*, dtype: type, shape: shape = <unknown>) -> output: dtype", shape=_placeholder)
define(
    "PlaceholderWithDefault(input: dtype, *, dtype: type, shape: shape) -> output: dtype",
    shape=_placeholder,
)
define("Identity(input: T) -> output: T", shape=unchanged)
define("NoOp()", shape=nothing)
