"""Activations in NumPy, results written in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, widened


@kernel("Relu", framework="numpy")
def relu(node: Node, context: Context) -> Function:
    return lambda x: np.maximum(x, 0)


@kernel("Relu6", framework="numpy")
def relu6(node: Node, context: Context) -> Function:
    def run(x: Any) -> Any:
        out = np.maximum(x, 0)
        return np.minimum(out, 6, out=out if out.ndim else None)

    return run


@kernel("Softmax", framework="numpy")
def softmax(node: Node, context: Context) -> Function:
    def run(logits: Any) -> Any:
        if logits.size == 0:
            return logits
        out = logits - logits.max(-1, keepdims=True)
        np.exp(out, out=out)
        out /= out.sum(-1, keepdims=True)
        return out

    return widened(run, node, context)
