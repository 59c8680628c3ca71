"""Python's operators on Tensors."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.building import apply
from dlbridge.graph.tensor import Tensor


def _add(self: Tensor, other: Any) -> Tensor:
    return apply("AddV2", (self, other), None, "add").outputs[0]


def _radd(self: Tensor, other: Any) -> Tensor:
    return apply("AddV2", (other, self), None, "add").outputs[0]


Tensor.__add__ = _add  # type: ignore[attr-defined]
Tensor.__radd__ = _radd  # type: ignore[attr-defined]
