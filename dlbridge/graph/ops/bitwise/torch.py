"""The bits of integers in PyTorch."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, register_functions

_FUNCTIONS = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Invert": torch.bitwise_not,
}
register_functions("torch", _FUNCTIONS)
lacks("torch", WIDE_UNSIGNED, [*_FUNCTIONS, "LeftShift", "RightShift", "PopulationCount"])
