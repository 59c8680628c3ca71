"""Element-wise arithmetic on the array API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel


@kernel("AddV2", "Add", ufunc="add")
def add(node: Node, context: Context) -> Callable[..., Any]:
    """Return the sum."""
    return context.xp.add  # type: ignore[no-any-return]
