"""Strided slices in PyTorch, which has no negative steps."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.array.torch import flip
from dlbridge.graph.ops.kernels import Function
from dlbridge.graph.ops.slicing.kernels import selector


@kernel("StridedSlice", host=(1, 2, 3), framework="torch")
def strided_slice(node: Node, context: Context) -> Function:
    select = selector(node)

    def cut(x: Any, *bounds: Any) -> Any:
        index = list(select(x.shape, *bounds))
        flipped = []
        axis = 0
        for i, each in enumerate(index):
            if isinstance(each, slice) and each.step < 0:
                index[i] = _backwards(each)
                flipped.append(axis)
            axis += not isinstance(each, int)
        result = x[tuple(index)]
        return flip(result, flipped) if flipped else result

    return cut


def _backwards(walk: slice) -> slice:
    """Return the slice of the same elements in the opposite order."""
    stop = -1 if walk.stop is None else walk.stop
    count = len(range(walk.start, stop, walk.step))
    if not count:
        return slice(0, 0, 1)
    last = walk.start + (count - 1) * walk.step
    return slice(last, walk.start + 1, -walk.step)
