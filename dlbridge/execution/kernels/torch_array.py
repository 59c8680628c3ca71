"""Where torch needs another way: it knows no negative steps."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.context import Context
from dlbridge.execution.kernels.array import Kernel
from dlbridge.execution.kernels.array_slicing import read_selection
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel


@kernel("StridedSlice", host=(1, 2, 3), framework="torch")
def strided_slice(node: Node, context: Context) -> Kernel:
    def select(x: Any, *bounds: Any) -> Any:
        index = list(read_selection(node, x, *bounds))
        flipped = []
        axis = 0
        for i, each in enumerate(index):
            if isinstance(each, slice) and each.step < 0:
                index[i] = _backwards(each)
                flipped.append(axis)
            axis += not isinstance(each, int)
        result = x[tuple(index)]
        return torch.flip(result, flipped) if flipped else result

    return select


def _backwards(walk: slice) -> slice:
    """Return the slice of the same elements in the opposite order."""
    stop = -1 if walk.stop is None else walk.stop
    count = len(range(walk.start, stop, walk.step))
    if not count:
        return slice(0, 0, 1)
    last = walk.start + (count - 1) * walk.step
    return slice(last, walk.start + 1, -walk.step)
