"""What kernels work out of shapes and axes, kept from one run to the next."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

from dlbridge.execution.node import Node


def remember(node: Node, host: tuple[int, ...], compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return compute(dims, *values), remembered as long as nothing that it depends on changes.

    Only values that are constants of the graph are relied upon, known by their identity: an array
    that was fed in their place may be another one, or have changed in place.

    Args:
        node: whose kernel calls it.
        host: which inputs the values are, NumPy arrays all.
        compute: a function of the shape of the other input and these values.
    """
    known = []
    for i in host:
        op = node.inputs[i].op
        if op.type != "Const":
            return compute
        known.append(op.attrs["value"].array)
    last: tuple[Any, Any] | None = None

    def recall(dims: Any, *values: Any) -> Any:
        nonlocal last
        found = last  # another thread may replace it at any time, but never change it
        constant = all(map(is_, values, known))
        if found is not None and constant and found[0] == dims:
            return found[1]
        value = compute(dims, *values)
        if constant:
            last = dims, value
        return value

    return recall
