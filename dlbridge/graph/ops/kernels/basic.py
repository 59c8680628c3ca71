"""Kernels of constants, placeholders, identity and no-op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function


@kernel("Const")
def const(node: Node, context: Context) -> Callable[..., Any]:
    """The plan itself makes values of constants known; this serves where it does not."""
    value = context.asarray(node.attrs["value"].array)
    return lambda: value


@kernel("Placeholder")
def placeholder(node: Node, context: Context) -> Callable[..., Any]:
    """A placeholder that runs was not fed."""
    shape = node.attrs["shape"]
    dims = None if shape is None or shape.dims is None else shape.dims
    text = (
        "<unknown>" if dims is None else f"[{','.join('?' if d is None else str(d) for d in dims)}]"
    )

    def fail() -> Any:
        raise InvalidArgumentError(
            f"You must feed a value for placeholder tensor {node.name!r} with dtype "
            f"{node.output_types[0].wire_name} and shape {text}",
            node,
        )

    return fail


@kernel(
    "Identity",
    "PlaceholderWithDefault",
    "StopGradient",
    "PreventGradient",
    "Snapshot",
    forwards=True,
)
def identity(node: Node, context: Context) -> Callable[..., Any]:
    return lambda x: x


@kernel("NoOp")
def no_op(node: Node, context: Context) -> Callable[..., Any]:
    return lambda: ()


@kernel("GuaranteeConst")
def guarantee_const(node: Node, context: Context) -> Function:
    return lambda x: x
