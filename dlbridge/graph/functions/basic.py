"""placeholder, identity and their like."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.building import apply
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype
from dlbridge.shape import as_shape

__all__ = ["identity", "no_op", "placeholder"]


def placeholder(dtype: object, shape: object = None, name: str | None = None) -> Tensor:
    """Create a tensor whose value is fed in each run."""
    attrs = {"dtype": as_dtype(dtype), "shape": as_shape(shape)}
    return apply("Placeholder", (), attrs, name).outputs[0]


def identity(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Return a tensor of the same value."""
    return apply("Identity", (input,), None, name).outputs[0]


def no_op(name: str | None = None) -> Operation:
    """Create an operation that does nothing."""
    return apply("NoOp", (), None, name)
