"""Comparisons and logic in PyTorch: its own functions, without the promotion of the array API."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, register_functions

_FUNCTIONS = {
    "Less": torch.lt,
    "LessEqual": torch.le,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
    "LogicalAnd": torch.logical_and,
    "LogicalOr": torch.logical_or,
    "LogicalNot": torch.logical_not,
    "SelectV2": torch.where,
}
register_functions("torch", _FUNCTIONS)
lacks("torch", WIDE_UNSIGNED, [*_FUNCTIONS, "Equal", "NotEqual", "Select", "Where"])
