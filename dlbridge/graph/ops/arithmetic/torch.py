"""Arithmetic in PyTorch: its own functions, without the promotion of the array API."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function, register_functions

_FUNCTIONS = {
    "Add": torch.add,
    "AddV2": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Atan2": torch.atan2,
    "NextAfter": torch.nextafter,
}
register_functions("torch", _FUNCTIONS)
lacks(
    "torch",
    WIDE_UNSIGNED,
    [
        *_FUNCTIONS,
        "Div",
        "FloorDiv",
        "TruncateDiv",
        "FloorMod",
        "AddN",
        "AccumulateNV2",
        "ClipByValue",
    ],
)


@kernel("Complex", framework="torch")
def complex_(node: Node, context: Context) -> Function:
    """PyTorch does not broadcast the parts."""
    return lambda real, imag: torch.complex(*torch.broadcast_tensors(real, imag))
