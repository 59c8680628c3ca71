"""Where torch needs another way: it knows no negative steps, and flips no wide unsigned ints."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.array.kernels import Kernel
from dlbridge.graph.ops.array.kernels_order import reversing, reversing_flagged
from dlbridge.graph.ops.slicing.kernels import selector

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def flip(x: Any, axis: Any) -> Any:
    """Return x in reverse order along axes; unsigned integers go as the signed of their size."""
    signed = SIGNED.get(x.dtype)
    if signed is None:
        return torch.flip(x, tuple(axis))
    return torch.flip(x.view(signed), tuple(axis)).view(x.dtype)


@kernel("ReverseV2", host=(1,), framework="torch")
def reverse_v2(node: Node, context: Context) -> Kernel:
    return reversing(node, flip)


@kernel("Reverse", host=(1,), framework="torch")
def reverse(node: Node, context: Context) -> Kernel:
    return reversing_flagged(node, flip)


@kernel("StridedSlice", host=(1, 2, 3), framework="torch")
def strided_slice(node: Node, context: Context) -> Kernel:
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
