"""The bits of integers in PyTorch."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.bitwise.kernels import bit_count, clamped_shift
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function, register_functions

_FUNCTIONS = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Invert": torch.bitwise_not,
}
register_functions("torch", _FUNCTIONS)
lacks("torch", WIDE_UNSIGNED, [*_FUNCTIONS, "LeftShift", "RightShift", "PopulationCount"])


@kernel("LeftShift", framework="torch")
def left_shift(node: Node, context: Context) -> Function:
    return clamped_shift(node, context, torch.bitwise_left_shift)


@kernel("RightShift", framework="torch")
def right_shift(node: Node, context: Context) -> Function:
    return clamped_shift(node, context, torch.bitwise_right_shift)


@kernel("PopulationCount", framework="torch")
def population_count(node: Node, context: Context) -> Function:
    return bit_count(node, context, torch.bitwise_right_shift)
