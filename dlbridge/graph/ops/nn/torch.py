"""Activations in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function

# Op types that are one function, to the last rule.
SAME: dict[str, Function] = {
    "Elu": functional.elu,
    "Selu": functional.selu,
    "Softsign": functional.softsign,
}


# Types for which PyTorch has little more than storage.
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


@kernel(*SAME, framework="torch")
def same(node: Node, context: Context) -> Function:
    return SAME[node.type]


@kernel("Relu", framework="torch")
def relu(node: Node, context: Context) -> Function:
    return (lambda x: x) if node.output_types[0].is_unsigned else torch.relu


@kernel("Relu6", framework="torch")
def relu6(node: Node, context: Context) -> Function:
    def run(x: Any) -> Any:
        if x.dtype not in WIDE_UNSIGNED:
            return x.clamp(0, 6)
        if x.dtype is torch.uint64:
            numbers = x.view(torch.int64)  # those that are negative are large
            return torch.where(numbers < 0, 6, numbers.clamp(max=6)).to(x.dtype)
        return x.to(torch.int64).clamp(max=6).to(x.dtype)

    return run


@kernel("LeakyRelu", framework="torch")
def leaky_relu(node: Node, context: Context) -> Function:
    alpha = node.attrs["alpha"]
    return lambda x: functional.leaky_relu(x, alpha)


@kernel("Softmax", framework="torch")
def softmax(node: Node, context: Context) -> Function:
    return lambda x: torch.softmax(x, -1)


@kernel("LogSoftmax", framework="torch")
def log_softmax(node: Node, context: Context) -> Function:
    return lambda x: torch.log_softmax(x, -1)
