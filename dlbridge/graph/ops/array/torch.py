"""Transposition and reversal in PyTorch, which does not flip wide unsigned integers."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.array.kernels import conjugating, reversing, reversing_flagged, transposing
from dlbridge.graph.ops.kernels import Function

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def flip(x: Any, axis: Any) -> Any:
    """Return x in reverse order along axes; unsigned integers go as the signed of their size."""
    signed = SIGNED.get(x.dtype)
    if signed is None:
        return torch.flip(x, tuple(axis))
    return torch.flip(x.view(signed), tuple(axis)).view(x.dtype)


@kernel("ReverseV2", host=(1,), framework="torch")
def reverse_v2(node: Node, context: Context) -> Function:
    return reversing(node, flip)


@kernel("Reverse", host=(1,), framework="torch")
def reverse(node: Node, context: Context) -> Function:
    return reversing_flagged(node, flip)


@kernel("Transpose", host=(1,), framework="torch")
def transpose(node: Node, context: Context) -> Function:
    return transposing(node, torch.permute)


@kernel("ConjugateTranspose", host=(1,), framework="torch")
def conjugate_transpose(node: Node, context: Context) -> Function:
    return conjugating(node, context, transposing(node, torch.permute))
